"""A report as Markdown, for pull requests, issues and model cards: the answer, the tables, and what changes their meaning."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octobert.config.loading import as_yaml
from octobert.config.recipe import Recipe
from octobert.core.files import page_seal
from octobert.core.plain import printable
from octobert.core.results import Report
from octobert.report import contents, summary
from octobert.report.page import comparison
from octobert.report.page.runs import Section, ShownRun, facts_of
from octobert.report.tables import ReportTable, as_markdown
from octobert.report.verdict import STATES, Number, verdict


def markdown(runs: Sequence[ShownRun]) -> str:
    """Return one or several reports in Markdown, with the seal that tells whether somebody has edited it.

    Args:
        runs: with different names. Of several, their tables side by side come first.
    """
    blocks = [block for run in runs for block in _of_run(run)]
    if len(runs) > 1:
        compared = comparison.section(runs)
        blocks = [f"# {compared.title}", *_compared(compared), *blocks]
    text = "\n\n".join(filter(None, blocks)) + "\n"
    return text + page_seal(text.encode("utf-8", "replace"))


def _compared(compared: Section) -> list[str]:
    careful = [f"> {compared.values['careful']}"] if compared.values["careful"] else []
    tables = compared.values["tables"]
    return careful + [
        text for sentence, table in tables for text in (as_markdown(sentence), _titled(table))
    ]


def _of_run(run: ShownRun) -> list[str]:
    report, answer = run.report, verdict(run.report)
    sign, word = STATES[answer.state]
    here = report.environment
    machine = [here.cpu, f"{here.cores} cores", *here.features]
    facts = [*facts_of(report).items(), ("machine", ", ".join(machine))]
    return [
        f"# {as_markdown(run.name)}",
        f"{sign} **Should I ship this? {word.capitalize()}.** {as_markdown(answer.sentence)}",
        as_markdown(answer.reason),
        _listed([_number(number) for number in answer.numbers]),
        *(f"> {as_markdown(sentence)}" for sentence in summary.caveats(report)),
        *measured(report),
        "## Notes",
        _listed([as_markdown(sentence) for sentence in contents.notes(report, answer)]),
        "## How this was made",
        _listed([f"{name}: {as_markdown(fact)}" for name, fact in facts]),
        _recipe(report),
    ]


def measured(report: Report) -> list[str]:
    """Return the tables of a report, each with its title."""
    found = contents.tables(report)
    if report.choice is not None:
        found.insert(0, contents.choice_table(report.choice))
    return [_titled(table) for table in found]


def _titled(table: ReportTable) -> str:
    title, *rest = table.title.split("\n")
    return "\n\n".join([f"### {as_markdown(title)}", *map(as_markdown, rest), table.markdown()])


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _number(number: Number) -> str:
    figure = f"{number.name}: {number.value} {number.unit}".rstrip()
    return f"**{as_markdown(figure)}** ({as_markdown(number.detail)})"


def _recipe(report: Report) -> str:
    """The recipe, folded. Its fence is longer than any row of tildes in it."""
    recipe = printable(as_yaml(Recipe.model_validate(report.recipe))).rstrip()
    fence = "~" * max(3, *(len(row) + 1 for row in re.findall("~+", recipe)), 0)
    return f"<details><summary>Recipe</summary>\n\n{fence}yaml\n{recipe}\n{fence}\n\n</details>"
