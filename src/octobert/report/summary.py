"""A report as rows of a table: what the terminal and the HTML page both show. Reads plain data, computes nothing new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octobert.measure import Comparison, Footprint, Latency, Score
from octobert.recipe import BASELINES

PRECISIONS = {"torch-f32": "PyTorch eager", "ort-f32": "ONNX Runtime", "openvino-f32": "OpenVINO", "openvino-bf16": "OpenVINO"}


@dataclass(frozen=True)
class Shape:
    """A timed shape: rows of a batch × tokens of a row, or rows of the user's data."""

    batch: int
    sequence: int | str

    def __str__(self) -> str:
        return f"{self.batch} × {self.sequence}"


@dataclass(frozen=True)
class Line:
    """One candidate.

    Args:
        speedup: shape → median of the same runtime's float model divided by this median; None for baselines of their own.
    """

    name: str
    title: str
    precision: str
    scores: tuple[Score, ...]
    comparison: Comparison | None
    latencies: dict[Shape, Latency]
    speedup: dict[Shape, float | None]
    footprint: Footprint

    @property
    def quantized(self) -> bool:
        return self.name not in BASELINES


def shapes(report: dict[str, Any]) -> list[Shape]:
    """The timed shapes in order."""
    return list(dict.fromkeys(Shape(one["batch"], one["sequence"]) for one in report["latencies"]))


def lines(report: dict[str, Any]) -> list[Line]:
    """All candidates, baselines first."""
    times: dict[str, dict[Shape, Latency]] = {}
    for one in map(Latency.model_validate, report["latencies"]):
        times.setdefault(one.candidate, {})[Shape(one.batch, one.sequence)] = one
    compared = {c["candidate"]: Comparison.model_validate(c) for c in report["comparisons"]}
    found = []
    for footprint in map(Footprint.model_validate, report["footprints"]):
        name = footprint.candidate
        own = times[name]
        comparison = compared.get(name)
        reference = times.get(comparison.reference) if comparison and name not in BASELINES else None
        ratios = {s: reference[s].percentile_ms(50) / own[s].percentile_ms(50) if reference else None for s in own}
        quantized = name not in BASELINES
        precision = f"int8 + {footprint.precision}" if quantized else footprint.precision
        title = f"octobert {name}" if quantized else PRECISIONS[name]
        scores = tuple(Score.model_validate(s) for s in report["scores"][name])
        found.append(Line(name, title, precision, scores, comparison, own, ratios, footprint))
    return found


def score_text(score: Score) -> str:
    """`0.8186 [0.779, 0.855]`."""
    return f"{score.value:.4f} [{score.low:.3f}, {score.high:.3f}]"


def verdicts(report: dict[str, Any]) -> list[str]:
    """One sentence a target: what 8 bits cost and what they gained."""
    found = []
    for line in lines(report):
        comparison = line.comparison
        if not line.quantized or comparison is None:
            continue
        parts = []
        if comparison.difference is not None:
            parts.append(
                f"{comparison.metric} {comparison.difference:+.4f} against {comparison.reference} "
                f"(95 % interval {comparison.low:+.4f} to {comparison.high:+.4f}, p = {comparison.p_value:.2f})"
            )
        share = comparison.fidelity_name == "agreement"
        parts.append(f"{comparison.fidelity_name} " + (f"{comparison.fidelity:.2%}" if share else f"{comparison.fidelity:.5f}"))
        gains = [f"{ratio:.2f}× at {shape}" for shape, ratio in line.speedup.items() if ratio is not None]
        parts.append("faster by " + ", ".join(gains))
        found.append(f"{line.name}: " + "; ".join(parts) + ".")
    return found


def warnings(report: dict[str, Any]) -> list[str]:
    """What a reader must know before believing the figures."""
    data, found = report["data"], []
    if report["recipe"]["data"].get("allow_leakage") and data.get("leaked_rows"):
        found.append(
            f"{data['leaked_rows']} calibration rows are also evaluated (allow_leakage: true), so the scores are flattered."
        )
    if data.get("dropped_rows"):
        found.append(f"{data['dropped_rows']} rows were left out of calibration because they are also evaluated.")
    cut = max((s["summary"].get("truncated", 0) for n, s in report["stages"].items() if n.startswith("evaluate/")), default=0)
    if cut:
        found.append(f"{cut} evaluated texts were longer than the model takes, and were cut.")
    found += [f"{name} was not measured: {why}." for name, why in report["absent"].items()]
    return found
