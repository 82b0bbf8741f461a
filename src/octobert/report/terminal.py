"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from octobert.core import wording
from octobert.core.environment import Need, Setup
from octobert.core.measurements import TimedShape, shapes
from octobert.core.profile import Lint
from octobert.core.results import AccuracySearch, Finetuned, Report
from octobert.core.selection import Selection
from octobert.core.session import Tuned
from octobert.report import choices, simulated, summary, times
from octobert.report.tables import FittedTable, table_of
from octobert.report.verdict import STATES, Verdict, verdict
from octobert.report.words import words_of_choice

# What has the columns and notes that are left out.
PAGE = "report.html"
# Variants and trials of a search that are listed; the report has all.
_LISTED, _TRIALS = 20, 5
_STORED = "Stored vectors, compared with the float model's in float32"
# Notes at the end of a run that say nothing of what its figures mean.
_NOTES = 3
# What octobert itself needs: shown only where it is missing.
_OWN = ("octobert",)
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


def render(report: Report) -> RenderableType:
    """Return the answer, the tables, what limits the meaning of the figures, and the first notes; the page has all notes."""
    answer = verdict(report)
    sign, _ = STATES[answer.state]
    parts: list[RenderableType] = [Text(f"\n{sign} {answer.sentence}", style="bold")]
    parts += [Text(f"  {answer.reason}")] if answer.reason else []
    if report.choice is not None:
        parts.append(choice_table(report.choice))
    if report.footprints:
        timings = [
            *(model.timing for model in summary.model_results(report)),
            *summary.throughputs(report),
        ]
        parts.append(quality_table(report))
        parts += (
            [score_table(report)] if summary.main_metrics(report) != summary.metrics(report) else []
        )
        parts += [stored_table(report)] if report.stored else []
        parts.append(latency_table(timings, shapes(report.latencies)))
    sentences = _notes(report, answer)
    more = len(sentences) - _NOTES
    rest = [Text(f"… and {more} more note{'' if more == 1 else 's'}: {PAGE}")] if more > 0 else []
    return Group(
        *parts, Text(), *notes([], summary.caveats(report)), *notes(sentences[:_NOTES], []), *rest
    )


def _notes(report: Report, answer: Verdict) -> list[str]:
    """Sentences that do not change what the answer means, the most telling first."""
    choice = report.choice
    why = (
        [choice.sentence]
        if choice is not None and choice.sentence not in ("", answer.sentence)
        else []
    )
    facts = choices.facts(choice) if choice is not None else []
    asked = [*summary.outcomes(report), *summary.trainings(report)]
    sentences = [
        *why,
        *asked,
        *summary.comparisons(report),
        *facts,
        *summary.limitations(report),
        *summary.exports(report),
    ]
    # Where nothing was measured, the answer is the reason.
    return [sentence for sentence in sentences if sentence != answer.sentence]


def _breakable(figure: str) -> str:
    """A figure that wraps before its interval only."""
    return figure.replace(" [", "\n[")


def notes(sentences: Iterable[str], warnings: Iterable[str]) -> list[Text]:
    """Return sentences as lines, warnings after the others."""
    return [
        *(Text(f"• {sentence}") for sentence in sentences),
        *(Text(f"! {sentence}", style="yellow") for sentence in warnings),
    ]


def quality_table(report: Report) -> FittedTable:
    """Return scores, agreement with float, size and memory of every model."""
    title = f"Quality on {report.data.evaluation_rows:,} evaluation rows, with 95 % confidence intervals"
    source_bytes = report.model.source_bytes
    table = table_of(
        f"{title}; the weights of your model have {source_bytes / 1e6:.1f} MB"
        if source_bytes
        else title,
        ("model",),
    )
    table.elsewhere = PAGE
    metrics = summary.main_metrics(report)
    table.add_column("precision", 5)
    table.add_numbers({name: 7 if index else 0 for index, name in enumerate(metrics)})
    table.add_numbers({"agreement": 4, "output error": 8, "file MB": 0, "peak MB": 6, "load ms": 9})
    for model in summary.model_results(report):
        scores = {s.metric: _breakable(wording.score_text(s)) for s in model.scores}
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
    for result in simulated.results(report):
        scores = {s.metric: _breakable(wording.score_text(s)) for s in result.scores}
        table.add_row(
            result.name,
            result.precision,
            *(scores.get(metric, "") for metric in metrics),
            f"{result.comparison.fidelity:.4f}",
            f"{result.comparison.output_error:.4f}",
        )
    return table


def score_table(report: Report) -> FittedTable:
    """Return every metric of every model, one metric per row."""
    models: list[summary.ModelResult | simulated.SimulatedResult] = [
        *summary.model_results(report),
        *simulated.results(report),
    ]
    table = table_of(
        "Scores, with 95 % confidence intervals", ("metric",), [model.name for model in models]
    )
    for metric in summary.metrics(report):
        cells = [
            next(
                (_breakable(wording.score_text(s)) for s in model.scores if s.metric == metric), ""
            )
            for model in models
        ]
        table.add_row(metric, *cells)
    return table


def stored_table(report: Report) -> FittedTable:
    """Return the score of each form of stored vectors against its size."""
    table = table_of(_STORED, ("model",))
    table.add_column("stored as")
    metric = report.stored[0].metric
    table.add_numbers({"bytes": 0, metric: 0, "difference from float": 0})
    for form in report.stored:
        table.add_row(
            form.candidate,
            f"{form.type}, {form.dimensions} dimensions",
            str(form.size_bytes),
            f"{form.value:.4f}",
            _breakable(wording.change_text(form.difference)),
        )
    return table


def latency_table(
    timings: Sequence[times.Timing],
    shapes: Sequence[TimedShape],
    *,
    elsewhere: str = PAGE,
    every: bool = False,
) -> FittedTable:
    """Return statistics in ms, rows and tokens per second, and the speedup over float models, shape by shape.

    Args:
        timings: of each model.
        shapes: parts of the table.
        elsewhere: what has the columns that are left out.
        every: leave out none.
    """
    threads = wording.threads_text([timing.threads for timing in timings])
    title = f"Latency in ms, {threads}; speedups with 95 % confidence intervals"
    if any(shape.sequence == "data" for shape in shapes):
        title += "\ndata: rows of the evaluation data"
    table = table_of(title, ("model",))
    table.elsewhere = elsewhere
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
        table.add_row(str(shape), style="bold")
        for timing in timings:
            measured = timing.latencies[shape]
            speedups = [timing.baseline.get(shape), times.strongest(timing).get(shape)][: len(over)]
            table.add_row(
                f"  {timing.name}",
                timing.precision,
                *(wording.ms(measured.statistics_ms[name]) for name in times.SHOWN),
                f"{measured.rows_per_second:.0f}",
                f"{measured.tokens_per_second:.0f}",
                *(
                    _breakable(wording.estimate_text(speedup.ratio)) if speedup else ""
                    for speedup in speedups
                ),
                style="bold" if timing.quantized else "",
            )
        table.add_section()
    return table


def choice_table(choice: Selection) -> FittedTable:
    """Return what a search has found out of each variant, the chosen one first."""
    words = words_of_choice(choice)
    drop = (
        f", drop of {words.name('metric')} on {choice.rows:,} tuning rows [95 %]"
        if choice.metric
        else ""
    )
    title = f"Compared with {choice.reference}: time{drop}"
    table = table_of(title, ("variant",), ("rows/s" if choice.goal == "throughput" else "ms",))
    table.elsewhere = PAGE
    points = " (points)" if words.in_points(choice.metric or "") else ""
    table.add_numbers({"× f32": 1, f"drop{points}": 0 if choice.metric else 9})
    table.add_column("limits")
    table.add_numbers({"MB": 3, "peak MB": 5, "rows": 4})
    table.add_column("why", 2)
    listed = choices.in_order(choice, _LISTED)
    for result in listed:
        is_best = result.variant.name == choice.winner
        figure = result.drops.get(choice.metric or "")
        speed = choices.speed_of(choice, result)
        table.add_row(
            f"{'→' if is_best else '•' if result.on_frontier else ' '} {result.variant.name}",
            wording.ms(speed.value) if speed else "",
            f"{1 / result.ratio.value:.2f}" if result.ratio else "",
            words.drop_cell(choice.metric or "", figure) if figure else "",
            choices.state_of(result),
            *(
                f"{size / 1e6:.0f}" if size else ""
                for size in (result.size_bytes, result.peak_memory_bytes)
            ),
            str(result.rows) if result.rows else "",
            result.reason,
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
    table.add_row(
        str(trained.get("steps", "")), loss, *(wording.score_text(score) for score in result.scores)
    )
    if result.scores and (better := summary.than_chance(result.scores[0])):
        table.caption = f"It scores {better}: train it longer, or with another learning rate, before it is quantized."
    return table


def tuned_table(result: Tuned) -> FittedTable:
    """Return every setting that a search has timed, the fastest first."""
    title = f"Tuned for {result.goal} on {result.rows} rows (default: {wording.ms(result.default_ms)} ms)"
    table = table_of(title, (), ("× default time", "streams", "threads", "tokens per batch"))
    table.add_column("runtime options", 1)
    table.elsewhere = "--json"
    # The setting that is stored, also where its options are left out of the table.
    table.caption = f"{summary.tuned_text(result)}."
    for tried in sorted(result.tried, key=lambda t: t.ratio or float("inf")):
        setting = tried.setting
        options = (
            ", ".join(f"{name} {value}" for name, value in setting.runtime_options.items())
            or "default"
        )
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
        more = (
            f" and {finding.count - len(finding.nodes)} more"
            if finding.count > len(finding.nodes) > 0
            else ""
        )
        table.add_row(
            finding.severity, finding.text, ", ".join(finding.nodes[:2]) + more, finding.fix or ""
        )
    return Group(total, table)


def trials_table(search: AccuracySearch, *, every: bool = True) -> FittedTable:
    """Return the trials of an accuracy-aware search.

    Args:
        search: to show.
        every: all trials instead of the last ones and the one that was taken.
    """
    table = table_of(f"Search: {summary.search_text(search)}", (), ("trial", search.metric, "drop"))
    table.add_column("met")
    table.add_numbers({"saves ms": 0, "rows": 2, "s": 3})
    table.add_column("falls back to float")
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


def outcomes_table(rows: Iterable[Mapping[str, str | None]]) -> FittedTable:
    """Return what became of each field of another tool's config.

    Args:
        rows: field, value, verdict, key and note of each (`octobert.config.importers.Outcome`).
    """
    table = table_of("Fields of the config", ("field", "value", "became", "why"))
    for row in rows:
        table.add_row(
            row["field"] or "",
            f"{row['value']} (default)" if row["default"] else row["value"] or "",
            row["key"] or row["verdict"] or "",
            row["note"] or "",
        )
    return table


def needs_table(setup: Setup) -> FittedTable:
    """A table: what is needed, by which part of the recipe, and what is here."""
    table = table_of("Needed on this machine", ("needed", "by", "here"))
    for need in setup.needs:
        if not (need.fits and need.wanted_by == _OWN):
            table.add_row(
                f"{need.name} {need.version}".strip(), ", ".join(need.wanted_by), _here(need)
            )
    return table


def _here(need: Need) -> str:
    if need.fits:
        return need.found or "ready"
    # A build is there as a package, and yet not the one that is used.
    state = f"{need.found}, which does not fit" if need.found else "missing"
    return state if need.required else f"{state} (files are written; to measure them here)"


def needs_sentences(setup: Setup) -> list[str]:
    """The steps of a set-up, line by line."""
    lines = [""]
    if not setup.missing:
        lines.append("The recipe can run here.")
    if setup.commands:
        lines += ["Install the Python packages:", *(f"  {command}" for command in setup.commands)]
        lines += [f"Not from here: {setup.problem}."] if setup.problem else []
    conflict_names = {conflict.split()[0] for conflict in setup.conflicts}
    others = [
        need
        for need in setup.needs
        if need.kind != "package" and not need.fits and need.name not in conflict_names
    ]
    lines += [f"{need.name}: {need.install} ({need.note})." for need in others]
    return [*lines, *(f"Not installed by --yes: {conflict}" for conflict in setup.conflicts)]
