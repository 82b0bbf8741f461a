"""Make a graph static: one batch size, one length, and nothing left that is computed from a shape.

Compilers for NPUs (OpenVINO's, QNN's) take graphs of fixed shapes only. In: a canonical graph, float or with its 8-bit
operators written, whose axes are dynamic. Out: the same function at one size. What depends on shapes alone (positions, masks
of windows, targets of Reshape and Expand) is computed once and becomes a constant; every value's shape is noted. 8-bit weights
stay 8-bit weights: nothing is folded through a Quantize- or DequantizeLinear.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.graph import operators
from octobert.graph.capture import folding

_SHAPES = ("Shape", "Size")


def fix_shapes_(model: ir.Model, *, batch: int, sequence: int) -> None:
    """Fix a graph to `batch` rows of `sequence` tokens, in place.

    Raises:
        ModelError: an input has another shape already, the graph does not run at that size, or a shape depends on numbers.
    """
    graph = model.graph
    _fix_inputs_(graph, batch, sequence)
    for node in graph:
        for value in node.outputs:
            value.shape = None
    _fold_(model, batch, sequence)
    # Weights are not needed for it, and the pass leaves large ones out; what it cannot infer is found below.
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    _require_shapes(graph)
    _spell_out_reshapes_(graph)
    operators.clean_(model)


def _fix_inputs_(graph: ir.Graph, batch: int, sequence: int) -> None:
    wanted = (batch, sequence)
    for value in graph.inputs:
        shape = value.shape
        fits = shape is not None and len(shape) == len(wanted)
        if not fits or any(isinstance(own, int) and own != one for own, one in zip(shape, wanted, strict=True)):
            raise ModelError(
                "an input cannot have the shape that is wanted",
                where=str(value.name),
                got=str(shape),
                expected=f"[{batch}, {sequence}], or dynamic axes",
                fix="start from the graph with dynamic batch and sequence",
            )
        value.shape = ir.Shape(wanted)


def _fold_(model: ir.Model, batch: int, sequence: int) -> None:
    """Constants in the place of all that depends on shapes and constants alone."""
    graph = model.graph
    fixed: dict[ir.Value, None] = {}
    for node in graph:
        known = all(v is None or v in fixed or v.const_value is not None for v in node.inputs)
        if node.op_type in _SHAPES or (known and node.op_type not in operators.PAIR):
            fixed.update(dict.fromkeys(node.outputs))
    ends = [v for v in fixed if any(reader.outputs[0] not in fixed for reader in operators.readers(v))]
    if not ends:
        return
    try:
        arrays = folding.computed(model, ends, (batch, sequence))
    except Exception as error:  # onnxruntime raises plain Exceptions of its own for every failure
        raise ModelError(
            f"the graph does not run on {batch} rows of {sequence} tokens",
            got=str(error).strip().splitlines()[-1][:300],
            fix="choose a length within the model's limit",
        ) from error
    for value, array in zip(ends, arrays, strict=True):
        ir.convenience.replace_all_uses_with(value, operators.initializer(graph, f"{value.name}.fixed", array))
    operators.clean_(model)


def _require_shapes(graph: ir.Graph) -> None:
    for node in graph:
        for value in node.outputs:
            known = value.shape is not None and value.shape.is_static()
            if not known and (value.uses() or value in graph.outputs):
                raise ModelError(
                    "the shape of a value cannot be fixed",
                    where=str(value.name),
                    got=f"{node.op_type} → {value.shape if value.shape is not None else 'no shape'}",
                    expected="a shape that follows from batch and sequence",
                    fix="leave out the operator, whose output's size depends on numbers",
                )


def _spell_out_reshapes_(graph: ir.Graph) -> None:
    """Targets of Reshape without 0 and -1, which not every compiler reads."""
    for node in graph:
        if node.op_type == "Reshape":
            sizes = node.outputs[0].shape.numpy()
            name = f"shape.{'x'.join(map(str, sizes))}"
            node.replace_input_with(1, operators.shared_initializer(graph, name, np.array(sizes, dtype=np.int64)))
            node.attributes.pop("allowzero", None)
