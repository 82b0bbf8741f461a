"""Fold linear layers over constants, such as projections of a table of relative positions (DeBERTa).

A runtime folds them when it loads a float model. Behind 8-bit weights it cannot, and would project the whole table for every
text.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.capture import shapes


def fold_linears_(model: ir.Model) -> None:
    """Replace the outputs of linear layers over constants by constants, in place."""
    graph = model.graph
    constant: set[ir.Value] = set()
    through_linear: dict[ir.Value, None] = {}
    for node in graph:
        inputs = [v for v in node.inputs if v is not None]
        if inputs and all(v in constant or v.const_value is not None for v in inputs):
            constant.update(node.outputs)
            if node.op_type == "MatMul" or any(v in through_linear for v in inputs):
                through_linear.update(dict.fromkeys(node.outputs))
    ends = [v for v in through_linear if any(node.outputs[0] not in constant for node in operators.readers(v))]
    if not ends:
        return
    for value, array in zip(ends, computed(model, ends), strict=True):
        folded = operators.initializer(graph, f"{value.name}.folded", array)
        ir.convenience.replace_all_uses_with(value, folded)
    operators.clean_(model)


def computed(model: ir.Model, values: list[ir.Value], size: tuple[int, int] = (1, 2)) -> list[np.ndarray]:
    """Compute values that depend on the shapes of the inputs at most, not on their numbers.

    Args:
        size: rows and tokens of the inputs, which are filled with ones.
    """
    with shapes.open_session(model, values) as session:
        feeds = {value.name: np.ones(size, dtype=np.int64) for value in session.get_inputs()}
        return list(session.run([str(v.name) for v in values], feeds))
