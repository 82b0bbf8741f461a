"""Graphs of tiny models: rows to observe, ranges, plans, sessions without optimizations, and how far outputs are apart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from octobert import targets
from octobert.core.capability import Capabilities
from octobert.core.family import EncoderFamily
from octobert.core.plan import QuantPlan, Site
from octobert.core.ranges import Interval, Ranges, TensorStatistics
from octobert.core.session import read_outputs
from octobert.data.encoded import Encoded
from octobert.graph import operators, qdq, sites
from octobert.graph.capture.capture import Captured
from octobert.graph.passes import first_token
from octobert.quantization import observer
from octobert.quantization.calibrators.minmax import MinMax
from octobert.quantization.methods.static import Static
from tests.support.checkpoints import batch, exact_method

# What random weights give for calibration and for the outputs alike, so that nothing is clipped.
LENGTHS = (9, 4, 13, 30, 7, 22)
# Batches for comparisons of graphs: one token, one row, rows with padding.
BATCHES = ((1,), (7,), (16, 9, 2))
# Relative to the largest output. The same float32 operators in the same order, but for constants that were computed by
# fused kernels; in 8 bits such a last digit may move a value to the next of 256 steps, and none here does.
SAME = 2e-6
# Relative to the largest output: float32 sums of the same numbers; a kernel may add those of one row in another order
# (measured up to 2.7e-6).
REORDERED = 5e-6


def encoded(lengths: tuple[int, ...] = LENGTHS) -> list[Encoded]:
    """Random rows without padding."""
    generator = np.random.default_rng(1)
    return [
        Encoded(generator.integers(4, 90, n), np.zeros(n, dtype=np.int64), False) for n in lengths
    ]


def sites_of(captured: Captured) -> tuple[Site, ...]:
    """The places in a captured graph that can be quantized."""
    return sites.find_sites(captured.model.graph, captured.family)


def statistics_of(path: Path, placed: tuple[Site, ...]) -> dict[str, TensorStatistics]:
    """Observe every activation."""
    return observer.observe(
        path, encoded(), 0, sorted({site.value for site in placed if not site.is_weight})
    )


def ranges(intervals: dict[str, Interval]) -> Ranges:
    """Ranges of calibrator minmax."""
    provenance = {
        "samples": 1,
        "tokens": 1,
        "data_digest": "",
        "model_digest": "",
        "source": "test",
    }
    return Ranges(calibrator="minmax", options={}, intervals=intervals, provenance=provenance)


def ranges_of(statistics: dict[str, TensorStatistics]) -> Ranges:
    """Minima and maxima as they were observed."""
    return ranges({name: MinMax().interval(each) for name, each in statistics.items()})


def ranges_for(placed: tuple[Site, ...], low: float = -4.0, high: float = 4.0) -> Ranges:
    """The same range for every activation."""
    interval = Interval(low=low, high=high, bound=max(-low, high))
    return ranges({site.value: interval for site in placed if not site.is_weight})


def capabilities(target: str) -> Capabilities:
    """What a target can compute."""
    return targets.load(target).capabilities


def plan_for(
    model: ir.Model, family: EncoderFamily, target: str = "ort-cpu", **options: Any
) -> QuantPlan:
    """A static plan with the same range for every activation."""
    placed = sites.find_sites(model.graph, family)
    return exact_method(Static, target, **options).plan(
        placed, ranges_for(placed), capabilities(target)
    )


def plain_session(path: Path) -> ort.InferenceSession:
    """ONNX Runtime with graph optimizations off: it computes what is written, operator by operator."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), settings)


def outputs_of(path: Path, *feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The first output of a plain session that octobert reads, of several batches one behind the other."""
    session = plain_session(path)
    outputs = read_outputs([output.name for output in session.get_outputs()])
    names = [port.name for port in session.get_inputs()]
    return np.concatenate(
        [session.run(outputs[:1], {name: each[name] for name in names})[0] for each in feeds]
    )


def outputs_on_batches(model: ir.Model, folder: Path, pad_id: int) -> list[np.ndarray]:
    """All outputs of a plain session for `BATCHES`."""
    import onnx

    path = folder / "model.onnx"
    operators.save(model, path)
    onnx.checker.check_model(str(path))
    session = plain_session(path)
    names = [each.name for each in session.get_inputs()]
    feeds = [batch(list(lengths), pad_id=pad_id) for lengths in BATCHES]
    return [
        output
        for each in feeds
        for output in session.run(None, {name: each[name] for name in names})
    ]


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Root of the mean square of the difference, relative to that of `theirs`."""
    return float(np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2)))


def largest_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest number of `theirs`."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def operator_counts(model: ir.Model) -> Counter[str]:
    """Operator type → number of nodes."""
    return Counter(node.op_type for node in model.graph)


def constant(model: ir.Model, name: str) -> np.ndarray:
    """The value of an initializer."""
    return model.graph.initializers[name].const_value.numpy()


def sliced(model: ir.Model) -> tuple[ir.Model, int]:
    """A copy that computes the last layer for the first token only, and the number of products that were cut."""
    copy = model.clone()
    return copy, first_token.slice_first_token_(copy)


def assert_static(model: ir.Model) -> None:
    """Every value has a shape of numbers, and no operator asks for a shape or takes a computed one."""
    graph = model.graph
    values = [
        *graph.inputs,
        *(v for node in graph for v in node.outputs if v.uses() or v in graph.outputs),
    ]
    assert [v.name for v in values if v.shape is None or not v.shape.is_static()] == []
    left = {"Shape", "Size", "Range", "ConstantOfShape", "NonZero"} & set(operator_counts(model))
    assert not left
    for node in graph:
        if node.op_type in ("Reshape", "Expand"):
            assert operators.const_array(node.inputs[1]).min() > 0, node.name


def written(source: Path, plan: QuantPlan, path: Path) -> ir.Model:
    """Write a plan into a copy of a graph and save it."""
    model = ir.load(source)
    qdq.write(model, plan)
    operators.save(model, path)
    return model
