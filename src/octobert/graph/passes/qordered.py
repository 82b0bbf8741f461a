"""ONNX Runtime's own int8 operators for CUDA: the one form of a quantized graph that its optimizer fuses, and the fusion.

The optimizer (`onnxruntime.transformers`) knows one form of Q/DQ: every output quantized, as placement `qordered` does, all of
it symmetric int8 with zero point 0. A layer whose parts are all quantized becomes

    1 QOrderedAttention            Q, K and V with their biases, Q·Kᵀ, scale, mask, softmax, probs·V
    3 QOrderedMatMul               the output projection and the second feed-forward layer, each with bias and residual add;
                                   the first feed-forward layer with its bias
    1 QOrderedGelu                 (none where the activation is no GELU)
    2 QOrderedLayerNormalization   the one behind the last layer only if all that reads it reads it quantized

and nothing but int8 flows between them. Embeddings and their norm, whose sum no placement quantizes, and the heads stay float.
`rewrite_` changes what `qdq` writes where the form differs; the graph computes the same, to the rounding of one division:

    scale       scores × s            → scores ÷ (1 / s)
    mask        Unsqueeze by two axes → two of one axis each
    context     merged heads → Q → DQ → Q → DQ → merged heads: the same integers
    residual    skip + branch         → branch + skip
    weights     one of several layers → one for each, since the optimizer transposes a weight wherever it is read

`fuse` then runs the optimizer, and mends three things that it gets wrong (seen in onnxruntime 1.31):

    mask        by default it makes [B] lengths of the mask, where the CUDA kernel of QOrderedAttention reads [B, S] of int32
    epsilon     it leaves out that of the norms, which would be 1e-5 whatever the model has
    types       it keeps the context's value, now int8, annotated as float, which no runtime loads; nothing stays annotated

What the kernels take for granted and the optimizer does not look at is refused here: scores scaled by anything but
1/sqrt(head size), and heads that are no multiple of 16. Sequences have to be a multiple of 16 too, and at most 2048.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError, PlanError, TargetError
from octobert.graph import operators, parts, smoothing

KINDS = ("QOrderedAttention", "QOrderedMatMul", "QOrderedGelu", "QOrderedLayerNormalization")
# The kernel of QOrderedAttention takes lengths of sequences, and heads, of this or a multiple of it.
MULTIPLE = 16
_ABOVE = ("Add", "Mul", "DequantizeLinear", "QuantizeLinear", "MatMul")
_BELOW = (*operators.PAIR, "MatMul", "Transpose", "Reshape", *operators.PAIR)


def rewrite_(model: ir.Model) -> None:
    """Bring a quantized canonical graph into the form that `fuse` takes, in place; it stays plain ONNX and computes the same.

    Raises:
        PlanError: quantized otherwise than symmetric int8, or no attention with all its outputs quantized, or a residual path
            that SmoothQuant rescales.
        ModelError: an attention that the fused operator would compute otherwise.
    """
    graph = model.graph
    _check_integers(graph)
    _check_residuals(graph)
    softmaxes = [node for node in graph if node.op_type == "Softmax"]
    if not any([_rewrite_attention_(graph, softmax) for softmax in softmaxes]):
        raise PlanError(
            "the plan does not fit the fused operators",
            where=str(softmaxes[0].name) if softmaxes else None,
            got="no attention whose scores, probabilities and context are all quantized where they are made",
            expected="placement qordered, and an attention whose scores hold nothing but Q·Kᵀ and a mask",
            fix="set the placement to auto, or leave this target out",
        )
    _split_mask_(graph)
    _order_residuals_(graph)
    _unshare_weights_(graph)
    operators.clean_(model)


def fuse(model: ir.Model) -> ir.Model:
    """The graph of `rewrite_` with the fused operators, which only ONNX Runtime's CUDA provider runs.

    Raises:
        TargetError: the optimizer fused no attention.
    """
    from onnxruntime.transformers import fusion_options, optimizer

    options = fusion_options.FusionOptions("bert")
    options.use_raw_attention_mask()
    # What is float stays as it is, for the runtime to fuse when it opens the file; shapes are needed for nothing else.
    options.enable_skip_layer_norm = options.enable_embed_layer_norm = options.enable_shape_inference = False
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    # The optimizer warns of producers that it does not know.
    proto.producer_name = ""
    fused = ir.from_proto(optimizer.optimize_by_fusion(proto, "bert", optimization_options=options).model)
    found = counts(fused)
    if not found["QOrderedAttention"]:
        raise TargetError(
            "the optimizer of onnxruntime fused no attention",
            got=", ".join(f"{count} {kind}" for kind, count in found.items()),
            expected="a QOrderedAttention for each layer, between LayerNormalizations",
            fix="quantize whole layers, with weights as integers and float32 parts, or leave this target out",
        )
    _restore_epsilons_(fused.graph, model.graph)
    fused.opset_imports.setdefault(operators.MICROSOFT, 1)
    return fused


def counts(model: ir.Model) -> dict[str, int]:
    """Kind of fused operator → how many there are."""
    found = Counter(node.op_type for node in model.graph if node.domain == operators.MICROSOFT)
    return {kind: found[kind] for kind in KINDS}


def _check_integers(graph: ir.Graph) -> None:
    """Zero points of int8, all 0."""
    for node in graph:
        zero = operators.const_array(node.inputs[2]) if node.op_type in operators.PAIR and len(node.inputs) > 2 else None
        if zero is not None and (zero.dtype != np.int8 or zero.any()):
            raise PlanError(
                "the plan does not fit the fused operators",
                where=str(node.name),
                got=f"{zero.dtype} with zero point {int(zero.reshape(-1)[0])}",
                expected="symmetric int8, whose zero point is 0",
                fix="set activations to int8 and symmetric to true, or both to auto",
            )


def _check_residuals(graph: ir.Graph) -> None:
    """No Mul between a quantized norm and the residual add that reads it: the fused operators have one scale for all of it."""
    for add in _residuals(graph):
        found = next((mul for mul in (operators.producer(v, "Mul") for v in add.inputs) if _rescales(mul)), None)
        if found is not None:
            raise PlanError(
                "the model does not fit the fused operators",
                where=str(add.name),
                got=f"a residual path that SmoothQuant rescales ({found.name})",
                expected="one that reads the quantized norm",
                fix='write "prepare: []"',
            )


def _rescales(mul: ir.Node | None) -> bool:
    return mul is not None and str(mul.name).endswith(f".{smoothing.UNSMOOTHED}")


def _residuals(graph: ir.Graph) -> list[ir.Node]:
    """The adds of two computed values that are quantized next."""
    adds = [n for n in graph if n.op_type == "Add" and all(operators.const_array(v) is None for v in n.inputs)]
    return [add for add in adds if _below(add.outputs[0], "QuantizeLinear")]


def _above(value: ir.Value, *op_types: str) -> list[ir.Node]:
    """The nodes above a value, along first inputs, if they are of these types; else none."""
    nodes: list[ir.Node] = []
    for op_type in op_types:
        node = operators.producer(value, op_type)
        if node is None:
            return []
        nodes.append(node)
        value = node.inputs[0]  # type: ignore[assignment]
    return nodes


def _below(value: ir.Value, *op_types: str) -> list[ir.Node]:
    """The nodes below a value, each the only reader of the one before, if they are of these types; else none."""
    nodes: list[ir.Node] = []
    for op_type in op_types:
        readers = operators.readers(value)
        if len(readers) != 1 or readers[0].op_type != op_type or value.is_graph_output():
            return []
        nodes.append(readers[0])
        value = readers[0].outputs[0]
    return nodes


def _rewrite_attention_(graph: ir.Graph, softmax: ir.Node) -> bool:
    """Divide by the scale, and quantize the context before its heads are merged; False where it is not quantized like that."""
    above, below = _above(softmax.inputs[0], *_ABOVE), _below(softmax.outputs[0], *_BELOW)
    split = _above(above[-1].inputs[0], "Transpose", "Reshape") if above else []
    if not split or not below:
        return False
    scale = above[1]
    divisor = _divisor(softmax, operators.const_scalar(scale.inputs[1]), operators.const_array(split[1].inputs[1]))
    div = operators.make_node(
        "Div", [scale.inputs[0], operators.initializer(graph, f"{scale.name}.divisor", divisor)], str(scale.name)
    )
    ir.convenience.replace_nodes_and_values(graph, scale, [scale], [div], [scale.outputs[0]], [div.outputs[0]])
    _, _, product, transpose, merge, quantize, dequantize = below
    ir.convenience.replace_all_uses_with(dequantize.outputs[0], merge.outputs[0])
    quantize.replace_input_with(0, product.outputs[0])
    transpose.replace_input_with(0, dequantize.outputs[0])
    return True


def _divisor(softmax: ir.Node, scale: float | None, split: np.ndarray | None) -> np.ndarray:
    """What the scores are divided by: the root of the head size, which the fused operator takes from its shapes."""
    size = int(split[-1]) if split is not None else 0
    root = np.array(np.sqrt(size), dtype=np.float32)
    if scale is None or not np.isclose(scale * root, 1.0, atol=1e-5):
        raise ModelError(
            "the attention is not what QOrderedAttention computes",
            where=str(softmax.name),
            got=f"scores times {scale:g}" if scale is not None else "scores times a vector",
            expected=f"times {1.0 / root if size else 0.0:g}, one over the root of the head size {size}",
            fix="leave this target out",
        )
    if size % MULTIPLE:
        raise ModelError(
            "the attention is not what QOrderedAttention computes",
            where=str(softmax.name),
            got=f"heads of {size} channels",
            expected=f"a multiple of {MULTIPLE}",
            fix="leave this target out",
        )
    return root


def _split_mask_(graph: ir.Graph) -> None:
    for node in [n for n in graph if n.op_type == "Unsqueeze" and n.inputs[0].name == "attention_mask"]:
        axes = operators.const_array(node.inputs[1])
        if axes is not None and axes.tolist() == [1, 2]:
            first, second = (
                operators.shared_initializer(graph, f"attention_mask.axis_{axis}", np.array([axis])) for axis in axes
            )
            inner = operators.make_node("Unsqueeze", [node.inputs[0], first], f"{node.name}.first", dtype=node.outputs[0].dtype)
            graph.insert_before(node, [inner])
            node.replace_input_with(0, inner.outputs[0])
            node.replace_input_with(1, second)


def _order_residuals_(graph: ir.Graph) -> None:
    """The branch first; the skip connection, which reads a quantized norm, second."""
    for add in _residuals(graph):
        first, second = add.inputs
        if operators.producer(first, "DequantizeLinear") and not operators.producer(second, "DequantizeLinear"):
            add.replace_input_with(0, second)
            add.replace_input_with(1, first)


def _unshare_weights_(graph: ir.Graph) -> None:
    for node in [n for n in graph if n.op_type == "DequantizeLinear" and parts.is_weight(n.inputs[0])]:
        for reader, index in list(node.outputs[0].uses())[1:]:
            name = f"{str(reader.name).removesuffix('.matmul')}.weight"
            own = operators.initializer(graph, f"{name}.quantized", node.inputs[0].const_value.numpy())
            attributes = {key: attribute.value for key, attribute in node.attributes.items()}
            copy = operators.make_node("DequantizeLinear", [own, *node.inputs[1:]], f"{name}.dequantized", attributes)
            graph.insert_before(reader, [copy])
            reader.replace_input_with(index, copy.outputs[0])


def _restore_epsilons_(fused: ir.Graph, graph: ir.Graph) -> None:
    """The epsilon of every fused norm, by the name of the weight that it multiplies with."""
    epsilons = {n.inputs[1].name: n.attributes["epsilon"] for n in graph if "epsilon" in n.attributes}
    for node in fused:
        if node.op_type == "QOrderedLayerNormalization" and node.inputs[2].name in epsilons:
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", epsilons[node.inputs[2].name].value)
