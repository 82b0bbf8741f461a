"""Several runs side by side: what their 8-bit models cost and gain, and what differs between the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octobert.core.environment import PACKAGES
from octobert.core.results import Report
from octobert.report import summary, times
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

# What is said of a run → how it reads. The first few decide whether figures may be compared.
_MODEL, _ROWS = "model", "evaluation rows"
_FACTS: dict[str, Callable[[Report], str]] = {
    _MODEL: lambda report: f"{report.recipe['model']} ({report.model_digest[:12]})",
    _ROWS: lambda report: f"{report.data.evaluation_rows:,} of {report.data.source}",
    "task": lambda report: report.task.name,
    "octobert": lambda report: report.environment.versions.get("octobert", ""),
    "processor": lambda report: report.environment.cpu,
    "cores": lambda report: str(report.environment.cores),
    "instructions for 8 bits": lambda report: ", ".join(report.environment.features),
    "system": lambda report: report.environment.system,
    "runtimes": lambda report: _runtimes(report),
    "calibration": lambda report: f"{report.ranges.calibrator}, {report.ranges.provenance.samples} texts",
    "method": lambda report: ", ".join(dict.fromkeys(f"{p.method}, {p.placement}" for p in report.plans.values())),
}


def section(runs: Sequence[Run]) -> Section:
    """The table of all 8-bit models of all runs, a chart of their speedups, and what differs.

    Args:
        runs: two or more.
    """
    shape = _common_shape(runs)
    rows = [row for run in runs for row in _rows(run, shape)]
    facts = {name: [fact(run.report) for run in runs] for name, fact in _FACTS.items()}
    values = {
        "names": [run.name for run in runs],
        "rows": rows,
        "shape": shape,
        "metric": _shared([run.report.task.primary or "" for run in runs]),
        "differs": {name: found for name, found in facts.items() if len(set(found)) > 1},
        "same": [name for name, found in facts.items() if len(set(found)) == 1 and found[0]],
        "sentence": _sentence(rows),
        "careful": _careful(facts),
    }
    drawn = [row for row in rows if row["ratio"]]
    data = {"rows": drawn, "raw": [each for run in runs for each in _speedups(run)]} if drawn else None
    return Section(f"{len(runs)} runs side by side", values, data)


def _common_shape(runs: Sequence[Run]) -> times.TimedShape | None:
    """The first shape that all runs have timed; None where they have none in common."""
    timed = [times.shapes(run.report.latencies) for run in runs]
    return next((shape for shape in timed[0] if all(shape in others for others in timed[1:])), None)


def _rows(run: Run, shape: times.TimedShape | None) -> list[dict[str, Any]]:
    """One row per 8-bit model of a run."""
    report, rows = run.report, []
    for model in summary.model_results(report):
        if not model.quantized:
            continue
        own = shape or next(iter(model.timing.latencies))
        speedup = model.timing.baseline.get(own)
        score = next((each for each in model.scores if each.metric == report.task.primary), None)
        compared = model.comparison
        rows.append(
            {
                "run": run.name,
                "machine": f"{report.environment.cpu}, {report.environment.cores} cores",
                "model": model.name,
                "score": summary.score_text(score) if score else "",
                "difference": _difference(compared.difference, compared.low, compared.high) if compared else "",
                "shape": str(own),
                "ms": model.timing.latencies[own].statistics_ms["p50"],
                "reference": speedup.reference if speedup else "",
                "ratio": speedup and [speedup.ratio, speedup.low, speedup.high],
                "speedup": times.speedup_text(speedup) if speedup else "",
                "mb": model.footprint.size_bytes / 1e6,
            }
        )
    return rows


def _difference(value: float | None, low: float | None, high: float | None) -> str:
    return "" if value is None else f"{value:+.4f} {summary.interval(low, high, '+.4f')}"


def _sentence(rows: Sequence[dict[str, Any]]) -> str:
    """Which model takes the least time, and which gains most."""
    if not rows or len({row["shape"] for row in rows}) > 1:
        return ""
    fastest = min(rows, key=lambda row: row["ms"])
    sentence = (
        f"{fastest['model']} in {fastest['run']} takes the least time: {times.ms(fastest['ms'])} ms at {fastest['shape']}"
    )
    gains = [row for row in rows if row["ratio"]]
    if not gains:
        return f"{sentence}."
    most = max(gains, key=lambda row: row["ratio"][0])
    place = "It" if most is fastest else f"{most['model']} in {most['run']}"
    return f"{sentence}. {place} gains most over its own float model: {most['speedup']} × {most['reference']}."


def _careful(facts: dict[str, list[str]]) -> str:
    """A warning where figures of different things stand side by side."""
    different = [name for name in (_MODEL, _ROWS) if len(set(facts[name])) > 1]
    if not different:
        return ""
    kinds = {_MODEL: "different models", _ROWS: "different rows"}
    what = " and of ".join(kinds[name] for name in different)
    return f"The runs are of {what}: compare gains within a run, not scores between runs."


def _speedups(run: Run) -> list[list[Any]]:
    """Every measured speedup of a run, for a CSV file."""
    machine = run.report.environment.cpu
    return [[run.name, machine, *each.model_dump().values()] for each in run.report.speedups]


def _runtimes(report: Report) -> str:
    versions = report.environment.versions.items()
    return ", ".join(f"{name} {version}" for name, version in versions if name not in PACKAGES)


def _shared(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else "main metric"
