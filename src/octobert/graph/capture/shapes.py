"""Measure which axes of every value are batch and sequence, by running the graph at two sizes.

Unlike symbolic shape inference this works for every operator, and it verifies that the graph is dynamic in both axes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError, reason
from octobert.graph import operators

# (rows, tokens): sizes that no fixed axis of a real encoder is likely to have.
_PROBES = ((2, 7), (3, 11))


def measure(model: ir.Model, values: list[ir.Value]) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of values, with "batch" and "sequence" for the axes that follow the inputs.

    Returns:
        value name → shape, such as ("batch", 12, "sequence", "sequence").

    Raises:
        ModelError: the graph does not run at both sizes, so its shapes are fixed.
    """
    names, probed = [str(value.name) for value in values], []

    def refused(rows: int, tokens: int) -> AbstractContextManager[None]:
        what, expected = (
            f"the graph does not run on {rows} rows of {tokens} tokens",
            "a graph with dynamic batch and sequence",
        )
        return session_errors(what, expected=expected, fix="export it with dynamic axes")

    with refused(*_PROBES[0]), open_session(model, values, optimized=False) as session:
        for size in _PROBES:
            with refused(*size):
                feeds = {
                    str(value.name): np.ones(size, dtype=np.int64) for value in model.graph.inputs
                }
                probed.append([result.shape for result in session.run(names, feeds)])
    (batch_1, sequence_1), (batch_2, sequence_2) = _PROBES
    axes = {(batch_1, batch_2): "batch", (sequence_1, sequence_2): "sequence"}
    axes[batch_1 * sequence_1, batch_2 * sequence_2] = "tokens"
    return {
        name: tuple(
            a if a == b else axes.get((a, b), "unknown") for a, b in zip(*both, strict=True)
        )
        for name, *both in zip(names, *probed, strict=True)
    }


def annotate_(model: ir.Model) -> None:
    """Write the measured shape to every value of a graph, in place."""
    values = [v for node in model.graph for v in node.outputs]
    measured = measure(model, values)
    for value in values:
        value.shape = ir.Shape(list(measured[str(value.name)]))


@contextmanager
def session_errors(what: str, *, fix: str, expected: str | None = None) -> Iterator[None]:
    """Turn errors of ONNX Runtime into one sentence; errors of the disk pass as they are.

    Raises:
        ModelError: ONNX Runtime cannot open or run a graph.
    """
    try:
        yield
    except (OSError, ModelError):
        raise
    except Exception as error:  # onnxruntime has no base class for its errors
        raise ModelError(what, got=reason(error, -1), expected=expected, fix=fix) from error


@contextmanager
def open_session(
    model: ir.Model, values: list[ir.Value] | None = None, *, optimized: bool = True
) -> Iterator[Any]:
    """Open a graph in ONNX Runtime on the CPU.

    Args:
        values: the outputs of the session; None for those of the graph.
        optimized: let ONNX Runtime optimize the graph; otherwise it runs every node as written.
    """
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    if not optimized:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / "model.onnx"
        save_with_outputs(model, list(model.graph.outputs) if values is None else values, path)
        yield ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def save_with_outputs(model: ir.Model, values: list[ir.Value], path: Path) -> None:
    """Write `model` with `values` as its only outputs; the model itself stays as it is."""
    outputs = list(model.graph.outputs)
    model.graph.outputs[:] = values
    try:
        operators.save(model, path)
    finally:
        model.graph.outputs[:] = outputs
