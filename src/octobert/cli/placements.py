"""`octobert placements`: which values each placement quantizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import octobert
from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert placements matmul",)


def command(
    name: str | None = None,
) -> Iterator[Any]:
    """List the placements, and which kinds of values each quantizes. A recipe can also list kinds itself.

    Args:
        name: Name of one placement, with details. Default: all.
    """
    placements = octobert.list_placements(name)
    yield [
        {"name": key, **placement.model_dump(mode="json")} for key, placement in placements.items()
    ]
    for key, placement in placements.items():
        _show.item(key, placement.description, column=18)
        if name:
            _show.item("", f"in 8 bits: {', '.join(placement.kinds)}", column=18)
            for role, why in placement.because.items():
                _show.item("", f"float: {role:<18} {why}", column=18)
