"""What is float in a graph, made float16 or bfloat16: for GPUs, whose matrix units halve time and memory of what is left.

Callers see no difference: ids go in, float32 comes out, and what has 16 bits lies between. The opset becomes 19, the first
whose Quantize/DequantizeLinear take both types. Four things stay float32, with Casts around them:

    LayerNormalization      its first stage squares deviations from the mean, and float16 ends at 65,504 = 256². In
                            all-MiniLM-L6-v2 one channel deviates by 222 from its row's mean. ONNX asks for float32 inside
                            (`stash_type`), but not every runtime listens: in a graph that says it outright, none can overflow.
                            The price is two vectors a norm. (Softmax needs no such care: it subtracts the maximum first.)
    what follows the last   pooling and its L2 norm, unless a weight follows too: a sum over all tokens has more digits than
    norm                    float16, and the bounds of the divisors, 1e-9 and 1e-12, would be zero
    single constants below  6.1e-5 in magnitude: float16 has fewer digits there, and nothing at all below 3e-8
    scales below that       the whole Quantize/Dequantize pair, or the table of rows

bfloat16 has float32's range, so that nothing overflows or vanishes, and the last two do not apply; but 8 binary digits, too
few for the first two. Scales are rounded to the type, and `qdq` rounds weights with the scales that are in the file. In a graph
that has its integers already they stay: 127 steps become longer by 0.06 of one at most in float16, by half of one in bfloat16.
Whether activations fit, no constant tells; the largest value of all-MiniLM-L6-v2 is a score of 553, a hundredth of the limit.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.plan import FloatType
from octobert.graph import operators

OPSET = 19
# The IR version that came with it.
_IR_VERSION = 9
LARGEST = float(np.finfo(np.float16).max)
# The smallest number that has all 11 binary digits.
SMALLEST = float(np.finfo(np.float16).tiny)
_FULL = ir.DataType.FLOAT
_SHORT = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
_NUMPY = {ir.DataType.FLOAT16: np.dtype(np.float16), ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
# The plain norm, and ONNX Runtime's that hold one (`fusing`).
_NORMS = ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization")
_REFUSED = ("DynamicQuantizeLinear", "MatMulInteger", "If", "Loop", "Scan")


def rounded_scale(scale: np.ndarray, to: FloatType) -> np.ndarray:
    """Scales, still float32, that a type can hold.

    Those too small for float16 stay as they are, and keep their pair in float32; but the scale of a channel of zeros, which is
    the smallest there is, means nothing, and becomes one that float16 has.
    """
    if to != "float16":
        return scale if to == "float32" else scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    near = scale.astype(np.float16).astype(np.float32)
    kept = np.where(scale < SMALLEST, scale, near)
    return np.where(scale <= np.finfo(np.float32).tiny, np.float32(SMALLEST), kept).astype(np.float32)


def halve_(model: ir.Model, to: FloatType = "float16") -> None:
    """Give all that is float32 another type, in place, but for what the module's text lists.

    Args:
        model: a float graph, or one with Quantize/DequantizeLinear.
        to: float32 leaves the model as it is.

    Raises:
        ModelError: a constant beyond float16's ±65504, dynamically quantized activations, or a value of unknown type.
    """
    if to == "float32":
        return
    graph, short = model.graph, _SHORT[to]
    refused = next((node for node in graph if node.op_type in _REFUSED), None)
    if refused is not None:
        raise ModelError(
            f"the graph cannot be made {to}",
            where=f"node {refused.name}",
            got=refused.op_type,
            fix="leave its float parts float32, or quantize its activations statically",
        )
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.TopologicalSortPass()(model)
    if any(value.dtype is None for node in graph for value in node.outputs):
        common.ShapeInferencePass()(model)
    kept = _kept(graph, short)
    _halve_constants_(graph, kept, short)
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    for node in list(graph):
        wanted = _FULL if node in kept else short
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in (_FULL, short) and value.dtype != wanted:
                if (value, wanted) not in casts:
                    cast = operators.make_node("Cast", [value], f"{value.name}.{_word(wanted)}", {"to": wanted}, dtype=wanted)
                    graph.insert_before(node, [cast])
                    casts[value, wanted] = cast.outputs[0]
                node.replace_input_with(index, casts[value, wanted])
        if wanted is short:
            _halve_node_(node, short)
    _restore_outputs_(graph, short)
    if model.opset_imports[""] < OPSET:
        # Between 18 and 19 the operators of encoders differ in accepted types alone.
        model.opset_imports[""] = OPSET
        for node in graph:
            node.version = None
    model.ir_version = max(model.ir_version, _IR_VERSION)
    operators.clean_(model)


def _kept(graph: ir.Graph, short: ir.DataType) -> set[ir.Node]:
    """The nodes that stay float32."""
    norms = [node for node in graph if node.op_type in _NORMS]
    small = {node for node in graph if short == ir.DataType.FLOAT16 and _reads_small(node)}
    rows = {reader for node in small if node.op_type == "Gather" for reader in operators.consumers(node.outputs[0])}
    return {*norms, *small, *rows, *(_tail(norms[-1]) if norms else ())}


def _reads_small(node: ir.Node) -> bool:
    """Whether a node reads a number that float16 would lose: a single constant, or one scale of many."""
    for index, value in enumerate(node.inputs):
        array = operators.const_array(value)
        if array is None or array.dtype != np.float32 or not array.size:
            continue
        is_scale = node.op_type in operators.PAIR and index == 1
        is_table = node.op_type == "Gather" and index == 0 and array.ndim == 2 and array.shape[1] == 1
        magnitudes = np.abs(array)
        if (array.size == 1 or is_scale or is_table) and np.any((magnitudes > 0) & (magnitudes < SMALLEST)):
            return True
    return False


def _tail(norm: ir.Node) -> set[ir.Node]:
    """What follows a norm, and what that alone reads; nothing where a product with a weight follows too."""
    found: set[ir.Node] = set()
    stack = [norm]
    while stack:
        for reader in operators.consumers(stack.pop().outputs[0]):
            if reader not in found:
                found.add(reader)
                stack.append(reader)
    if any(node.op_type == "MatMul" for node in found):
        return set()
    stack = list(found)
    while stack:
        for value in stack.pop().inputs:
            node = value.producer() if value is not None else None
            if node is None or node in found or node is norm:
                continue
            if all(reader in found for output in node.outputs for reader, _ in output.uses()):
                found.add(node)
                stack.append(node)
    return found


def _halve_constants_(graph: ir.Graph, kept: set[ir.Node], short: ir.DataType) -> None:
    """A short form of every float32 constant that a short node reads; a copy where a float32 node reads it too."""
    for name, value in list(graph.initializers.items()):
        readers = [(node, index) for node, index in value.uses() if node not in kept]
        array = operators.const_array(value)
        if array is None or array.dtype != np.float32 or not readers:
            continue
        largest = float(np.abs(array).max(initial=0.0))
        if short == ir.DataType.FLOAT16 and not largest <= LARGEST:
            raise ModelError(
                "a constant does not fit float16",
                where=str(name),
                got=f"{largest:g}",
                expected=f"at most {LARGEST:g}",
                fix="leave the float parts float32",
            )
        half = array.astype(_NUMPY[short])
        if len(readers) == len(value.uses()):
            value.const_value, value.type = ir.tensor(half, name=name), ir.TensorType(short)
            continue
        copy = operators.initializer(graph, f"{name}.{_word(short)}", half)
        for node, index in readers:
            node.replace_input_with(index, copy)


def _halve_node_(node: ir.Node, short: ir.DataType) -> None:
    """The short type where a node's outputs or attributes say float32.

    Raises:
        ModelError: an output of unknown type.
    """
    if node.op_type == "Cast" and node.attributes["to"].value == _FULL:
        node.attributes["to"] = ir.AttrInt64("to", short)
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == _FULL:
            node.attributes[attribute.name] = ir.AttrTensor(
                attribute.name, ir.tensor(attribute.value.numpy().astype(_NUMPY[short]))
            )
    for output in node.outputs:
        if output.dtype is None and output.uses():
            raise ModelError("the type of a value is unknown", where=str(output.name), fix="export the model again")
        if output.dtype == _FULL:
            output.type = ir.TensorType(short)


def _restore_outputs_(graph: ir.Graph, short: ir.DataType) -> None:
    """Outputs of the graph are float32 as before, under their names."""
    for index, value in enumerate(graph.outputs):
        if value.dtype == short:
            name = str(value.name)
            value.name = f"{name}.{_word(short)}"
            cast = operators.make_node("Cast", [value], name, {"to": _FULL}, shape=None)
            cast.outputs[0].shape = value.shape
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]


def _word(dtype: ir.DataType) -> str:
    return dtype.name.lower()
