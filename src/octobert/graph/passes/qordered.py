"""ONNX Runtime's int8 operators for CUDA (QOrdered…) in a Q/DQ graph, and what they compute, in ONNX's own operators.

The optimizer (`onnxruntime.transformers`) fuses one form of Q/DQ: every output is quantized, as placement `qordered` does, to
symmetric int8 with zero point 0. An encoder layer whose parts are all quantized becomes

    1 QOrderedAttention            Q, K and V with their biases, Q·Kᵀ, scale, mask, softmax, probs·V
    3 QOrderedMatMul               the output projection and the second feed-forward layer, each with bias and residual add;
                                   the first feed-forward layer with its bias
    1 QOrderedGelu                 (none if the activation is not GELU)
    2 QOrderedLayerNormalization   the one after the last layer only if all its readers read the quantized value

with only int8 values between them. Embeddings, their norm and the heads stay float.

`rewrite_` changes the form that `qdq` writes; the graph computes the same, except for the rounding of one division:

    scale       scores × s            → scores ÷ (1 / s)
    mask        Unsqueeze by two axes → two Unsqueezes by one axis
    context     merged heads → Q → DQ → Q → DQ → merged heads: the same integers
    residual    skip + branch         → branch + skip
    weights     one for several layers → one per layer, since the optimizer transposes a weight at each reader

`prepare_` does that with files of any tool, as far as they match, after folding constants and storing weights as integers.

`fuse` runs the optimizer and corrects three errors of it (onnxruntime 1.31):

    mask        by default it computes [B] lengths from the mask, but the CUDA kernel of QOrderedAttention reads [B, S] int32
    epsilon     it drops the epsilon of norms, which would then be 1e-5
    types       it leaves the context, now int8, annotated as float, which no runtime loads; all annotations are removed

The optimizer does not check two requirements of the kernels; they are checked here: scores scaled by 1/sqrt(head size), and a
head size that is a multiple of 16. Sequence lengths must be multiples of 16 too, and at most 2048.

`expand_` writes the fused operators out again, with what their kernels compute: biases are float and are added before rounding.
No CPU runs them: this is how their attributes and scales are checked, and the orders of weights. The kernels were read in the
sources of onnxruntime (`contrib_ops/cuda/quantization/qordered_ops`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError, PlanError, TargetError
from octobert.graph import operators, parity, parts, smoothing
from octobert.graph.capture import lowering
from octobert.graph.capture.canonical import padding
from octobert.graph.passes import fusion
from octobert.graph.stored import StoredWeight

KINDS = ("QOrderedAttention", "QOrderedMatMul", "QOrderedGelu", "QOrderedLayerNormalization")
# The kernel of QOrderedAttention requires sequence lengths and head sizes that are multiples of this.
MULTIPLE = 16
_ABOVE = ("Add", "Mul", "DequantizeLinear", "QuantizeLinear", "MatMul")
_BELOW = (*operators.PAIR, "MatMul", "Transpose", "Reshape", *operators.PAIR)
# Numbers that an expression of constants may read and make: no weight of an encoder is larger.
_FOLDED = 2**31


def rewrite_(model: ir.Model) -> None:
    """Bring a quantized canonical graph into the form that `fuse` expects, in place; it stays plain ONNX.

    Raises:
        PlanError: quantization is not symmetric int8, no attention has all outputs quantized, or SmoothQuant rescales a
            residual path.
        ModelError: the fused operator would compute an attention differently.
    """
    graph = model.graph
    _check_integers(graph)
    _check_residuals(graph)
    if not _rewrite_(graph):
        softmax = next((node for node in graph if node.op_type == "Softmax"), None)
        raise PlanError(
            "the plan does not match the fused operators",
            where=None if softmax is None else str(softmax.name),
            got="no attention with quantized outputs of scores, probabilities and context",
            expected="placement qordered, and attention scores of Q·Kᵀ and a mask only",
            fix="set the placement to auto, or remove this target",
        )
    operators.clean_(model)


def fuse(model: ir.Model) -> ir.Model:
    """Fuse a graph that `rewrite_` or `prepare_` made ready; only ONNX Runtime's CUDA provider runs the result.

    Raises:
        TargetError: the optimizer fused no matrix product.
        ModelError: the kernels do not take the head size.
    """
    from onnxruntime.transformers import fusion_options, optimizer

    options = fusion_options.FusionOptions("bert")
    options.use_raw_attention_mask()
    # The runtime fuses the float parts when it opens the file; shapes are needed for nothing else.
    options.enable_skip_layer_norm = options.enable_embed_layer_norm = (
        options.enable_shape_inference
    ) = False
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    # The optimizer warns of unknown producers.
    proto.producer_name = ""
    fused: ir.Model = ir.from_proto(
        optimizer.optimize_by_fusion(proto, "bert", optimization_options=options).model
    )
    found = counts(fused)
    if not found["QOrderedAttention"] + found["QOrderedMatMul"]:
        raise TargetError(
            "the optimizer of onnxruntime fused no matrix product",
            got=", ".join(f"{count} {kind}" for kind, count in found.items()),
            expected="symmetric int8 with zero point 0 before and behind every product, with the bias between",
            fix="quantize whole layers, with integer weights and float32 parts, as the placement qordered does",
        )
    _check_heads(fused.graph)
    _restore_epsilons_(fused.graph, model.graph)
    fused.opset_imports.setdefault(operators.MICROSOFT, 1)
    return fused


def checked(model: ir.Model) -> fusion.Fused:
    """Return a copy of any Q/DQ graph with the fused operators, compared with the graph by what their kernels compute.

    Raises:
        ModelError, TargetError: the graph cannot be written with the fused operators.
        ParityError: the fused graph computes something else.
    """
    ready, batches = model.clone(), parity.sample_batches(model)
    prepare_(ready)
    original = parity.onnx_outputs(model, batches, optimized=False)
    parity.compare(ready, batches, original, "the file", tolerance=fusion.ROUNDED, optimized=False)
    fused = fuse(ready)
    expanded = fused.clone()
    expand_(expanded)
    found = {kind: count for kind, count in counts(fused).items() if count}
    return fusion.Fused(fused, found, fusion.check(expanded, ready, batches))


def counts(model: ir.Model) -> dict[str, int]:
    """Return how many of each fused operator a graph has."""
    counter = Counter(node.op_type for node in model.graph if node.domain == operators.MICROSOFT)
    return {kind: counter[kind] for kind in KINDS}


def prepare_(model: ir.Model) -> None:
    """Fold constants, store each weight behind a pair as integers [in, out], and rewrite what matches, in place; the graph
    computes the same."""
    from onnxscript.optimizer import fold_constants

    fold_constants(
        model,
        input_size_limit=_FOLDED,
        output_size_limit=_FOLDED,
        should_fold=lambda node: False if node.op_type in operators.PAIR else None,
    )
    graph = model.graph
    for node in operators.of_type(graph, "DequantizeLinear"):
        weight = StoredWeight.from_node(node)
        if weight is None or weight.value is node.inputs[0] or weight.integers.ndim != 2:
            continue
        integers, axis = weight.integers, weight.axis
        # PyTorch keeps [out, in] and transposes it.
        turned = operators.only_reader(node.outputs[0], "Transpose")
        if turned is not None:
            integers, axis = np.ascontiguousarray(integers.T), 1 - axis
        value = (turned or node).outputs[0]
        name = f"{value.name}.stored"
        inputs = [operators.initializer(graph, f"{name}.quantized", integers), *node.inputs[1:]]
        stored = operators.make_node("DequantizeLinear", inputs, name, {"axis": axis})
        graph.insert_before(node, [stored])
        ir.convenience.replace_all_uses_with(value, stored.outputs[0])
    _state_heads_(graph)
    _rewrite_(graph)
    operators.clean_(model)


def _rewrite_(graph: ir.Graph) -> bool:
    """Bring all parts that match into the form of the optimizer; return whether any attention did."""
    softmaxes = operators.of_type(graph, "Softmax")
    matched = [_rewrite_attention_(graph, softmax) for softmax in softmaxes]
    _split_mask_(graph)
    _order_residuals_(graph)
    _unshare_weights_(graph)
    return any(matched)


def _state_heads_(graph: ir.Graph) -> None:
    """Make targets of Reshapes that keep the first two axes constants: the optimizer reads the number of heads there."""
    for node in operators.of_type(graph, "Reshape"):
        target = operators.producer(node.inputs[1], "Concat")
        sizes = [] if target is None else [operators.const_array(v) for v in target.inputs]
        last = [int(size) for part in sizes[2:] if part is not None for size in np.ravel(part)]
        given = [size is not None for size in sizes]
        if last and given == [index > 1 for index in range(len(sizes))]:
            node.replace_input_with(1, operators.reshape_target(graph, [0, 0, *last]))


def expand_(model: ir.Model) -> int:
    """Write fused operators as ONNX's own, in place: every CPU runs the result, and it computes what the kernels compute.

    Returns:
        The number of operators that were written out.
    """
    fused = [n for n in model.graph if n.domain == operators.MICROSOFT and n.op_type in _EXPANSIONS]
    for node in fused:
        chain = operators.Chain(model.graph, f"{node.name}.expanded")
        _EXPANSIONS[node.op_type](chain, node)
        chain.replace_(node)
    return len(fused)


def _expand_product(chain: operators.Chain, node: ir.Node) -> None:
    inputs = operators.inputs_of(node, 8)
    total = _product(
        chain, "", _floats(chain, "input", inputs[0], inputs[1]), inputs[2], inputs[3], inputs[5]
    )
    if inputs[6] is not None:
        total = chain.Add("sum", total, _floats(chain, "skip", *inputs[6:]))
    _integers(chain, "output", total, inputs[4])


def _expand_gelu(chain: operators.Chain, node: ir.Node) -> None:
    floats = _floats(chain, "input", *node.inputs[:2])
    _integers(chain, "output", lowering.gelu(chain, floats), node.inputs[2])


def _expand_norm(chain: operators.Chain, node: ir.Node) -> None:
    floats = _floats(chain, "input", *node.inputs[:2])
    epsilon = node.attributes["epsilon"].value
    norm = chain.LayerNormalization("norm", floats, *node.inputs[2:4], epsilon=epsilon)
    _integers(chain, "output", norm, node.inputs[4])


def _expand_attention(chain: operators.Chain, node: ir.Node) -> None:
    inputs, graph = node.inputs, chain.graph
    heads, width = node.attributes["num_heads"].value, len(operators.constant_of(inputs[11]))
    split = operators.reshape_target(graph, [0, 0, heads, width // heads])
    merged = operators.reshape_target(graph, [0, 0, width])
    states, values = _floats(chain, "input", *inputs[:2]), []
    for part, name in enumerate(("query", "key", "value")):
        product = _product(
            chain, name, states, inputs[5 + part], inputs[8 + part], inputs[11 + part]
        )
        rounded = _rounded(chain, name, product, inputs[2 + part])
        by_head = chain.Reshape(f"{name}.heads", rounded, split)
        order = (0, 2, 3, 1) if name == "key" else (0, 2, 1, 3)
        values.append(chain.Transpose(f"{name}.turned", by_head, perm=order))
    query, key, value = values
    scores = _rounded(chain, "scores", chain.MatMul("scores", query, key), inputs[14])
    root = operators.shared_initializer(graph, "root_of_head_size", float(np.sqrt(width // heads)))
    mask = chain.Cast("mask.float", inputs[17], to=ir.DataType.FLOAT)
    masked = chain.Add("masked", chain.Div("scaled", scores, root), padding(chain, mask, "mask"))
    shares = _rounded(chain, "probs", chain.Softmax("probs", masked, axis=-1), inputs[15])
    context = chain.Transpose(
        "context.turned", chain.MatMul("context", shares, value), perm=(0, 2, 1, 3)
    )
    _integers(chain, "output", chain.Reshape("context.merged", context, merged), inputs[16])


def _product(
    chain: operators.Chain,
    name: str,
    states: ir.Value,
    weight: ir.Value | None,
    scale: ir.Value | None,
    bias: ir.Value | None,
) -> ir.Value:
    """A linear layer; its weight is stored column by column."""
    stored = operators.constant_of(weight)
    by_columns = np.ascontiguousarray(stored.reshape(stored.shape[::-1]).T)
    named = f"{name}.weight".removeprefix(".")
    integers = operators.initializer(chain.graph, f"{chain.stem}.{named}", by_columns)
    product = chain.MatMul(f"{named}.product", states, _floats(chain, named, integers, scale))
    return product if bias is None else chain.Add(f"{named}.biased", product, bias)


def _floats(
    chain: operators.Chain, name: str, integers: ir.Value | None, scale: ir.Value | None
) -> ir.Value:
    return chain.DequantizeLinear(f"{name}.floats", integers, scale, axis=1)


def _integers(
    chain: operators.Chain, name: str, floats: ir.Value, scale: ir.Value | None
) -> ir.Value:
    zero = operators.shared_initializer(chain.graph, "int8_zero", np.zeros((), np.int8))
    return chain.QuantizeLinear(f"{name}.integers", floats, scale, zero, dtype=ir.DataType.INT8)


def _rounded(
    chain: operators.Chain, name: str, floats: ir.Value, scale: ir.Value | None
) -> ir.Value:
    return _floats(chain, f"{name}.rounded", _integers(chain, name, floats, scale), scale)


_EXPANSIONS = dict(
    zip(KINDS, (_expand_attention, _expand_product, _expand_gelu, _expand_norm), strict=True)
)


def _check_integers(graph: ir.Graph) -> None:
    """Require that all zero points are int8 and 0."""
    for node in graph:
        zero = (
            operators.const_array(operators.inputs_of(node, 3)[2])
            if node.op_type in operators.PAIR
            else None
        )
        if zero is not None and (zero.dtype != np.int8 or zero.any()):
            raise PlanError(
                "the plan does not match the fused operators",
                where=str(node.name),
                got=f"{zero.dtype} with zero point {int(zero.reshape(-1)[0])}",
                expected="symmetric int8, whose zero point is 0",
                fix="set activations to int8 and symmetric to true, or both to auto",
            )


def _check_residuals(graph: ir.Graph) -> None:
    """Require that no smoothed norm is restored before a residual add: the fused operators have one scale per tensor."""
    for add in _residuals(graph):
        restored = next(
            (
                str(node.name)
                for node in (value.producer() for value in add.inputs if value is not None)
                if node is not None and str(node.name).endswith(f".{smoothing.UNSMOOTHED}")
            ),
            None,
        )
        if restored is not None:
            raise PlanError(
                "the model does not match the fused operators",
                where=str(add.name),
                got=f"a residual path that SmoothQuant rescales ({restored})",
                expected="a residual path that reads the quantized norm",
                fix="set transforms: [] in the recipe",
            )


def _residuals(graph: ir.Graph) -> list[ir.Node]:
    """Return the Adds of two computed values whose sum is quantized."""
    adds = [
        n
        for n in graph
        if n.op_type == "Add" and all(operators.const_array(v) is None for v in n.inputs)
    ]
    return [add for add in adds if operators.below(add.outputs[0], "QuantizeLinear")]


def _rewrite_attention_(graph: ir.Graph, softmax: ir.Node) -> bool:
    """Divide by the scale and quantize the context before its heads are merged; return False if the form does not match."""
    above = operators.above(softmax.inputs[0], *_ABOVE)
    below = operators.below(softmax.outputs[0], *_BELOW)
    split = operators.above(above[-1].inputs[0], "Transpose", "Reshape") if above else []
    if not split or not below:
        return False
    scale = above[1]
    divisor = _divisor(
        softmax, operators.const_scalar(scale.inputs[1]), operators.const_array(split[1].inputs[1])
    )
    chain = operators.Chain(graph, str(scale.name))
    chain.Div("", scale.inputs[0], operators.initializer(graph, f"{scale.name}.divisor", divisor))
    chain.replace_(scale)
    _, _, product, transpose, merge, quantize, dequantize = below
    ir.convenience.replace_all_uses_with(dequantize.outputs[0], merge.outputs[0])
    quantize.replace_input_with(0, product.outputs[0])
    transpose.replace_input_with(0, dequantize.outputs[0])
    return True


def _divisor(softmax: ir.Node, scale: float | None, split: np.ndarray | None) -> np.ndarray:
    """Return the root of the head size, by which QOrderedAttention divides the scores."""
    size = int(split[-1]) if split is not None else 0
    root = np.array(np.sqrt(size), dtype=np.float32)
    if scale is None or not np.isclose(scale * root, 1.0, atol=1e-5):
        raise _no_attention(
            softmax,
            f"scores times {scale:g}" if scale is not None else "scores times a vector",
            f"times {1.0 / root if size else 0.0:g}, one over the root of the head size {size}",
        )
    return root


def _check_heads(graph: ir.Graph) -> None:
    """Require head sizes that the kernel takes."""
    for node in operators.of_type(graph, "QOrderedAttention"):
        size = len(operators.constant_of(node.inputs[11])) // node.attributes["num_heads"].value
        if size % MULTIPLE:
            raise _no_attention(node, f"heads of {size} channels", f"a multiple of {MULTIPLE}")


def _no_attention(node: ir.Node, got: str, expected: str) -> ModelError:
    return ModelError(
        "QOrderedAttention cannot compute the attention",
        where=str(node.name),
        got=got,
        expected=expected,
        fix="remove this target",
    )


def _split_mask_(graph: ir.Graph) -> None:
    """Unsqueeze the mask by one axis after the other."""
    for node in [
        n
        for n in graph
        if n.op_type == "Unsqueeze" and operators.input_of(n, 0).name == "attention_mask"
    ]:
        axes = operators.const_array(node.inputs[1])
        if axes is not None and axes.tolist() == [1, 2]:
            first, second = (
                operators.shared_initializer(graph, f"attention_mask.axis_{axis}", [axis])
                for axis in (1, 2)
            )
            mask = operators.input_of(node, 0)
            chain = operators.Chain(graph, str(node.name))
            inner = chain.Unsqueeze("first", mask, first, dtype=mask.dtype)
            chain.Unsqueeze("", inner, second, dtype=mask.dtype)
            chain.replace_(node)


def _order_residuals_(graph: ir.Graph) -> None:
    """Put the branch first and the skip connection, which reads a quantized norm, second."""
    for add in _residuals(graph):
        first, second = add.inputs
        if operators.producer(first, "DequantizeLinear") and not operators.producer(
            second, "DequantizeLinear"
        ):
            add.replace_input_with(0, second)
            add.replace_input_with(1, first)


def _unshare_weights_(graph: ir.Graph) -> None:
    """Give every layer its own copy of a weight."""
    for node in [
        n for n in graph if n.op_type == "DequantizeLinear" and parts.is_weight(n.inputs[0])
    ]:
        for reader, index in list(node.outputs[0].uses())[1:]:
            name = f"{str(reader.name).removesuffix('.matmul')}.weight"
            integers = operators.initializer(
                graph, f"{name}.quantized", operators.constant_of(node.inputs[0])
            )
            inputs = [integers, *node.inputs[1:]]
            copy = operators.make_node(
                "DequantizeLinear", inputs, f"{name}.dequantized", node.attributes
            )
            graph.insert_before(reader, [copy])
            reader.replace_input_with(index, copy.outputs[0])


def _restore_epsilons_(fused: ir.Graph, graph: ir.Graph) -> None:
    """Set the epsilon of every fused norm, found by the name of its weight."""
    epsilons = {
        operators.input_of(n, 1).name: n.attributes["epsilon"]
        for n in graph
        if "epsilon" in n.attributes
    }
    for node in fused:
        if (
            node.op_type == "QOrderedLayerNormalization"
            and (name := operators.input_of(node, 2).name) in epsilons
        ):
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", epsilons[name].value)
