"""A report as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octobert.core.plan import Quantizer, QuantPlan
from octobert.core.profile import Lint
from octobert.core.results import Finetuned, Report, Search, Sensitivity, Sweep
from octobert.core.settings import Tuned
from octobert.report import summary


def render(report: Report) -> RenderableType:
    """The result table, the verdicts and the warnings."""
    notes = [Text(f"• {sentence}") for sentence in (*summary.trainings(report), *summary.verdicts(report))]
    notes += [Text(f"! {sentence}", style="yellow") for sentence in summary.warnings(report)]
    timed = [line.timed for line in summary.lines(report)]
    if not report.footprints:
        return Group(Text("Nothing was measured (measure: false)."), *notes)
    more = [scores(report)] if summary.beside(report) != summary.metrics(report) else []
    return Group(quality(report), *more, latency_table(timed, summary.shapes(report.latencies)), *notes)


def quality(report: Report) -> Table:
    """Scores, agreement with float, size and memory of every candidate."""
    lines = summary.lines(report)
    metrics = summary.beside(report)
    title = f"Quality on {report.data.evaluation_rows:,} rows, with 95 % intervals"
    table = Table(title=title, title_justify="left")
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


def lint_table(found: Lint) -> RenderableType:
    """What a target makes of a file: every finding, what it is about, and what to change."""
    verdict = f"{found.target} takes the file" if found.passes else f"{found.target} refuses the file"
    summed = Text(f"{verdict}; {found.integer} of {found.products} matrix products in 8 bits", style="bold")
    if not found.findings:
        return summed
    table = Table()
    for name in ("", "what", "where", "what to change"):
        table.add_column(name)
    for one in found.findings:
        more = f" and {one.count - len(one.nodes)} more" if one.count > len(one.nodes) > 0 else ""
        table.add_row(one.severity, one.text, ", ".join(one.nodes[:2]) + more, one.fix or "")
    return Group(summed, table)


def finetuned(found: Finetuned) -> Table:
    """What a float training came to."""
    trained = found.trained
    title = f"Float model in PyTorch on {found.data.evaluation_rows:,} rows, trained on {found.data.training_rows:,}"
    table = Table(title=title, title_justify="left")
    for name in ("steps", "last loss", *(score.metric for score in found.scores)):
        table.add_column(name, justify="right")
    loss = f"{trained['loss']:.4f}" if "loss" in trained else ""
    table.add_row(str(trained.get("steps", "")), loss, *(summary.score_text(score) for score in found.scores))
    return table


def scores(report: Report) -> Table:
    """Every metric of every candidate, one a row."""
    lines = summary.lines(report)
    table = Table(title="Scores, with 95 % intervals", title_justify="left")
    table.add_column("metric")
    for line in lines:
        table.add_column(line.name, justify="right")
    for metric in summary.metrics(report):
        found = [next((summary.score_text(s) for s in line.scores if s.metric == metric), "") for line in lines]
        table.add_row(metric, *found)
    return table


def latency_table(lines: list[summary.Timed], shapes: list[summary.Shape]) -> Table:
    """p50 / p90 / p99 in ms, rows per second, and the ratio to the float model on the same device."""
    elsewhere = [
        f"The float baseline of {line.name} ran on another device: {line.elsewhere}." for line in lines if line.elsewhere
    ]
    table = Table(
        title="Latency in ms, p50 / p90 / p99 · rows/s · × faster than the float model on the same device",
        title_justify="left",
        caption="\n".join(elsewhere) or None,
        caption_justify="left",
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


def tuned_table(found: Tuned) -> Table:
    """Every candidate of a search for settings, fastest first, and which is kept."""
    kept = "the defaults are kept: nothing was faster beyond doubt"
    if found.ratio < 1.0:
        kept = f"kept: {found.ratio:.3f} × the defaults' time (95 % interval {found.low:.3f} to {found.high:.3f})"
    title = f"Tuned for {found.goal} on {found.rows} rows ({summary.ms(found.default_ms)} ms with the defaults); {kept}"
    table = Table(title=title, title_justify="left")
    for name in ("× defaults' time", "streams", "threads", "tokens a run", "settings"):
        table.add_column(name, justify="left" if name == "settings" else "right")
    for one in sorted(found.tried, key=lambda t: t.ratio or float("inf")):
        setting = one.setting
        settings = ", ".join(f"{name} {value}" for name, value in setting.runtime_options.items()) or "defaults"
        table.add_row(
            f"{one.ratio:.3f}" if one.ratio is not None else "",
            str(setting.streams),
            str(setting.threads or "auto"),
            str(setting.tokens),
            settings if one.problem is None else f"{settings}: {one.problem}",
            style="bold" if setting == found.setting else "",
        )
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


def sensitivity_table(found: Sensitivity, limit: int = 20) -> Table:
    """What the most harmful values cost."""
    title = (
        f"What 8 bits cost, value by value, on {found.rows} rows; all together {found.together:.2e} of the outputs' variance"
    )
    table = Table(title=title, title_justify="left")
    for name in ("value", "what", "own S/N dB", "output error", "share"):
        table.add_column(name, justify="left" if name in ("value", "what") else "right")
    total = sum(one.output_error for one in found.values) or 1.0
    for one in found.values[:limit]:
        noise = "" if one.signal_to_noise_db is None else f"{one.signal_to_noise_db:.1f}"
        table.add_row(one.value, f"{one.role}@{one.part}", noise, f"{one.output_error:.2e}", f"{one.output_error / total:.1%}")
    return table


def trials_table(search: Search) -> Table:
    """Every trial of an accuracy search."""
    table = Table(title=f"Search: {summary.searched(search)}", title_justify="left")
    for name in ("trial", "rows", search.metric, "drop", "met", "saves ms", "s", "not in 8 bits"):
        table.add_column(name, justify="left" if name == "not in 8 bits" else "right")
    for number, trial in enumerate(search.trials, start=1):
        table.add_row(
            str(number),
            str(trial.rows),
            f"{trial.value:.4f}",
            f"{trial.drop:+.4f}",
            "yes" if trial.met else "no",
            f"{trial.saved_ms:.2f}",
            f"{trial.seconds:.1f}",
            ", ".join(trial.fallback) or "nothing",
            style="bold" if trial == search.taken else "",
        )
    return table


def sweep_tables(sweep: Sweep) -> tuple[Table, Table]:
    """Calibrators end to end, best first, and the best of each value."""
    title = (
        f"Calibrators for {sweep.target}, on {sweep.judged_rows} rows that the {sweep.calibration_rows} calibrated ones are not"
    )
    ends = Table(title=title, title_justify="left")
    for name in ("calibrator", "follows float", "output error (RMS)", "best for values"):
        ends.add_column(name, justify="left" if name == "calibrator" else "right")
    usable = [one for one in sweep.swept if one.problem is None]
    best = {}
    for value in sweep.ranges:
        ratios = [(one.signal_to_noise_db[value], one.calibrator) for one in usable if value in one.signal_to_noise_db]
        if ratios:
            best[value] = max(ratios)[1]
    for one in sorted(usable, key=lambda s: s.output_error or 0.0):
        count = sum(name == one.calibrator for name in best.values())
        ends.add_row(one.calibrator, f"{one.agreement:.4f}", f"{one.output_error:.4f}", str(count))
    for one in sweep.swept:
        if one.problem is not None:
            ends.add_row(one.calibrator, one.problem, "", "", style="dim")
    values = Table(title="Signal-to-noise ratio in dB, value by value", title_justify="left")
    for name in ("value", "seen", *(s.calibrator for s in usable)):
        values.add_column(name, justify="left" if name in ("value", "seen") else "right")
    for value, (low, high) in sweep.ranges.items():
        cells = []
        for one in usable:
            text = f"{one.signal_to_noise_db[value]:.1f}" if value in one.signal_to_noise_db else ""
            cells.append(f"[bold]{text}[/bold]" if one.calibrator == best.get(value) else text)
        values.add_row(value, f"[{low:.3g}, {high:.3g}]".replace("[", "\\["), *cells)
    return ends, values


def quantizer_text(quantizer: Quantizer | None) -> str:
    """`uint8 [-0.17, 4.31]`, `int8 symmetric, axis 1`, or `float`."""
    if quantizer is None:
        return "float"
    text = quantizer.dtype + (" symmetric" if quantizer.symmetric else "") + (" dynamic" if quantizer.dynamic else "")
    text += " reduced to 7 bits" if quantizer.reduce_range else ""
    if quantizer.axis is not None:
        text += f", axis {quantizer.axis}"
    if quantizer.low is not None:
        text += f" [{quantizer.low:.4g}, {quantizer.high:.4g}]"
    return text
