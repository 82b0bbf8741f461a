"""Compute once what depends on no input: linear layers over constants, such as projections of a table of relative positions.

A runtime would do the same when it loads the model, but only as long as the weights are float; behind 8-bit weights the
projection of a table, longer than most texts, would be computed for every text.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.capture import shapes


def fold_linears_(model: ir.Model) -> None:
    """Replace what linear layers make of constants by its value, in place."""
    graph = model.graph
    constant: set[ir.Value] = set()
    through_linear: set[ir.Value] = set()
    for node in graph:
        inputs = [v for v in node.inputs if v is not None]
        if inputs and all(v in constant or v.const_value is not None for v in inputs):
            constant.update(node.outputs)
            if node.op_type == "MatMul" or through_linear.intersection(inputs):
                through_linear.update(node.outputs)
    ends = [v for v in through_linear if any(node.outputs[0] not in constant for node in operators.readers(v))]
    if not ends:
        return
    for value, array in zip(ends, computed(model, ends), strict=True):
        folded = operators.initializer(graph, f"{value.name}.folded", array)
        ir.convenience.replace_all_uses_with(value, folded)
    operators.clean_(model)


def computed(model: ir.Model, values: list[ir.Value], size: tuple[int, int] = (1, 2)) -> list[np.ndarray]:
    """What values are that depend on no input's numbers, in a graph that is given `size` rows and tokens of ones."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / "constants.onnx"
        shapes.save_with_outputs(model, values, path)
        settings = ort.SessionOptions()
        settings.log_severity_level = 4
        session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        feeds = {one.name: np.ones(size, dtype=np.int64) for one in session.get_inputs()}
        return session.run([str(v.name) for v in values], feeds)
