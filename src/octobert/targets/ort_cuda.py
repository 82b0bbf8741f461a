"""ONNX Runtime on NVIDIA GPUs, with its fused int8 operators (QOrdered…): values stay int8 from the embeddings to the head.

The recipe needs `transforms: []`: SmoothQuant rescales the residual path, which these operators read with one scale. Biases are
float and are added before rounding. The operators' behaviour was read in the sources of onnxruntime
(`contrib_ops/cuda/quantization/qordered_ops`); the target has not been run.

The optimizer (`onnxruntime.transformers`) fuses one form of Q/DQ: every output is quantized, as placement `qordered` does, to
symmetric int8 with zero point 0. An encoder layer whose parts are all quantized becomes

    1 QOrderedAttention            Q, K and V with their biases, Q·Kᵀ, scale, mask, softmax, probs·V
    3 QOrderedMatMul               the output projection and the second feed-forward layer, each with bias and residual add;
                                   the first feed-forward layer with its bias
    1 QOrderedGelu                 (none if the activation is not GELU)
    2 QOrderedLayerNormalization   the one after the last layer only if all its readers read the quantized value

with only int8 values between them. Embeddings, their norm and the heads stay float. `rewrite_` changes the form that `qdq`
writes; the graph computes the same, except for the rounding of one division:

    scale       scores × s            → scores ÷ (1 / s)
    mask        Unsqueeze by two axes → two Unsqueezes by one axis
    context     merged heads → Q → DQ → Q → DQ → merged heads: the same integers
    residual    skip + branch         → branch + skip
    weights     one for several layers → one per layer, since the optimizer transposes a weight at each reader

`fuse` runs the optimizer and corrects three errors of it (onnxruntime 1.31):

    mask        by default it computes [B] lengths from the mask, but the CUDA kernel of QOrderedAttention reads [B, S] int32
    epsilon     it drops the epsilon of norms, which would then be 1e-5
    types       it leaves the context, now int8, annotated as float, which no runtime loads; all annotations are removed

The optimizer does not check two requirements of the kernels; they are checked here: scores scaled by 1/sqrt(head size), and a
head size that is a multiple of 16. Sequence lengths must be multiples of 16 too, and at most 2048.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.core.capability import (
    Activations,
    Capabilities,
    FloatParts,
    Needs,
    OnnxRules,
    Rewrites,
)
from octobert.core.errors import ModelError, PlanError, TargetError
from octobert.core.plan import EMBEDDING, LINEAR, OUTPUTS
from octobert.core.session import ExportOptions, Feeds, Session, SessionOptions
from octobert.graph import operators, parts, smoothing
from octobert.graph.passes import float16, fusion, opset
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

CAPABILITIES = Capabilities(
    name="ort-cuda",
    runtime="ort",
    description="ONNX Runtime on NVIDIA GPUs, fused int8 operators",
    device="NVIDIA GPU",
    placement="qordered",
    activations=Activations(computed=(("int8", True),)),
    float_parts=FloatParts(in_files=("float32", "float16", "bfloat16")),
    roles=(*LINEAR, "residual.skip", *EMBEDDING, *OUTPUTS),
    qdq=False,
    onnx=OnnxRules(opset=(13, 25), domains=("com.microsoft",)),
    rewrites=Rewrites(first_token=False),
    file="onnx/model_fused.onnx",
    needs=Needs(extra="gpu", build="onnxruntime-gpu", drivers=("nvidia", "cuda", "cudnn")),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS = {
    **ort.RUNTIME_OPTIONS,
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "use_tf32": ("1", "0"),
}

KINDS = ("QOrderedAttention", "QOrderedMatMul", "QOrderedGelu", "QOrderedLayerNormalization")
# The kernel of QOrderedAttention requires sequence lengths and head sizes that are multiples of this.
MULTIPLE = 16
_ABOVE = ("Add", "Mul", "DequantizeLinear", "QuantizeLinear", "MatMul")
_BELOW = (*operators.PAIR, "MatMul", "Transpose", "Reshape", *operators.PAIR)

_PROVIDER = ort.Provider("CUDAExecutionProvider", "pip install onnxruntime-gpu")
probe = _PROVIDER.probe


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph and the fused graph. Without quantized activations the fused operators are float.

    Raises:
        PlanError, ModelError, TargetError: the graph cannot be written with the fused operators.
    """
    files.write(quantized, folder, options)
    model = ir.load(quantized)
    if any(node.op_type == "QuantizeLinear" for node in model.graph):
        rewrite_(model)
        model = fuse(model)
    else:
        model = fusion.fuse(model).model
        float16.convert_(model, options.float_parts)
    if options.opset is not None:
        opset.convert_(model, options.opset.opset, domains=options.opset.domains)
    operators.save(model, model_file(folder))


def model_file(package: Path) -> Path:
    """Return the path of the fused graph in a package."""
    return package / CAPABILITIES.file


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file. The fused attention needs padded sequences, a float graph does not."""
    opener = PaddedSession if path.name == Path(CAPABILITIES.file).name else ort.OrtSession
    return opener(path, options, _PROVIDER.name)


class PaddedSession(ort.OrtSession):
    """A session that pads sequences to a multiple of `MULTIPLE`, and cuts the padding off outputs per token."""

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        length = feeds["input_ids"].shape[1]
        # Zeros in the mask hide the padding tokens, whatever the id 0 means.
        padding = ((0, 0), (0, -length % MULTIPLE))
        results = super().run({name: np.pad(array, padding) for name, array in feeds.items()})
        return {
            name: result[:, :length] if name in self.per_token else result
            for name, result in results.items()
        }


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
    softmaxes = [node for node in graph if node.op_type == "Softmax"]
    if not any([_rewrite_attention_(graph, softmax) for softmax in softmaxes]):
        raise PlanError(
            "the plan does not match the fused operators",
            where=str(softmaxes[0].name) if softmaxes else None,
            got="no attention with quantized outputs of scores, probabilities and context",
            expected="placement qordered, and attention scores of Q·Kᵀ and a mask only",
            fix="set the placement to auto, or remove this target",
        )
    _split_mask_(graph)
    _order_residuals_(graph)
    _unshare_weights_(graph)
    operators.clean_(model)


def fuse(model: ir.Model) -> ir.Model:
    """Fuse a graph that `rewrite_` prepared; only ONNX Runtime's CUDA provider runs the result.

    Raises:
        TargetError: the optimizer fused no attention.
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
    fused_counts = counts(fused)
    if not fused_counts["QOrderedAttention"]:
        raise TargetError(
            "the optimizer of onnxruntime fused no attention",
            got=", ".join(f"{count} {kind}" for kind, count in fused_counts.items()),
            expected="a QOrderedAttention for each layer, between LayerNormalizations",
            fix="quantize whole layers, with integer weights and float32 parts, or remove this target",
        )
    _restore_epsilons_(fused.graph, model.graph)
    fused.opset_imports.setdefault(operators.MICROSOFT, 1)
    return fused


def counts(model: ir.Model) -> dict[str, int]:
    """Return how many of each fused operator a graph has."""
    counter = Counter(node.op_type for node in model.graph if node.domain == operators.MICROSOFT)
    return {kind: counter[kind] for kind in KINDS}


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
    div = operators.make_node(
        "Div",
        [scale.inputs[0], operators.initializer(graph, f"{scale.name}.divisor", divisor)],
        str(scale.name),
    )
    ir.convenience.replace_nodes_and_values(
        graph, scale, [scale], [div], [scale.outputs[0]], [div.outputs[0]]
    )
    _, _, product, transpose, merge, quantize, dequantize = below
    ir.convenience.replace_all_uses_with(dequantize.outputs[0], merge.outputs[0])
    quantize.replace_input_with(0, product.outputs[0])
    transpose.replace_input_with(0, dequantize.outputs[0])
    return True


def _divisor(softmax: ir.Node, scale: float | None, split: np.ndarray | None) -> np.ndarray:
    """Return the root of the head size, by which QOrderedAttention divides the scores."""
    size = int(split[-1]) if split is not None else 0
    root = np.array(np.sqrt(size), dtype=np.float32)
    got, expected = None, ""
    if scale is None or not np.isclose(scale * root, 1.0, atol=1e-5):
        got = f"scores times {scale:g}" if scale is not None else "scores times a vector"
        expected = (
            f"times {1.0 / root if size else 0.0:g}, one over the root of the head size {size}"
        )
    elif size % MULTIPLE:
        got, expected = f"heads of {size} channels", f"a multiple of {MULTIPLE}"
    if got is not None:
        raise ModelError(
            "QOrderedAttention cannot compute the attention",
            where=str(softmax.name),
            got=got,
            expected=expected,
            fix="remove this target",
        )
    return root


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
            inner = operators.make_node(
                "Unsqueeze",
                [node.inputs[0], first],
                f"{node.name}.first",
                dtype=node.outputs[0].dtype,
            )
            graph.insert_before(node, [inner])
            node.replace_input_with(0, inner.outputs[0])
            node.replace_input_with(1, second)


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
            attributes = {key: attribute.value for key, attribute in node.attributes.items()}
            copy = operators.make_node(
                "DequantizeLinear", [integers, *node.inputs[1:]], f"{name}.dequantized", attributes
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
