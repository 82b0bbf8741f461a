"""Which axis of every value is batch, which is sequence: measured, by running the graph at two sizes and comparing.

This replaces symbolic shape inference: it is exact for any operator, and it proves on the way that the graph really is
dynamic in both axes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.graph import operators

# Two batch sizes and two lengths that no axis of a real encoder has by chance: an axis is dynamic if it follows them.
_PROBES = ((2, 7), (3, 11))


def measure(model: ir.Model, values: list[ir.Value]) -> dict[str, tuple[int | str, ...]]:
    """Shapes of values with "batch" and "sequence" where an axis follows the inputs.

    Returns:
        value name → shape, such as ("batch", 12, "sequence", "sequence").

    Raises:
        ModelError: the graph does not run at both sizes, so its shapes are fixed.
    """
    first, second = _probed_shapes(model, values)
    (batch_1, sequence_1), (batch_2, sequence_2) = _PROBES
    names = {(batch_1, batch_2): "batch", (sequence_1, sequence_2): "sequence"}
    names[batch_1 * sequence_1, batch_2 * sequence_2] = "tokens"
    return {
        name: tuple(a if a == b else names.get((a, b), "unknown") for a, b in zip(first[name], second[name], strict=True))
        for name in first
    }


def annotate_(model: ir.Model) -> None:
    """Note the measured shape on every value of a graph."""
    values = [v for node in model.graph for v in node.outputs]
    measured = measure(model, values)
    for value in values:
        value.shape = ir.Shape(list(measured[str(value.name)]))


def _probed_shapes(model: ir.Model, values: list[ir.Value]) -> list[dict[str, tuple[int, ...]]]:
    """Shapes of values at both probes."""
    import onnxruntime as ort

    inputs, names = [str(v.name) for v in model.graph.inputs], [str(v.name) for v in values]
    found, at = [], _PROBES[0]
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / "probe.onnx"
        save_with_outputs(model, values, path)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        try:
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for at in _PROBES:
                results = session.run(names, {name: np.ones(at, dtype=np.int64) for name in inputs})
                found.append({name: result.shape for name, result in zip(names, results, strict=True)})
        except Exception as error:  # onnxruntime raises plain Exceptions of its own for every failure
            raise ModelError(
                f"the graph does not run on {at[0]} rows of {at[1]} tokens",
                got=str(error).strip().splitlines()[-1][:300],
                expected="a graph with dynamic batch and sequence",
                fix="export it with dynamic axes",
            ) from error
    return found


def save_with_outputs(model: ir.Model, values: list[ir.Value], path: Path) -> None:
    """Write `model` with `values` as its only outputs; the model itself is unchanged."""
    kept = list(model.graph.outputs)
    model.graph.outputs[:] = values
    try:
        operators.save(model, path)
    finally:
        model.graph.outputs[:] = kept
