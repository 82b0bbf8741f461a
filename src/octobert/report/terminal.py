"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from octobert.core.profile import Lint
from octobert.core.results import Finetuned, Report, Search
from octobert.core.selection import Selection
from octobert.core.settings import Tuned
from octobert.report import choices, summary, times
from octobert.report.reasons import Words
from octobert.report.tables import Column, FittedTable

# Variants of a search that are listed; the report has all.
_LISTED = 20


def render(report: Report) -> RenderableType:
    """Return the tables, sentences and warnings of a run; of a search, what was chosen comes last."""
    found: list[RenderableType] = [
        *notes([*summary.verdicts(report), *summary.trainings(report)], summary.warnings(report)),
        *(chosen(report.choice) if report.choice is not None else ()),
    ]
    if not report.footprints:
        return Group(Text("Nothing was measured (measure: false)."), *found)
    timings = [*(model.timing for model in summary.model_results(report)), *summary.throughputs(report)]
    more = [score_table(report)] if summary.main_metrics(report) != summary.metrics(report) else []
    return Group(quality_table(report), *more, latency_table(timings, times.shapes(report.latencies), precision=False), *found)


def _breakable(figure: str) -> str:
    """A figure that wraps before its interval only."""
    return figure.replace(" [", "\n[")


def notes(sentences: Iterable[str], warnings: Iterable[str]) -> list[Text]:
    """Return sentences as lines, warnings after the others."""
    return [
        *(Text(f"• {sentence}") for sentence in sentences),
        *(Text(f"! {sentence}", style="yellow") for sentence in warnings),
    ]


def table_of(title: str, words: Sequence[str], numbers: Iterable[str] = (), *, keys: int = 1) -> FittedTable:
    """Return an empty table.

    Args:
        title: of the table.
        words: names of the left columns, aligned left.
        numbers: names of the further columns, aligned right.
        keys: number of left columns that say what a row is about.
    """
    left = [Column(name, is_key=index < keys) for index, name in enumerate(words)]
    return FittedTable(title, [*left, *(Column(name, number=True) for name in numbers)])


def quality_table(report: Report) -> FittedTable:
    """Return scores, agreement with float, size and memory of every model."""
    metrics = summary.main_metrics(report)
    title = f"Quality on {report.data.evaluation_rows:,} evaluation rows, with 95 % confidence intervals"
    costs = ("agreement with float", "output error", "file MB", "peak MB", "load ms")
    table = table_of(title, ("model", "precision"), (*metrics, *costs))
    for model in summary.model_results(report):
        scores = {s.metric: _breakable(summary.score_text(s)) for s in model.scores}
        comparison, footprint = model.comparison, model.footprint
        table.add_row(
            model.name,
            model.precision,
            *(scores.get(metric, "") for metric in metrics),
            f"{comparison.fidelity:.4f}" if comparison else "",
            f"{comparison.output_error:.4f}" if comparison else "",
            f"{footprint.size_bytes / 1e6:.1f}",
            f"{footprint.peak_memory_bytes / 1e6:.0f}",
            f"{footprint.load_ms:.0f}",
            style="bold" if model.quantized else "",
        )
    return table


def score_table(report: Report) -> FittedTable:
    """Return every metric of every model, one metric per row."""
    models = summary.model_results(report)
    table = table_of("Scores, with 95 % confidence intervals", ("metric",), [model.name for model in models])
    for metric in summary.metrics(report):
        cells = [next((_breakable(summary.score_text(s)) for s in model.scores if s.metric == metric), "") for model in models]
        table.add_row(metric, *cells)
    return table


def latency_table(
    timings: Sequence[times.Timing], shapes: Sequence[times.TimedShape], *, precision: bool = True
) -> FittedTable:
    """Return statistics in ms, rows and tokens per second, and the speedup over float models, shape by shape.

    Args:
        timings: of each model.
        shapes: parts of the table.
        precision: with a column for the precision of each model.
    """
    threads = ", ".join(dict.fromkeys(str(timing.threads) for timing in timings))
    title = f"Latency in ms ({threads} threads); speedups with 95 % confidence intervals. data: rows of the evaluation data"
    over = ("× float", *(("× fastest float",) if any(timing.fastest for timing in timings) else ()))
    words = ("model", "precision") if precision else ("model",)
    table = table_of(title, words, (*times.SHOWN, "rows/s", "tokens/s", *over))
    elsewhere = [f"The float baseline of {t.name} ran on another device: {t.elsewhere}." for t in timings if t.elsewhere]
    table.caption = "\n".join(elsewhere) or None
    for shape in shapes:
        table.add_row(str(shape), style="bold")
        for timing in timings:
            measured = timing.latencies[shape]
            speedups = [timing.baseline.get(shape), times.strongest(timing).get(shape)][: len(over)]
            table.add_row(
                f"  {timing.name}",
                *((timing.precision,) if precision else ()),
                *(times.ms(measured.statistics_ms[name]) for name in times.SHOWN),
                f"{measured.rows_per_second:.0f}",
                f"{measured.tokens_per_second:.0f}",
                *(_breakable(times.speedup_text(each)) if each else "" for each in speedups),
                style="bold" if timing.quantized else "",
            )
        table.add_section()
    return table


def chosen(choice: Selection) -> list[RenderableType]:
    """Return the table of all candidates, how the search went, and what to use."""
    return [choice_table(choice), *notes(choices.facts(choice), ()), Text(), Text(choice.sentence, style="bold"), Text()]


def choice_table(choice: Selection) -> FittedTable:
    """Return what a search has found out of each variant, the chosen one first."""
    words = Words.of(choice)
    drop = f", drop of {words.name('metric')} on {choice.rows:,} tuning rows [95 %]" if choice.metric else ""
    title = f"Compared with {choice.reference}: time{drop}"
    table = table_of(title, ("variant",), ("rows/s" if choice.goal == "throughput" else "ms",))
    table.columns.append(Column("× f32", number=True, optional=1))
    points = " (points)" if words.in_points(choice.metric or "") else ""
    table.columns += [Column(f"drop{points}", number=True, optional=0 if choice.metric else 9), Column("limits")]
    table.columns += [Column(name, number=True, optional=n) for name, n in (("MB", 3), ("peak MB", 5), ("rows", 4))]
    table.columns.append(Column("why", optional=2))
    listed = choices.in_order(choice, _LISTED)
    for found in listed:
        is_best, figure = found.variant.name == choice.winner, found.drops.get(choice.metric or "")
        speed = choices.speed_of(choice, found)
        table.add_row(
            f"{'→' if is_best else '•' if found.on_frontier else ' '} {found.variant.name}",
            times.ms(speed.value) if speed else "",
            f"{1 / found.ratio.value:.2f}" if found.ratio else "",
            words.drop_cell(choice.metric or "", figure) if figure else "",
            choices.state_of(found),
            *(f"{size / 1e6:.0f}" if size else "" for size in (found.size_bytes, found.peak_memory_bytes)),
            str(found.rows) if found.rows else "",
            found.reason,
            style="bold" if is_best else "",
        )
    more = len(choice.found) - len(listed)
    legend = "→ chosen; • no other is both faster and more accurate"
    table.caption = legend + (f"\nand {more} more: see report.html" if more else "")
    return table


def finetuned(result: Finetuned) -> FittedTable:
    """Return the scores of a float model that was trained."""
    trained = result.trained
    title = (
        f"Float model in PyTorch on {result.data.evaluation_rows:,} evaluation rows, "
        f"trained on {result.data.training_rows:,} rows"
    )
    table = table_of(title, (), ("steps", "final loss", *(score.metric for score in result.scores)))
    loss = f"{trained['loss']:.4f}" if "loss" in trained else ""
    table.add_row(str(trained.get("steps", "")), loss, *(summary.score_text(score) for score in result.scores))
    return table


def tuned_table(result: Tuned) -> FittedTable:
    """Return every setting that a search has timed, the fastest first."""
    decision = "the default setting stays: no other is significantly faster"
    if result.ratio < 1.0:
        decision = f"stored: {result.ratio:.3f} × default time (95 % confidence interval {result.low:.3f} to {result.high:.3f})"
    title = f"Tuned for {result.goal} on {result.rows} rows (default: {times.ms(result.default_ms)} ms); {decision}"
    table = table_of(title, (), ("× default time", "streams", "threads", "tokens per batch"))
    table.add_column("runtime options")
    for tried in sorted(result.tried, key=lambda t: t.ratio or float("inf")):
        setting = tried.setting
        options = ", ".join(f"{name} {value}" for name, value in setting.runtime_options.items()) or "default"
        table.add_row(
            f"{tried.ratio:.3f}" if tried.ratio is not None else "",
            str(setting.streams),
            str(setting.threads or "auto"),
            str(setting.tokens),
            options if tried.problem is None else f"{options}: {tried.problem}",
            style="bold" if setting == result.setting else "",
        )
    return table


def lint_table(result: Lint) -> RenderableType:
    """Return the findings of the linter on a file."""
    verdict = "accepts" if result.passes else "does not accept"
    products = f"{result.integer} of {result.products} matrix products in 8 bits"
    total = Text(f"{result.target} {verdict} the file; {products}", style="bold")
    if not result.findings:
        return total
    table = table_of("", ("severity", "finding", "nodes", "how to fix it"))
    for finding in result.findings:
        more = f" and {finding.count - len(finding.nodes)} more" if finding.count > len(finding.nodes) > 0 else ""
        table.add_row(finding.severity, finding.text, ", ".join(finding.nodes[:2]) + more, finding.fix or "")
    return Group(total, table)


def trials_table(search: Search) -> FittedTable:
    """Return every trial of an accuracy-aware search."""
    columns = ("rows", search.metric, "drop", "met", "saves ms", "s")
    table = table_of(f"Search: {summary.search_text(search)}", (), ("trial", *columns))
    table.add_column("falls back to float")
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


def outcomes_table(rows: Iterable[Mapping[str, str | None]]) -> FittedTable:
    """Return what became of each field of another tool's config.

    Args:
        rows: field, value, verdict, key and note of each (`octobert.importers.outcomes.Outcome`).
    """
    table = table_of("Fields of the config", ("field", "value", "became", "why"))
    for row in rows:
        table.add_row(row["field"] or "", row["value"] or "", row["key"] or row["verdict"] or "", row["note"] or "")
    return table
