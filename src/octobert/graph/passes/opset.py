"""Write a graph in another ONNX opset: operators are written as that opset has them, or taken apart.

    LayerNormalization      before 17: in primitive operators, which ONNX Runtime fuses again
    Reduce… over axes       before 18: axes are an attribute
    Split                   before 18: equal parts need no number
    Shape from, to          before 15: Shape and Slice
    16-bit and float16      before 21 and 19: ONNX Runtime's operators of `com.microsoft`, where the target takes that domain
    Q/DQ, and Gelu          the same before 20

All other operators of encoders differ between opsets only in accepted types. Whether an operator exists in an opset, with
its attributes and types, is read from ONNX's own table of operators. Only norms that are taken apart round differently.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.session import WrittenOpset
from octobert.graph import operators, parity
from octobert.graph.passes import Pass

# The range of opsets that recipes may ask for. 13 is the first with Quantize/DequantizeLinear per channel.
LOWEST, HIGHEST = 13, 25
# Where a file says how it was converted.
METADATA = "octobert.opset"
# Relative, for 8-bit graphs whose norms are taken apart, or whose float16 pairs move: sums in another order, and casts that
# ONNX Runtime leaves out on CPUs, move some values to the next of 256 steps.
ROUNDED_TOLERANCE = 0.15
_NORM, _NORM_SINCE = "LayerNormalization", 17
_AXES_SINCE, _SHAPE_SINCE = 18, 15
# Float types that ONNX Runtime's own Quantize/DequantizeLinear take.
_PAIR_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_PAIR_INTEGERS = tuple(
    getattr(ir.DataType, name) for name in ("INT8", "UINT8", "INT16", "UINT16", "INT32")
)
# Attributes that are written in another way before the opset that has them.
_REWRITTEN = {
    "ReduceMean": ("noop_with_empty_axes",),
    "Split": ("num_outputs",),
    "Shape": ("start", "end"),
}


@dataclass(frozen=True)
class Converted:
    """A graph in another opset.

    Args:
        opset: the new one.
        before: the one before.
        norms: LayerNormalization operators that were taken apart.
        moved: operators that were moved to the domain `com.microsoft`.
    """

    opset: int
    before: int
    norms: int
    moved: int


def convert_(
    model: ir.Model, opset: int, *, domains: Collection[str] = (), whole_graph: bool = False
) -> Converted:
    """Write a graph in another opset, in place.

    Args:
        model: any graph that octobert writes.
        opset: of the result.
        domains: operator domains that the target takes besides ONNX's own.
        whole_graph: the target runs integers only, so norms must stay one operator.

    Raises:
        ModelError: the opset cannot hold the graph; the message names the least that can.
    """

    graph, before = model.graph, model.opset_imports[""]
    if opset == before:
        return Converted(opset, before, 0, 0)
    contrib = operators.MICROSOFT in domains
    needs = {
        node: _least(node, contrib=contrib, apart=not whole_graph)
        for node in graph
        if not node.domain
    }
    worst = max(needs, key=needs.__getitem__)
    if needs[worst] > opset:
        raise ModelError(
            f"opset {opset} cannot hold the model",
            where=f"node {worst.name}",
            got=worst.op_type,
            expected=f"opset {needs[worst]} or later",
            fix=f"set opset: {needs[worst]}",
        )
    moved = [node for node in needs if contrib and not _exists(node, opset) and _may_move(node)]
    # Pairs of one graph are in one domain, so that runtimes find both halves.
    if any(node.op_type in operators.PAIR for node in moved):
        moved += [node for node in needs if node.op_type in operators.PAIR and node not in moved]
    for node in moved:
        node.domain = operators.MICROSOFT
        graph.opset_imports.setdefault(operators.MICROSOFT, 1)
    norms = [node for node in needs if node.op_type == _NORM and opset < _NORM_SINCE]
    for node in norms:
        _take_norm_apart_(graph, node)
    for node in list(graph):
        _write_older_(graph, node, opset)
        node.version = None
    graph.opset_imports[""] = opset
    operators.clean_(model)
    return Converted(opset, before, len(norms), len(moved))


def _least(node: ir.Node, *, contrib: bool, apart: bool) -> int:
    """The least opset that a graph with this operator can be written in."""
    for opset in range(LOWEST, HIGHEST + 1):
        if (
            (node.op_type == _NORM and apart)
            or (contrib and _may_move(node))
            or _exists(node, opset)
        ):
            return opset
    return HIGHEST + 1


def _may_move(node: ir.Node) -> bool:
    """Return whether ONNX Runtime has the operator in its own domain."""
    if node.op_type == "Gelu":
        return node.attributes.get_string("approximate", "none") == "none"
    if node.op_type not in operators.PAIR:
        return False
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return all(value.dtype in (*_PAIR_FLOATS, *_PAIR_INTEGERS, None) for value in values)


def _exists(node: ir.Node, opset: int) -> bool:
    """Return whether an opset has the operator, with its attributes, inputs and types, or it can be written so."""
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    rewritten = _REWRITTEN.get(node.op_type, ())
    if any(name not in schema.attributes and name not in rewritten for name in node.attributes):
        return False
    inputs = len(node.inputs) - (
        opset < _AXES_SINCE and _has_axes(node) and len(schema.inputs) == 1
    )
    if inputs > schema.max_input:
        return False
    for index, value in enumerate(node.inputs[:inputs]):
        types = schema.inputs[min(index, len(schema.inputs) - 1)].types
        if value is not None and value.dtype and f"tensor({value.dtype.name.lower()})" not in types:
            return False
    return True


def _has_axes(node: ir.Node) -> bool:
    """Return whether an operator reduces over constant axes that are an input."""
    return (
        node.op_type.startswith("Reduce")
        and len(node.inputs) == 2
        and operators.const_array(node.inputs[1]) is not None
    )


def _write_older_(graph: ir.Graph, node: ir.Node, opset: int) -> None:
    """Write one operator as an older opset has it, in place."""
    if node.domain:
        return
    if node.op_type == "Split" and opset < _AXES_SINCE:
        node.attributes.pop("num_outputs", None)
    if opset < _AXES_SINCE and _has_axes(node) and node.op_type != "ReduceSum":
        axes = operators.constant_of(node.inputs[1])
        node.resize_inputs(1)
        node.attributes["axes"] = ir.AttrInt64s("axes", axes.reshape(-1).tolist())
        node.attributes.pop("noop_with_empty_axes", None)
    if (
        node.op_type == "Shape"
        and opset < _SHAPE_SINCE
        and ("start" in node.attributes or "end" in node.attributes)
    ):
        _slice_shape_(graph, node)


def _slice_shape_(graph: ir.Graph, node: ir.Node) -> None:
    """Write Shape with a start and an end as Shape and Slice."""
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", np.iinfo(np.int32).max)
    ends = [
        operators.shared_initializer(graph, f"octobert.shape.{number}", [number])
        for number in (start, end)
    ]
    chain = operators.Chain(graph, str(node.outputs[0].name), ir.DataType.INT64)
    chain.Slice("", chain.Shape("whole", node.inputs[0]), *ends)
    chain.replace_(node)


def _take_norm_apart_(graph: ir.Graph, node: ir.Node) -> None:
    """Write a LayerNormalization in the primitive operators that ONNX Runtime's optimizer looks for."""
    x, weight, bias = operators.inputs_of(node, 3)
    dtype = operators.input_of(node, 0).dtype or ir.DataType.FLOAT
    axes = [node.attributes.get_int("axis", -1)]
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    chain = operators.Chain(graph, str(node.outputs[0].name), dtype)

    def constant(part: str, value: float) -> ir.Value:
        number = np.array(value, dtype=dtype.numpy())
        return operators.shared_initializer(
            graph, f"octobert.norm.{part}.{dtype.name.lower()}", number
        )

    deviation = chain.Sub("deviation", x, chain.ReduceMean("mean", x, axes=axes))
    square = chain.Pow("square", deviation, constant("two", 2.0))
    variance = chain.ReduceMean("variance", square, axes=axes)
    above_zero = chain.Add("above_zero", variance, constant(f"epsilon_{epsilon:g}", epsilon))
    unit = chain.Div("unit", deviation, chain.Sqrt("divisor", above_zero))
    scaled = chain.Mul("scaled", unit, weight)
    if bias is not None:
        chain.Add("shifted", scaled, bias)
    chain.replace_(node)


def convert_checked_(model: ir.Model, target: WrittenOpset) -> int:
    """Write a graph in another opset, in place, and compare what it computes before and after.

    A description of the conversion is written into the model's metadata, under `METADATA`.

    Returns:
        The number of operators that were written in another form.

    Raises:
        ModelError: the opset cannot hold the graph.
        ParityError: the graph computes something else.
    """
    batches = parity.sample_batches(model)
    try:
        reference = parity.onnx_outputs(model, batches, optimized=False)
    except ModelError:  # types of GPUs, such as bfloat16
        reference = None
    conversion = convert_(
        model, target.opset, domains=target.domains, whole_graph=target.whole_graph
    )
    if conversion.opset == conversion.before:
        return 0
    text = f"from {conversion.before} to {conversion.opset}"
    text += (
        f", {conversion.norms} LayerNormalization in primitive operators"
        if conversion.norms
        else ""
    )
    text += f", {conversion.moved} operators of ONNX Runtime's own" if conversion.moved else ""
    if reference is None:
        model.metadata_props[METADATA] = (
            f"{text}; not compared, because ONNX Runtime does not run it on the CPU"
        )
        return conversion.norms + conversion.moved
    halves = any(
        node.domain and node.outputs[0].dtype == ir.DataType.FLOAT16 for node in model.graph
    )
    tolerance = (
        ROUNDED_TOLERANCE
        if operators.quantizes_activations(model.graph) and (conversion.norms or halves)
        else parity.TOLERANCE
    )
    compared = parity.compare(
        model,
        batches,
        reference,
        f"the graph in opset {conversion.before}",
        what=f"the graph in opset {conversion.opset}",
        fix="please report this model, and use another opset",
        tolerance=tolerance,
        optimized=False,
        padded=False,
    )
    model.metadata_props[METADATA] = (
        f"{text}; largest relative difference of the outputs {compared.largest_difference:.1e}"
    )
    return conversion.norms + conversion.moved


OPSET = Pass(
    convert_checked_, lambda form: {"target": form.opset} if form.opset is not None else None
)
