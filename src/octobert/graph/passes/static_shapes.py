"""Give a graph static shapes: one batch size, one sequence length, and nothing that is computed from a shape.

Compilers for NPUs (OpenVINO's, QNN's) accept static shapes only. Input: a canonical graph with dynamic axes, float or
quantized. Output: the same function at one size, with the shape of every value. Values that depend on shapes alone (positions,
masks of windows, targets of Reshape and Expand) become constants. Quantized weights stay quantized: nothing is folded through
QuantizeLinear or DequantizeLinear.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.graph.capture import folding, shapes
from octobert.graph.passes import Pass

_SHAPES = ("Shape", "Size")


def make_static_(model: ir.Model, *, batch: int, sequence: int) -> int:
    """Give a graph the static shape of `batch` rows of `sequence` tokens, in place.

    Returns:
        The number of operators that are left.

    Raises:
        ModelError: an input has another static shape, the graph does not run at that size, or a shape depends on data.
    """
    graph = model.graph
    _set_inputs_(graph, batch, sequence)
    for node in graph:
        for value in node.outputs:
            value.shape = None
    _fold_(model, batch, sequence)
    # The pass omits large weights, which shape inference does not need. `_require_shapes` checks the result.
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    _require_shapes(graph)
    for node in graph:
        # Targets of Reshape without 0 and -1, which not every compiler supports.
        if node.op_type == "Reshape":
            shape = node.outputs[0].shape
            node.replace_input_with(
                1, operators.reshape_target(graph, shape.numpy() if shape is not None else ())
            )
            node.attributes.pop("allowzero", None)
    operators.clean_(model)
    return len(graph)


def _set_inputs_(graph: ir.Graph, batch: int, sequence: int) -> None:
    static = (batch, sequence)
    for value in graph.inputs:
        shape = value.shape
        if (
            shape is None
            or len(shape) != 2
            or any(isinstance(a, int) and a != b for a, b in zip(shape, static, strict=True))
        ):
            raise ModelError(
                "an input cannot have this static shape",
                where=str(value.name),
                got=str(shape),
                expected=f"[{batch}, {sequence}], or dynamic axes",
                fix="start from the graph with dynamic batch and sequence",
            )
        value.shape = ir.Shape(static)


def _fold_(model: ir.Model, batch: int, sequence: int) -> None:
    """Replace all values that depend on shapes and constants alone by constants."""
    static: dict[ir.Value, None] = {}
    for node in model.graph:
        known = all(v is None or v in static or v.const_value is not None for v in node.inputs)
        if node.op_type in _SHAPES or (known and node.op_type not in operators.PAIR):
            static.update(dict.fromkeys(node.outputs))
    what = f"the graph does not run on {batch} rows of {sequence} tokens"
    with shapes.session_errors(what, fix="choose a length within the model's limit"):
        folding.fold_(model, static, static, "fixed", (batch, sequence))


def _require_shapes(graph: ir.Graph) -> None:
    for node in graph:
        for value in node.outputs:
            known = value.shape is not None and value.shape.is_static()
            if not known and (value.uses() or value in graph.outputs):
                raise ModelError(
                    "the shape of a value depends on data",
                    where=str(value.name),
                    got=f"{node.op_type} → {value.shape if value.shape is not None else 'no shape'}",
                    expected="a shape that follows from batch and sequence",
                    fix="remove the operator, whose output size depends on data",
                )


STATIC = Pass(
    make_static_, lambda form: form.shape.model_dump() if form.shape is not None else None
)
