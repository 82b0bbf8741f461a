"""What commands print of a report and of other results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from octobert.core import wording
from octobert.core.environment import Need, Setup
from octobert.core.profile import Lint
from octobert.core.results import Finetuned, Report
from octobert.core.session import Tuned
from octobert.report import contents, summary
from octobert.report.tables import ReportTable, table_of
from octobert.report.verdict import STATES, verdict

# Notes at the end of a run that say nothing of what its figures mean.
_NOTES = 3
# What octobert itself needs: shown only where it is missing.
_OWN = ("octobert",)


def render(report: Report) -> RenderableType:
    """Return the answer, the tables, what limits the meaning of the figures, and the first notes; the page has all notes."""
    answer = verdict(report)
    sign, _ = STATES[answer.state]
    parts: list[RenderableType] = [Text(f"\n{sign} {answer.sentence}", style="bold")]
    parts += [Text(f"  {answer.reason}")] if answer.reason else []
    if report.choice is not None:
        parts.append(contents.choice_table(report.choice))
    parts += contents.tables(report)
    sentences = contents.notes(report, answer)
    more = len(sentences) - _NOTES
    rest = (
        [Text(f"… and {more} more note{'' if more == 1 else 's'}: {contents.PAGE}")]
        if more > 0
        else []
    )
    return Group(
        *parts, Text(), *notes([], summary.caveats(report)), *notes(sentences[:_NOTES], []), *rest
    )


def notes(sentences: Iterable[str], warnings: Iterable[str]) -> list[Text]:
    """Return sentences as lines, warnings after the others."""
    return [
        *(Text(f"• {sentence}") for sentence in sentences),
        *(Text(f"! {sentence}", style="yellow") for sentence in warnings),
    ]


def finetuned(result: Finetuned) -> ReportTable:
    """Return the scores of a float model that was trained."""
    trained = result.trained
    title = (
        f"Float model in PyTorch on {result.data.evaluation_rows:,} evaluation rows, "
        f"trained on {result.data.training_rows:,} rows"
    )
    table = table_of(
        title,
        (),
        ("steps", "final loss", *(wording.metric_text(score.metric) for score in result.scores)),
    )
    loss = f"{trained['loss']:.4f}" if "loss" in trained else ""
    table.add_row(
        str(trained.get("steps", "")), loss, *(wording.score_text(score) for score in result.scores)
    )
    if result.scores and (better := summary.than_chance(result.scores[0])):
        table.caption = f"It scores {better}: train it longer, or with another learning rate, before it is quantized."
    return table


def tuned_table(result: Tuned) -> ReportTable:
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


def outcomes_table(rows: Iterable[Mapping[str, str | None]]) -> ReportTable:
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


def needs_table(setup: Setup) -> ReportTable:
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
