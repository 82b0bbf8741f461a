"""The variants of a search, and why one was chosen."""

from __future__ import annotations

from octobert.config.words import Words
from octobert.report import choices
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section

PLACE = 70

# More variants than this are folded.
_MANY = 12


def section(run: Run) -> Section | None:
    """The table of variants, where a model was chosen."""
    choice = run.report.choice
    if choice is None:
        return None
    values = {
        "choice": choice,
        "words": Words.of(choice),
        "variants": choices.in_order(choice),
        "speed_of": choices.speed_of,
        "drop_title": choices.drop_title(choice),
        "search_facts": choices.facts(choice),
    }
    title = f"All {len(choice.found)} variants of the search"
    return Section(title, values, open=len(choice.found) <= _MANY)
