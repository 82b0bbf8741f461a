"""A report as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octobert.plan import Quantizer, QuantPlan
from octobert.report import summary
from octobert.results import Report


def render(report: Report) -> RenderableType:
    """The result table, the verdicts and the warnings."""
    notes = [Text(f"• {sentence}") for sentence in summary.verdicts(report)]
    notes += [Text(f"! {sentence}", style="yellow") for sentence in summary.warnings(report)]
    timed = [line.timed for line in summary.lines(report)]
    return Group(quality(report), latency_table(timed, summary.shapes(report.latencies)), *notes)


def quality(report: Report) -> Table:
    """Scores, agreement with float, size and memory of every candidate."""
    lines = summary.lines(report)
    metrics = list(dict.fromkeys(s.metric for line in lines for s in line.scores))
    table = Table(title="Quality, with 95 % intervals", title_justify="left")
    table.add_column("model")
    table.add_column("precision")
    for metric in metrics:
        table.add_column(metric, justify="right")
    for column in ("follows its float", "output error", "file MB", "peak MB", "load ms"):
        table.add_column(column, justify="right")
    for line in lines:
        scores = {s.metric: summary.score_text(s) for s in line.scores}
        comparison, footprint = line.comparison, line.footprint
        table.add_row(
            line.name,
            line.precision,
            *(scores.get(m, "") for m in metrics),
            f"{comparison.fidelity:.4f}" if comparison else "",
            f"{comparison.output_error:.4f}" if comparison else "",
            f"{footprint.size_bytes / 1e6:.1f}",
            f"{footprint.peak_memory_bytes / 1e6:.0f}",
            f"{footprint.load_ms:.0f}",
            style="bold" if line.quantized else "",
        )
    return table


def latency_table(lines: list[summary.Timed], shapes: list[summary.Shape]) -> Table:
    """p50 / p90 / p99 in ms, rows per second, and the ratio to the same runtime in float."""
    table = Table(
        title="Latency in ms, p50 / p90 / p99 · rows/s · × faster than float on the same runtime", title_justify="left"
    )
    table.add_column("model")
    table.add_column("precision")
    table.add_column("threads", justify="right")
    for shape in shapes:
        table.add_column(str(shape), justify="right")
    for line in lines:
        cells = []
        for shape in shapes:
            one, ratio = line.latencies[shape], line.speedup[shape]
            p50, p90, p99 = (one.percentile_ms(p) for p in (50, 90, 99))
            faster = f" · {ratio:.2f}×" if ratio is not None else ""
            cells.append(f"{summary.ms(p50)} / {summary.ms(p90)} / {summary.ms(p99)} · {one.rows_per_second:.0f}{faster}")
        table.add_row(line.name, line.precision, str(line.threads), *cells, style="bold" if line.quantized else "")
    return table


def plan_table(plan: QuantPlan) -> Table:
    """Every module of a plan: what is 8-bit, what is float and why."""
    table = Table(title=f"Plan for {plan.target}: {plan.method}, placement {plan.placement}", title_justify="left")
    for name in ("layer", "module", "what", "as", "why"):
        table.add_column(name)
    for decision in plan.decisions:
        site = decision.site
        table.add_row(
            "" if site.layer is None else str(site.layer),
            site.module,
            site.role,
            quantizer_text(decision.quantizer),
            decision.reason,
            style="" if decision.quantizer else "dim",
        )
    return table


def quantizer_text(quantizer: Quantizer | None) -> str:
    """`uint8 [-0.17, 4.31]`, `int8 symmetric, axis 1`, or `float`."""
    if quantizer is None:
        return "float"
    text = quantizer.dtype + (" symmetric" if quantizer.symmetric else "")
    if quantizer.axis is not None:
        text += f", axis {quantizer.axis}"
    if quantizer.low is not None:
        text += f" [{quantizer.low:.4g}, {quantizer.high:.4g}]"
    return text
