"""What a report says beside its charts: tables, and sentences in their order. Terminal, page and Markdown show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from octobert.core import wording
from octobert.core.measurements import Comparison, Figures, Score, StoredScore, TimedShape, shapes
from octobert.core.results import AccuracySearch, Report
from octobert.core.selection import Selection
from octobert.report import choices, summary, times
from octobert.report.tables import ReportTable, breakable, table_of
from octobert.report.verdict import Verdict
from octobert.report.words import words_of_choice

# What has the columns and notes that a terminal leaves out.
PAGE = "report.html"
# Variants and trials of a search that a terminal lists.
_LISTED, _TRIALS = 20, 5
_STORED = "Stored vectors, compared with the float model's in float32"
# Which columns of times go first where the terminal is narrow; × float, p50 and p90 stay.
_LATENCY_RANKS = {
    "avg": 9,
    "max": 8,
    "min": 7,
    "precision": 6,
    "tokens/s": 5,
    "p99": 4,
    "rows/s": 3,
    "× fastest float": 1,
}


def tables(report: Report) -> list[ReportTable]:
    """Return the tables of the measured models."""
    return [*quality_tables(report), *([times_table(report)] if report.timed else [])]


def quality_tables(report: Report) -> list[ReportTable]:
    """Return the tables of scores: the main one, every metric where there are many, stored vectors."""
    models = _judged(report)
    if not models:
        return []
    found = [quality_table(report)]
    if summary.main_metrics(report) != summary.metrics(report):
        scores = {name: figures.scores for name, figures in models.items() if figures.scores}
        found.append(score_table(scores))
    compared = {figures.model: figures.against_float for figures in report.models}
    if any(pair is not None and pair.outputs for pair in compared.values()):
        found.append(outputs_table(compared))
    of_classes = [
        pair for pair in report.compared if pair.classes and pair.candidate in report.plans
    ]
    if of_classes:
        found.append(class_table(of_classes))
    if stored := [form for figures in report.models for form in figures.stored]:
        found.append(stored_table(stored))
    return found


def times_table(report: Report) -> ReportTable:
    """Return the times of the measured models."""
    measured = [*summary.timings(report), *summary.throughputs(report)]
    return latency_table(measured, shapes(report.times))


def notes(report: Report, answer: Verdict) -> list[str]:
    """Return the sentences that do not change what the answer means, the most telling first.

    Args:
        answer: which they do not repeat.
    """
    choice = report.choice
    sentences = [
        *([choice.sentence] if choice is not None and choice.sentence else []),
        *summary.outcomes(report),
        *summary.trainings(report),
        *summary.comparisons(report),
        *(choices.facts(choice) if choice is not None else []),
        *summary.limitations(report),
        *summary.exports(report),
    ]
    # Where nothing was measured, the answer is the reason.
    return [sentence for sentence in sentences if sentence != answer.sentence]


def quality_table(report: Report) -> ReportTable:
    """Return scores, agreement with float, size and memory of every model."""
    title = f"Quality on {report.data.evaluation_rows:,} evaluation rows, with 95 % confidence intervals"
    source_bytes = report.model.source_bytes
    weights = (
        f"; the weights of your model have {source_bytes / 1e6:.1f} MB" if source_bytes else ""
    )
    table = table_of(f"{title}{weights}", ("model",))
    table.elsewhere = PAGE
    metrics = summary.main_metrics(report)
    table.add_column("precision", 5)
    table.add_numbers(
        {wording.metric_text(name): 7 if index else 0 for index, name in enumerate(metrics)}
    )
    models = _judged(report)
    ece = any(figures.calibration_error is not None for figures in models.values())
    table.add_numbers({"agreement": 4, "output error": 8, **({"ECE": 5} if ece else {})})
    table.add_numbers({"file MB": 0, "peak MB": 6, "load ms": 9})
    if ece:
        table.caption = "ECE: expected calibration error, how far probabilities are from the share of right answers"
    for name, figures in models.items():
        comparison = figures.against_float
        scores = {score.metric: score for score in figures.scores}
        like = "" if scores else f"as {report.reference}"
        footprint, is_quantized = figures.footprint, figures.speedups or figures.footprint is None
        table.add_row(
            name,
            summary.precision(report, figures),
            *(like or _score(scores.get(metric)) for metric in metrics),
            f"{comparison.fidelity:.4f}" if comparison else "",
            f"{comparison.output_error:.4f}" if comparison else "",
            *((_number(figures.calibration_error),) if ece else ()),
            f"{footprint.size_bytes / 1e6:.1f}" if footprint else "",
            f"{footprint.peak_memory_bytes / 1e6:.0f}" if footprint else "",
            f"{footprint.load_ms:.0f}" if footprint else "",
            style="bold" if is_quantized else "",
        )
    return table


def _judged(report: Report) -> dict[str, Figures]:
    """The models that were measured, and after them those that were simulated, by the names that tables give them."""
    measured = {figures.model: figures for figures, _ in report.timed}
    return measured | {
        f"{figures.model} (simulated)": figures
        for figures in report.models
        if summary.is_simulated(report, figures)
    }


def score_table(scores: Mapping[str, Sequence[Score]]) -> ReportTable:
    """Return every metric of every model, one metric per row.

    Args:
        scores: model → its metrics.
    """
    table = table_of("Scores, with 95 % confidence intervals", ("metric",), scores)
    by_model = [{score.metric: score for score in found} for found in scores.values()]
    for metric in dict.fromkeys(name for found in by_model for name in found):
        table.add_row(
            wording.metric_text(metric), *(_score(found.get(metric)) for found in by_model)
        )
    return table


def _score(score: Score | None) -> str:
    return "" if score is None else breakable(wording.score_text(score))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def class_table(compared: Iterable[Comparison]) -> ReportTable:
    """Return precision, recall and changed answers of each class, the rarest first: float → 8 bits."""
    table = table_of("Classes, the rarest first: float → 8 bits", ("model", "class"), keys=2)
    table.add_numbers({"rows": 0, "precision": 0, "recall": 0, "answers lost": 0, "gained": 0})
    for pair in compared:
        for one in pair.classes:
            table.add_row(
                pair.candidate,
                one.label,
                f"{one.rows:,}",
                f"{one.reference_precision:.3f} → {one.precision:.3f}",
                f"{one.reference_recall:.3f} → {one.recall:.3f}",
                f"{one.lost:,}",
                f"{one.gained:,}",
            )
    return table


def outputs_table(compared: Mapping[str, Comparison | None]) -> ReportTable:
    """Return every output of every model beside the float model's."""
    table = table_of("Outputs beside float", ("model",))
    table.add_column("output")
    table.add_numbers({"relative error": 0, "cosine": 0, "same largest": 0})
    for name, pair in compared.items():
        for one in pair.outputs if pair is not None else ():
            numbers = map(_number, (one.cosine, one.same_largest))
            table.add_row(name, one.output, f"{one.relative_error:.4f}", *numbers)
    return table


def stored_table(stored: Sequence[StoredScore]) -> ReportTable:
    """Return the score of each form of stored vectors against its size."""
    table = table_of(_STORED, ("model",))
    table.add_column("stored as")
    table.add_numbers(
        {"bytes": 0, wording.metric_text(stored[0].metric): 0, "difference from float": 0}
    )
    if any(map(_index_of, stored)):
        table.caption = "float32 of a float model: its vectors of documents stay, and queries are those of the 8-bit model."
    for form in stored:
        table.add_row(
            form.candidate,
            f"{form.type}{_index_of(form)}, {form.dimensions} dimensions",
            str(form.size_bytes),
            f"{form.value:.4f}",
            breakable(wording.change_text(form.difference)),
        )
    return table


def _index_of(form: StoredScore) -> str:
    """Whose index it is, where that is another model's than the one that makes the queries."""
    return f" of {form.documents}" if form.documents not in ("", form.candidate) else ""


def latency_table(
    timings: Sequence[times.Timing],
    shapes: Sequence[TimedShape],
    *,
    elsewhere: str = PAGE,
    every: bool = False,
) -> ReportTable:
    """Return statistics in ms, rows and tokens per second, and the speedup over float models, shape by shape.

    Args:
        timings: of each model.
        shapes: parts of the table.
        elsewhere: what has the columns that are left out.
        every: leave out none.
    """
    threads = wording.threads_text([timing.threads for timing in timings])
    title = f"Latency in ms, {threads}; speedups with 95 % confidence intervals"
    table = table_of(title, ("model",))
    table.elsewhere, table.group = elsewhere, "shape"
    over = ("× float", *(("× fastest float",) if any(timing.fastest for timing in timings) else ()))
    figures = (*times.SHOWN, "rows/s", "tokens/s", *over)
    table.add_column("precision", _LATENCY_RANKS["precision"])
    table.add_numbers({name: _LATENCY_RANKS.get(name, 0) for name in figures})
    for column in table.columns if every else ():
        column.optional = 0
    others = [
        f"The float baseline of {t.name} ran on another device: {t.elsewhere}."
        for t in timings
        if t.elsewhere
    ]
    table.caption = "\n".join(others) or None
    for shape in shapes:
        for timing in timings:
            measured = timing.latencies[shape]
            speedups = [timing.baseline.get(shape), times.strongest(timing).get(shape)][: len(over)]
            table.add_row(
                timing.name,
                timing.precision,
                *(wording.ms(measured.statistics_ms[name]) for name in times.SHOWN),
                f"{measured.rows_per_second:.0f}",
                f"{measured.tokens_per_second:.0f}",
                *(
                    breakable(wording.estimate_text(speedup.ratio)) if speedup else ""
                    for speedup in speedups
                ),
                style="bold" if timing.quantized else "",
                group=str(shape),
            )
    return table


def choice_table(choice: Selection, most: int | None = _LISTED) -> ReportTable:
    """Return what a search has found out of each variant, the chosen one first.

    Args:
        most: so many variants; None for all.
    """
    words, metric = words_of_choice(choice), choice.metric or ""
    drop = (
        f", drop of {words.name('metric')} on {choice.rows:,} tuning rows [95 %]"
        if choice.metric
        else ""
    )
    title = f"Compared with {choice.reference}: time{drop}"
    table = table_of(title, ("variant",), ("rows/s" if choice.goal == "throughput" else "ms",))
    table.elsewhere = PAGE
    points = " (points)" if words.in_points(metric) else ""
    table.add_numbers({"× f32": 1, f"drop{points}": 0 if choice.metric else 9})
    table.add_column("limits")
    table.add_numbers({"MB": 3, "peak MB": 5, "rows": 4})
    table.add_numbers(
        {"time ÷ f32": 10, words.name("metric") or "metric": 11, "rounds": 12, "s": 13}
    )
    table.add_column("why", 2, prose=True)
    listed = choices.in_order(choice, most)
    for result in listed:
        is_best = result.variant.name == choice.winner
        figure, value = result.drops.get(metric), result.values.get(metric)
        speed = choices.speed_of(choice, result)
        table.add_row(
            f"{'→' if is_best else '•' if result.on_frontier else ' '} {result.variant.name}",
            wording.ms(speed.value) if speed else "",
            f"{1 / result.ratio.value:.2f}" if result.ratio else "",
            words.drop_cell(metric, figure) if figure else "",
            choices.state_of(result),
            *(
                f"{size / 1e6:.0f}" if size else ""
                for size in (result.size_bytes, result.peak_memory_bytes)
            ),
            str(result.rows or ""),
            wording.estimate_text(result.ratio, ".3f") if result.ratio else "",
            "" if value is None else f"{value:.4f}",
            str(result.rounds or ""),
            f"{result.seconds:.0f}" if result.seconds else "",
            result.reason,
            style="bold" if is_best else "" if choices.is_admissible(result) else "dim",
        )
    more = len(choice.found) - len(listed)
    legend = "→ chosen; • no other is both faster and more accurate"
    table.caption = legend + (f"\nand {more} more: see report.html" if more else "")
    return table


def trials_table(search: AccuracySearch, *, every: bool = True) -> ReportTable:
    """Return the trials of an accuracy-aware search.

    Args:
        search: to show.
        every: all trials instead of the last ones and the one that was taken.
    """
    table = table_of(
        f"Search: {summary.search_text(search)}",
        (),
        ("trial", wording.metric_text(search.metric), "drop"),
    )
    table.add_column("met")
    table.add_numbers({"saves ms": 0, "rows": 2, "s": 3})
    table.add_column("falls back to float", prose=True)
    last = len(search.trials) if every else _TRIALS
    numbered = list(enumerate(search.trials, start=1))
    shown = [
        (number, trial)
        for number, trial in numbered
        if trial == search.taken or number > len(numbered) - last
    ]
    for number, trial in shown:
        table.add_row(
            str(number),
            f"{trial.value:.4f}",
            f"{trial.drop:+.4f}",
            "yes" if trial.met else "no",
            f"{trial.saved_ms:.2f}",
            str(trial.rows),
            f"{trial.seconds:.1f}",
            _shortened(trial.fallback, every=every),
            style="bold" if trial == search.taken else "",
        )
    left = len(search.trials) - len(shown)
    table.caption = f"and {left} more trials: --all" if left else None
    return table


def _shortened(names: Sequence[str], *, every: bool) -> str:
    """Names, or the first and how many more there are."""
    if every or len(names) < 2:
        return ", ".join(names) or "nothing"
    return f"{names[0]} and {len(names) - 1} more"
