"""`octobert clean OUT`: remove what earlier runs stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from octobert.api import runs
from octobert.cli import _options, _show

PANEL = _show.LOOK
EXAMPLES = ("octobert clean out --dry-run",)


@_options.filled(
    options=_options.from_function(
        runs.clean, texts={"out": "Output directory of earlier runs, or a folder of --cache."}
    )
)
def command(
    options: _options.Arguments,
    *,
    dry_run: bool = False,
    yes: bool = False,
) -> Iterator[Any]:
    """Remove the stored results of an output directory, and list them. Packages, checkpoints and reports stay.

    Args:
        dry_run: Only list what is stored.
        yes: Do not ask. Without a terminal nobody is asked.
    """
    sizes = runs.stored(**options)
    if not dry_run:
        question = "\n".join([*_lines(sizes, "stored"), "Remove these results?"])
        if sizes and not yes and not _show.confirmed(question, unasked=True):
            raise typer.Exit(1)
        sizes = runs.clean(**options)
    yield sizes
    for line in _lines(sizes, "stored" if dry_run else "removed"):
        _show.line(line)


def _lines(sizes: dict[str, int], total: str) -> list[str]:
    return [
        f"{size / 1e6:>10.1f} MB  {name}"
        for name, size in [*sizes.items(), (total, sum(sizes.values()))]
    ]
