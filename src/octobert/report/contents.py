"""What a report says beside its charts: tables, and sentences in their order. Terminal, page and Markdown show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from octobert.core import wording
from octobert.core.measurements import (
    Comparison,
    Figures,
    Score,
    Speedup,
    StoredScore,
    TimedShape,
    score_named,
    shapes,
)
from octobert.core.results import AccuracySearch, Report
from octobert.core.selection import Selection, VariantResult
from octobert.report import choices, summary, times
from octobert.report.tables import ReportTable, breakable, key, number, table_of, word
from octobert.report.verdict import Verdict
from octobert.report.words import words_of_choice

# What has the columns and notes that a terminal leaves out.
PAGE = "report.html"
# Variants and trials of a search that a terminal lists.
_LISTED, _TRIALS = 20, 5
_STORED = "Stored vectors, compared with the float model's in float32"
# Which statistics go first where the terminal is narrow; p50 and p90 stay.
_RANKS = {"avg": 9, "max": 8, "min": 7, "p99": 4}


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
    models, main = _judged(report), summary.main_metrics(report)
    table = ReportTable(f"{title}{weights}", [], elsewhere=PAGE)
    if any(figures.calibration_error is not None for figures in models.values()):
        table.caption = "ECE: expected calibration error, how far probabilities are from the share of right answers"

    def score(metric: str) -> Callable[[Any], str]:
        """A metric of a model; its float model's where it has none of its own."""
        return lambda m: (
            _score(score_named(metric, m[1].scores)) if m[1].scores else f"as {report.reference}"
        )

    return table.fill(
        models.items(),
        key("model", lambda m: m[0]),
        word("precision", lambda m: summary.precision(report, m[1]), 5),
        *(
            number(wording.metric_text(name), score(name), 7 if n else 0)
            for n, name in enumerate(main)
        ),
        number("agreement", lambda m: _of(m[1].against_float, "{0.fidelity:.4f}"), 4),
        number("output error", lambda m: _of(m[1].against_float, "{0.output_error:.4f}"), 8),
        number("ECE", lambda m: _of(m[1].calibration_error, "{:.4f}"), 5),
        number("file MB", lambda m: _of(m[1].footprint, "{0.size_mb:.1f}")),
        number("peak MB", lambda m: _of(m[1].footprint, "{0.peak_memory_mb:.0f}"), 6),
        number("load ms", lambda m: _of(m[1].footprint, "{0.load_ms:.0f}"), 9),
        style=lambda m: "bold" * bool(m[1].speedups or m[1].footprint is None),
    )


def _of(value: Any, form: str) -> str:
    """A value as text; nothing for one that is not known."""
    return "" if value is None else form.format(value)


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


def class_table(compared: Iterable[Comparison]) -> ReportTable:
    """Return precision, recall and changed answers of each class, the rarest first: float → 8 bits."""
    return ReportTable("Classes, the rarest first: float → 8 bits", []).fill(
        ((pair.candidate, one) for pair in compared for one in pair.classes),
        key("model", lambda m: m[0]),
        key("class", lambda m: m[1].label),
        number("rows", lambda m: f"{m[1].rows:,}"),
        number("precision", lambda m: f"{m[1].reference_precision:.3f} → {m[1].precision:.3f}"),
        number("recall", lambda m: f"{m[1].reference_recall:.3f} → {m[1].recall:.3f}"),
        number("answers lost", lambda m: f"{m[1].lost:,}"),
        number("gained", lambda m: f"{m[1].gained:,}"),
    )


def outputs_table(compared: Mapping[str, Comparison | None]) -> ReportTable:
    """Return every output of every model beside the float model's."""
    return ReportTable("Outputs beside float", []).fill(
        ((name, one) for name, pair in compared.items() for one in (pair.outputs if pair else ())),
        key("model", lambda m: m[0]),
        word("output", lambda m: m[1].output),
        number("relative error", lambda m: f"{m[1].relative_error:.4f}"),
        number("cosine", lambda m: _of(m[1].cosine, "{:.4f}")),
        number("same largest", lambda m: _of(m[1].same_largest, "{:.4f}")),
    )


def stored_table(stored: Sequence[StoredScore]) -> ReportTable:
    """Return the score of each form of stored vectors against its size."""
    table = ReportTable(_STORED, [])
    if any(map(_index_of, stored)):
        table.caption = "float32 of a float model: its vectors of documents stay, and queries are those of the 8-bit model."
    return table.fill(
        stored,
        key("model", lambda form: form.candidate),
        word(
            "stored as",
            lambda form: f"{form.type}{_index_of(form)}, {form.dimensions} dimensions",
        ),
        number("bytes", lambda form: str(form.size_bytes)),
        number(wording.metric_text(stored[0].metric), lambda form: f"{form.value:.4f}"),
        number(
            "difference from float", lambda form: breakable(wording.change_text(form.difference))
        ),
    )


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
    others = [
        f"The float baseline of {t.name} ran on another device: {t.elsewhere}."
        for t in timings
        if t.elsewhere
    ]
    table = ReportTable(title, [], "\n".join(others) or None, elsewhere, "shape")

    def statistic(name: str) -> Callable[[Any], str]:
        return lambda m: wording.ms(m[0].latencies[m[1]].statistics_ms[name])

    def over(speedup: Speedup | None) -> str:
        return breakable(wording.estimate_text(speedup.ratio)) if speedup else ""

    columns = [
        word("precision", lambda m: m[0].precision, 6),
        *(number(name, statistic(name), _RANKS.get(name, 0)) for name in times.SHOWN),
        number("rows/s", lambda m: f"{m[0].latencies[m[1]].rows_per_second:.0f}", 3),
        number("tokens/s", lambda m: f"{m[0].latencies[m[1]].tokens_per_second:.0f}", 5),
        number("× float", lambda m: over(m[0].baseline.get(m[1]))),
    ]
    if any(timing.fastest for timing in timings):
        columns.append(
            number("× fastest float", lambda m: over(times.strongest(m[0]).get(m[1])), 1)
        )
    return table.fill(
        [(timing, shape) for shape in shapes for timing in timings],
        key("model", lambda m: m[0].name),
        *(replace(column, optional=0) if every else column for column in columns),
        style=lambda m: "bold" * m[0].quantized,
        group=lambda m: str(m[1]),
    )


def choice_table(choice: Selection, most: int | None = _LISTED) -> ReportTable:
    """Return what a search has found out of each variant, the chosen one first.

    Args:
        most: so many variants; None for all.
    """
    words, metric = words_of_choice(choice), choice.metric or ""
    name = words.name("metric")
    drop = f", drop of {name} on {choice.rows:,} tuning rows [95 %]" if metric else ""
    points = " (points)" if words.in_points(metric) else ""
    listed = choices.in_order(choice, most)
    more = len(choice.found) - len(listed)
    legend = "→ chosen; • no other is both faster and more accurate"
    table = ReportTable(
        f"Compared with {choice.reference}: time{drop}",
        [],
        legend + (f"\nand {more} more: see report.html" if more else ""),
        PAGE,
    )

    def marked(result: VariantResult) -> str:
        sign = "→" if result is choice.best else "•" if result.on_frontier else " "
        return f"{sign} {result.variant.name}"

    def speed(result: VariantResult) -> str:
        found = choices.speed_of(choice, result)
        return wording.ms(found.value) if found else ""

    return table.fill(
        listed,
        key("variant", marked),
        number("rows/s" if choice.goal == "throughput" else "ms", speed),
        number("× f32", lambda r: f"{1 / r.ratio.value:.2f}" if r.ratio else "", 1),
        number(
            f"drop{points}",
            lambda r: words.drop_cell(metric, r.drops[metric]) if metric in r.drops else "",
        ),
        word("limits", choices.state_of),
        number("MB", lambda r: f"{r.size_bytes / 1e6:.0f}" if r.size_bytes else "", 3),
        number(
            "peak MB",
            lambda r: f"{r.peak_memory_bytes / 1e6:.0f}" if r.peak_memory_bytes else "",
            5,
        ),
        number("rows", lambda r: str(r.rows or ""), 4),
        number(
            "time ÷ f32", lambda r: wording.estimate_text(r.ratio, ".3f") if r.ratio else "", 10
        ),
        number(name or "metric", lambda r: _of(r.values.get(metric), "{:.4f}"), 11),
        number("rounds", lambda r: str(r.rounds or ""), 12),
        number("s", lambda r: f"{r.seconds:.0f}" if r.seconds else "", 13),
        word("why", lambda r: r.reason, 2, prose=True),
        style=lambda r: "bold" if r is choice.best else "" if choices.is_admissible(r) else "dim",
    )


def trials_table(search: AccuracySearch, *, every: bool = True) -> ReportTable:
    """Return the trials of an accuracy-aware search.

    Args:
        search: to show.
        every: all trials instead of the last ones and the one that was taken.
    """
    last = len(search.trials) if every else _TRIALS
    numbered = list(enumerate(search.trials, start=1))
    shown = [
        (place, trial)
        for place, trial in numbered
        if trial == search.taken or place > len(numbered) - last
    ]
    left = len(search.trials) - len(shown)
    caption = f"and {left} more trials: --all" if left else None
    return ReportTable(f"Search: {summary.search_text(search)}", [], caption).fill(
        shown,
        number("trial", lambda m: str(m[0])),
        number(wording.metric_text(search.metric), lambda m: f"{m[1].value:.4f}"),
        number("drop", lambda m: f"{m[1].drop:+.4f}"),
        word("met", lambda m: "yes" if m[1].met else "no"),
        number("saves ms", lambda m: f"{m[1].saved_ms:.2f}"),
        number("rows", lambda m: str(m[1].rows), 2),
        number("s", lambda m: f"{m[1].seconds:.1f}", 3),
        word("falls back to float", lambda m: _shortened(m[1].fallback, every=every), prose=True),
        style=lambda m: "bold" * (m[1] == search.taken),
    )


def _shortened(names: Sequence[str], *, every: bool) -> str:
    """Names, or the first and how many more there are."""
    if every or len(names) < 2:
        return ", ".join(names) or "nothing"
    return f"{names[0]} and {len(names) - 1} more"
