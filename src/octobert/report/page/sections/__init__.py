"""Sections of the page: `<name>.py` asks, `<name>.html` shows.

A section's module has `PLACE`, its height on the page, and `section(run)`, which returns a `Section`, or None where the run has
nothing to show. `<name>.html` next to it is a Jinja template of the values (also `run` and `report`), after its own `<style>`,
where it has one, and before its scripts, which register how to draw the data: `page.draw("<name>", (root, data) => …)`, with
the section's element in the document.
"""

from __future__ import annotations

import functools
import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

from octobert.report.page.runs import Run


@dataclass(frozen=True)
class Section:
    """What a section shows.

    Args:
        title: heading; empty for a section without one.
        values: of the template.
        data: for the script, as JSON can say it; None where nothing is drawn.
        open: shown unfolded. A section that is folded needs a title.
    """

    title: str
    values: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] | None = None
    open: bool = True


class SectionModule(Protocol):
    """What a section's module has."""

    # From the top of the page; gaps are room for others.
    PLACE: int

    def section(self, run: Run) -> Section | None:
        """What it shows of a run; None where there is nothing."""
        ...


@functools.cache
def sections() -> dict[str, SectionModule]:
    """The modules of all sections by name, from the top of the page."""
    found = {
        each.name: cast(SectionModule, import_module(f"{__name__}.{each.name}")) for each in pkgutil.iter_modules(__path__)
    }
    return dict(sorted(found.items(), key=lambda item: item[1].PLACE))
