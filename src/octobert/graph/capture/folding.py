"""Replace values that do not depend on the numbers of the inputs by constants.

A runtime folds linear layers over constants, such as projections of a table of relative positions (DeBERTa), when it loads a
float model. Behind 8-bit weights it cannot, and would project the whole table for every text.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np
import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.capture import shapes


def fold_linears_(model: ir.Model) -> None:
    """Replace the outputs of linear layers over constants by constants, in place."""
    constant: set[ir.Value] = set()
    through_linear: dict[ir.Value, None] = {}
    for node in model.graph:
        inputs = [v for v in node.inputs if v is not None]
        if inputs and all(v in constant or v.const_value is not None for v in inputs):
            constant.update(node.outputs)
            if node.op_type == "MatMul" or any(v in through_linear for v in inputs):
                through_linear.update(dict.fromkeys(node.outputs))
    fold_(model, through_linear, constant, "folded")


def fold_(
    model: ir.Model,
    values: Iterable[ir.Value],
    inside: Container[ir.Value],
    suffix: str,
    size: tuple[int, int] = (1, 2),
) -> None:
    """Replace values by constants of the same name and a suffix, in place, where an operator reads them from outside.

    Args:
        values: they depend on the shapes of the inputs at most.
        inside: the outputs of operators that are gone then.
        size: rows and tokens of the inputs, which are filled with ones.
    """
    ends = [
        value
        for value in values
        if any(node.outputs[0] not in inside for node in operators.readers(value))
    ]
    if not ends:
        return
    with shapes.open_session(model, ends) as session:
        feeds = {value.name: np.ones(size, dtype=np.int64) for value in session.get_inputs()}
        arrays = session.run([str(value.name) for value in ends], feeds)
    for value, array in zip(ends, arrays, strict=True):
        ir.convenience.replace_all_uses_with(
            value, operators.initializer(model.graph, f"{value.name}.{suffix}", array)
        )
    operators.clean_(model)
