"""Convert the float32 operators of a graph to float16 or bfloat16, for GPUs, where this halves time and memory.

Inputs and outputs of the graph keep their types. The opset becomes 19, the first whose Quantize/DequantizeLinear take both
types. These stay float32, with Casts around them:

    norms                   LayerNormalization squares deviations from the mean, RMS norms what they read, and float16 ends at
                            65,504 < 256². In
                            all-MiniLM-L6-v2 one channel deviates by 222 from the mean of its row. ONNX asks for float32 inside
                            (`stash_type`), but not every runtime complies. Softmax subtracts the maximum first and is safe.
    operators after the     pooling and what follows it; other heads too, unless they have a weight: a sum over all tokens needs
    last norm               more digits than float16 has, and the lower bounds of divisors, 1e-9 and 1e-12, would become zero
    sums                    reductions that add, whose sums end beyond 65,504 before a mean divides them
    values beyond the range what reads or makes a value that a plan names (`unfit`), because rows reach numbers that are too
                            large for float16, or none that are large enough
    constants beyond it     what reads one; of single numbers below 6.1e-5 (float16 has fewer digits there, and none below
                            3e-8) also what takes the root of the result, or divides by it
    small scales            below 6.1e-5: the whole Q/DQ pair, or the table of embedding rows

The last four do not apply to bfloat16, which has the range of float32, but only 8 binary digits. Scales are rounded to the
type; `qdq` rounds weights with these scales. In a graph that is quantized already, 127 steps become longer by at most 0.06
steps in float16 and by half a step in bfloat16. What products add up inside is not known here: GPUs add in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.plan import FloatType
from octobert.graph import operators, parts
from octobert.graph.passes import Pass

OPSET = 19
LARGEST = float(np.finfo(np.float16).max)
# The smallest float16 number with full precision, 11 binary digits.
SMALLEST = float(np.finfo(np.float16).tiny)
_FULL = ir.DataType.FLOAT
_SHORT = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
# The plain norm, and ONNX Runtime's fused operators that contain one.
_NORMS = ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization")
# What returns values that it reads, or rounds them, or takes a root: that of a small number is divided by, too.
_PASSED_ON = (*operators.PAIR, "Slice", "Gather", "Pow", "Sqrt", "Reciprocal")
# Texts unlike the calibration rows go beyond their ranges: one held-out row in ten reaches 1.05 to 1.3 times the ends
# (docs/decisions/023-held-out-ranges.md). One binary digit of float16's range is kept free for them, and for roundings on the
# way.
MARGIN = 2.0
_REFUSED = ("DynamicQuantizeLinear", "MatMulInteger", "If", "Loop", "Scan")


def rounded_scale(scale: np.ndarray, to: FloatType) -> np.ndarray:
    """Round scales to numbers that a type can represent; the result is float32.

    Scales too small for float16 stay as they are, and their pair stays float32. The scale of a channel of zeros is arbitrary
    and becomes the smallest full-precision float16 number.

    Args:
        scale: float32 scales of any shape.
        to: type of the float parts of the graph.

    Example:
        >>> rounded_scale(np.array([0.1], dtype=np.float32), "bfloat16").tolist()
        [0.10009765625]
    """
    if to != "float16":
        return scale if to == "float32" else scale.astype(ml_dtypes.bfloat16).astype(np.float32)
    rounded = np.where(scale < SMALLEST, scale, scale.astype(np.float16).astype(np.float32))
    return np.where(scale <= np.finfo(np.float32).tiny, np.float32(SMALLEST), rounded).astype(
        np.float32
    )


def convert_(model: ir.Model, to: FloatType = "float16", unfit: Collection[str] = ()) -> int:
    """Convert the float32 operators of a graph, in place, with the exceptions in the module's docstring.

    Args:
        model: a float graph, or one with Quantize/DequantizeLinear.
        to: the new type; float32 leaves the model as it is.
        unfit: values that float16 cannot hold.

    Returns:
        The number of operators that were converted.

    Raises:
        ModelError: activations are dynamically quantized, or a type is unknown.
    """
    if to == "float32":
        return 0
    graph, short = model.graph, _SHORT[to]
    refused = next((node for node in graph if node.op_type in _REFUSED), None)
    if refused is not None:
        raise ModelError(
            f"the graph cannot be converted to {to}",
            where=f"node {refused.name}",
            got=refused.op_type,
            fix="set float_parts to float32, or quantize activations statically",
        )
    _typed_(model)
    unconverted = _unconverted(graph, unfit if to == "float16" else None)
    _convert_constants_(graph, unconverted, short)
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
    nodes = list(graph)
    for node in nodes:
        dtype = _FULL if node in unconverted else short
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in (_FULL, short) and value.dtype != dtype:
                if (value, dtype) not in casts:
                    cast = operators.make_node(
                        "Cast",
                        [value],
                        f"{value.name}.{dtype.name.lower()}",
                        {"to": dtype},
                        dtype=dtype,
                    )
                    graph.insert_before(node, [cast])
                    casts[value, dtype] = cast.outputs[0]
                node.replace_input_with(index, casts[value, dtype])
        if dtype is short:
            _convert_node_(node, short)
    _restore_outputs_(graph, short)
    if model.opset_imports[""] < OPSET:
        # Between opsets 18 and 19 the operators of encoders differ only in accepted types.
        model.opset_imports[""] = OPSET
        for node in graph:
            node.version = None
    operators.clean_(model)
    return len(nodes) - len(unconverted)


def _typed_(model: ir.Model) -> None:
    """Let all constants be initializers, and all values have types."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.TopologicalSortPass()(model)
    if any(value.dtype is None for node in model.graph for value in node.outputs):
        common.ShapeInferencePass()(model)


def _unconverted(graph: ir.Graph, unfit: Collection[str] | None) -> set[ir.Node]:
    """Return the nodes that stay float32.

    Args:
        unfit: values that float16 cannot hold; None for bfloat16.
    """
    norms = [
        inside
        for node in graph
        for inside in ([node] if node.op_type in _NORMS else parts.rms_nodes(node))
    ]
    kept = {*norms, *(_tail(graph, norms[-1]) if norms else ())}
    return kept if unfit is None else {*kept, *_beyond(graph, unfit)}


def _beyond(graph: ir.Graph, unfit: Collection[str]) -> set[ir.Node]:
    """Return the nodes that read or make what float16 cannot hold."""
    found, stack = set(), [value for value in graph.inputs if value.name in unfit]
    for node in graph:
        stack += [value for value in node.outputs if value.name in unfit]
        if node.op_type.startswith("Reduce") and node.op_type not in ("ReduceMax", "ReduceMin"):
            found.add(node)
        for index, value in enumerate(node.inputs):
            array = operators.const_array(value)
            if array is None or array.dtype != np.float32:
                continue
            magnitudes = np.abs(array[np.isfinite(array) & (array != 0)])
            is_scale = node.op_type in operators.PAIR and index == 1
            is_table = node.op_type == "Gather" and array.ndim == 2 and array.shape[1] == 1
            # A scale is multiplied by integers of 8 bits.
            largest = float(magnitudes.max(initial=0)) * (128 if is_scale else 1)
            least = magnitudes.min(initial=1) if is_scale or is_table else largest or 1
            if least < SMALLEST or largest > LARGEST:
                found.add(node)
                single = largest > LARGEST if is_scale else array.size == 1
                stack += node.outputs if single or is_table else ()
    seen: set[ir.Value] = set()
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            made = value.producer()
            found.update(operators.readers(value), () if made is None else (made,))
            stack += [v for n in operators.consumers(value, *_PASSED_ON) for v in n.outputs]
    return found


def converted(model: ir.Model) -> list[str]:
    """Return the values of a float graph that float16 would have to hold, but for constants."""
    _typed_(model)
    graph = model.graph
    kept = _unconverted(graph, None)
    return [
        str(value.name)
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs))
        if value.dtype == _FULL
        and not kept.issuperset(filter(None, (value.producer(), *operators.readers(value))))
    ]


def unfit(largest: Mapping[str, float]) -> dict[str, str]:
    """Return the values that float16 cannot hold → why.

    Args:
        largest: value → its largest magnitude over all calibration rows; float16 has infinity, too.

    Example:
        >>> unfit({"sum": 80002.0, "query": 12.0})
        {'sum': 'reaches 80,002, and float16 ends at 65,504: one binary digit of room is kept'}
    """
    return {
        name: f"reaches {seen:,.0f}, and float16 ends at 65,504: one binary digit of room is kept"
        if seen > 1
        else f"reaches no more than {seen:.1e}, where float16 has few digits or none"
        for name, seen in largest.items()
        if np.isfinite(seen) and not (seen == 0 or SMALLEST <= seen <= LARGEST / MARGIN)
    }


def _tail(graph: ir.Graph, norm: ir.Node) -> set[ir.Node]:
    """Return the pooling and what follows it; without one, the nodes after the last norm, and the nodes that only these read.

    There are none if a product with a weight follows the norm.
    """
    pooling = [node for node in graph if str(node.name).startswith("pooling.")]
    tail = set(pooling)
    stack = [*(pooling or [norm])]
    while stack:
        for reader in operators.consumers(stack.pop().outputs[0]):
            if reader not in tail:
                tail.add(reader)
                stack.append(reader)
    if pooling or any(node.op_type == "MatMul" for node in tail):
        return tail if pooling else set()
    stack = list(tail)
    while stack:
        for value in stack.pop().inputs:
            node = operators.producer(value)
            if node is None or node in tail or node is norm:
                continue
            if all(reader in tail for output in node.outputs for reader, _ in output.uses()):
                tail.add(node)
                stack.append(node)
    return tail


def _convert_constants_(graph: ir.Graph, unconverted: set[ir.Node], short: ir.DataType) -> None:
    """Convert every float32 constant that a converted node reads; it becomes a copy if a float32 node reads it too."""
    for name, value in list(graph.initializers.items()):
        readers = [(node, index) for node, index in value.uses() if node not in unconverted]
        array = operators.const_array(value)
        if array is None or array.dtype != np.float32 or not readers:
            continue
        converted = array.astype(short.numpy())
        if len(readers) == len(value.uses()):
            value.const_value, value.type = ir.tensor(converted, name=name), ir.TensorType(short)
            continue
        copy = operators.initializer(graph, f"{name}.{short.name.lower()}", converted)
        for node, index in readers:
            node.replace_input_with(index, copy)


def _convert_node_(node: ir.Node, short: ir.DataType) -> None:
    """Convert the float32 outputs and attributes of a node.

    Raises:
        ModelError: the type of an output is unknown.
    """
    if node.op_type == "Cast" and node.attributes["to"].value == _FULL:
        node.attributes["to"] = ir.AttrInt64("to", short)
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == _FULL:
            node.attributes[attribute.name] = ir.AttrTensor(
                attribute.name, ir.tensor(attribute.value.numpy().astype(short.numpy()))
            )
    for output in node.outputs:
        if output.dtype is None and output.uses():
            raise ModelError(
                "the type of a value is unknown",
                where=str(output.name),
                fix="export the model again",
            )
        if output.dtype == _FULL:
            output.type = ir.TensorType(short)


def _restore_outputs_(graph: ir.Graph, short: ir.DataType) -> None:
    """Convert the outputs of the graph back to float32, under their names."""
    for index, value in enumerate(graph.outputs):
        if value.dtype == short:
            name = str(value.name)
            value.name = f"{name}.{short.name.lower()}"
            cast = operators.make_node("Cast", [value], name, {"to": _FULL}, shape=None)
            cast.outputs[0].shape = value.shape
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]


def round_(model: ir.Model, unfit: Collection[str] = ()) -> None:
    """Round to float16 whatever `convert_` would make float16, in place, and compute in float32.

    ONNX Runtime has few kernels for float16 on CPUs. It casts around the other operators of a float16 graph, and leaves out
    casts between two of them: what a device rounds is not rounded then, and nothing is infinite.

    Args:
        model: as for `convert_`.
        unfit: values that float16 cannot hold.
    """
    _typed_(model)
    graph = model.graph
    kept = _unconverted(graph, unfit)
    made = [value for node in graph for value in node.outputs]
    for value in (*graph.inputs, *graph.initializers.values(), *made):
        node = value.producer()
        uses = [use for use in value.uses() if (node or use[0]) not in kept or use[0] not in kept]
        if value.dtype == _FULL and uses:
            chain = operators.Chain(graph, str(value.name))
            half = chain.Cast("float16", value, to=_SHORT["float16"], dtype=_SHORT["float16"])
            rounded = chain.Cast("rounded", half, to=_FULL)
            (graph.insert_after if node else graph.insert_before)(node or graph[0], chain.nodes)
            for reader, index in uses:
                reader.replace_input_with(index, rounded)


FLOAT_PARTS = Pass(
    convert_,
    lambda form: (
        {"to": form.float_parts, "unfit": form.unfit} if form.float_parts != "float32" else None
    ),
)
