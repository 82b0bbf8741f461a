"""Sections of the page, one module each.

A section's module has `section(run)`, which returns a `Section`, or None where the run has nothing to show. `<name>.html` next
to it is a Jinja template of the values (also `run` and `report`). `<name>.js`, where there is one, registers how to draw the
data: `page.draw("<name>", (root, data) => …)`, with the section's element in the document. `<name>.css` is its style, where it
has one of its own; a long script has parts, `<name>_<part>.js`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from octobert.report.page.runs import Run

# From the top of the page.
ORDER = (
    "verdict",
    "frontier",
    "notes",
    "speed",
    "quality",
    "rows",
    "choice",
    "pruning",
    "layers",
    "executed",
    "ranges",
    "training",
    "trials",
    "how",
)


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

    def section(self, run: Run) -> Section | None:
        """What it shows of a run; None where there is nothing."""
        ...


def load(name: str) -> SectionModule:
    """A section by its name."""
    return cast(SectionModule, importlib.import_module(f"{__name__}.{name}"))
