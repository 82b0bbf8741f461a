"""Several runs side by side: what their 8-bit models cost and gain, and what differs between the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octobert.core import wording
from octobert.core.environment import PACKAGES
from octobert.core.measurements import TimedShape, score_named, shapes
from octobert.core.results import Report
from octobert.report import summary
from octobert.report.page.runs import Content, Section, ShownRun
from octobert.report.tables import table_of

# Title of a fact on a run → its text. The first few decide whether figures may be compared.
_MODEL, _ROWS, _TASK = "model", "evaluation rows", "task"
_FACTS: dict[str, Callable[[Report], str]] = {
    _MODEL: lambda report: f"{report.recipe['model']} ({report.model_digest[:12]})",
    _ROWS: lambda report: f"{report.data.evaluation_rows:,} of {report.data.source}",
    _TASK: lambda report: report.task.name,
    "octobert": lambda report: report.environment.versions.get("octobert", ""),
    "processor": lambda report: report.environment.cpu,
    "cores": lambda report: str(report.environment.cores),
    "instructions for 8 bits": lambda report: ", ".join(report.environment.features),
    "system": lambda report: report.environment.system,
    "runtimes": lambda report: ", ".join(
        f"{name} {version}"
        for name, version in report.environment.versions.items()
        if name not in PACKAGES
    ),
    "calibration": lambda report: (
        f"{report.ranges.calibrator}, {report.ranges.provenance.samples} texts"
    ),
    "method": lambda report: ", ".join(
        dict.fromkeys(f"{p.method}, {p.placement}" for p in report.plans.values())
    ),
}


def section(runs: Sequence[ShownRun]) -> Section:
    """Tables of all 8-bit models of all runs, a chart of their speedups, and what differs.

    Runs of different tasks or rows are in different tables: nothing says which of their models is better or faster.

    Args:
        runs: two or more.
    """
    groups: dict[tuple[str, ...], list[ShownRun]] = {}
    for run in runs:
        task = run.report.task
        groups.setdefault((task.name, task.primary or "", _FACTS[_ROWS](run.report)), []).append(
            run
        )
    tables = [_table(group) for group in groups.values()]
    facts = {name: [fact(run.report) for run in runs] for name, fact in _FACTS.items()}
    values = {
        "names": [run.name for run in runs],
        "tables": [(table["sentence"], table["table"]) for table in tables],
        "differs": {name: texts for name, texts in facts.items() if len(set(texts)) > 1},
        "same": [name for name, texts in facts.items() if len(set(texts)) == 1 and texts[0]],
        "careful": _careful(facts),
    }
    drawn = [row for table in tables for row in table["rows"] if row["ratio"]]
    data = (
        {"rows": drawn, "raw": [row for run in runs for row in _speedups(run)]} if drawn else None
    )
    return Section(f"{len(runs)} runs side by side", values, data)


def _table(runs: Sequence[ShownRun]) -> Content:
    """The 8-bit models of runs of one task on the same rows: `table`, its `rows` for the chart, and a `sentence` on them."""
    first, shape = runs[0].report, _common_shape(runs)
    rows = [row for run in runs for row in _rows(run, shape)]
    metric = wording.metric_text(first.task.primary or "score")
    table = table_of(f"{first.task.name}: {_FACTS[_ROWS](first)}", ("run", "machine", "model"))
    ms = f"ms (median, {shape})" if shape else "ms (median)"
    names = (f"{metric} [95 % interval]", "minus float", ms, "× its float model", "MB")
    table.add_numbers(dict.fromkeys(names, 0))
    for row in rows:
        at = "" if shape else f" at {row['shape']}"
        figures = (f"{wording.ms(row['ms'])}{at}", row["speedup"], f"{row['mb']:.1f}")
        table.add_row(
            row["run"], row["machine"], row["model"], row["score"], row["difference"], *figures
        )
    return {"table": table, "rows": rows, "sentence": _sentence(rows) if len(runs) > 1 else ""}


def _common_shape(runs: Sequence[ShownRun]) -> TimedShape | None:
    """The first shape that all runs have timed; None where they have none in common."""
    timed = [shapes(run.report.times) for run in runs]
    return next((shape for shape in timed[0] if all(shape in others for others in timed[1:])), None)


def _rows(run: ShownRun, shape: TimedShape | None) -> list[Content]:
    """One row per 8-bit model of a run."""
    report, rows = run.report, []
    for timing in summary.timings(report):
        if not timing.quantized:
            continue
        figures = report.of(timing.name)
        timed_shape = shape or next(iter(timing.latencies))
        speedup, compared = timing.baseline.get(timed_shape), figures.against_float
        score = score_named(report.task.primary, figures.scores)
        assert figures.footprint is not None
        rows.append(
            {
                "run": run.name,
                "machine": f"{report.environment.cpu}, {report.environment.cores} cores",
                "model": timing.name,
                "score": wording.score_text(score) if score else "",
                "difference": f"{compared.difference:+.4f} {wording.interval(compared.low, compared.high, '+.4f')}"
                if compared and compared.difference is not None
                else "",
                "shape": str(timed_shape),
                "ms": timing.latencies[timed_shape].statistics_ms["p50"],
                "reference": speedup.reference if speedup else "",
                "ratio": speedup and [value for _, value in speedup.ratio],
                "speedup": wording.estimate_text(speedup.ratio) if speedup else "",
                "mb": figures.footprint.size_mb,
            }
        )
    return rows


def _sentence(rows: Sequence[Content]) -> str:
    """A sentence on the model that takes the least time and on the one that gains most."""
    if not rows or len({row["shape"] for row in rows}) > 1:
        return ""
    fastest = min(rows, key=lambda row: row["ms"])
    least = f"{wording.ms(fastest['ms'])} ms at {fastest['shape']}"
    sentence = f"{fastest['model']} in {fastest['run']} takes the least time: {least}"
    gains = [row for row in rows if row["ratio"]]
    if not gains:
        return f"{sentence}."
    most = max(gains, key=lambda row: row["ratio"][0])
    place = "It" if most is fastest else f"{most['model']} in {most['run']}"
    return f"{sentence}. {place} gains most over its own float model: {most['speedup']} × {most['reference']}."


def _careful(facts: dict[str, list[str]]) -> str:
    """A warning where figures of different things stand side by side."""
    kinds = {_TASK: "different tasks", _MODEL: "different models", _ROWS: "different rows"}
    different = [kind for name, kind in kinds.items() if len(set(facts[name])) > 1]
    if not different:
        return ""
    return f"The runs are of {' and of '.join(different)}: compare gains within a run, not scores between runs."


def _speedups(run: ShownRun) -> list[list[Any]]:
    """Every measured speedup of a run, for a CSV file."""
    machine = run.report.environment.cpu
    return [
        [run.name, machine, *speedup.model_dump().values()]
        for figures in run.report.models
        for speedup in figures.speedups
    ]
