"""`octobert clean OUT`: remove what earlier runs stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert clean out --dry-run",)


def command(
    out: Annotated[Path, typer.Argument(help="Output directory of earlier runs, or a folder of --cache.")],
    keep_last: Annotated[bool, typer.Option("--keep-last", help="Keep the results that the last finished run used.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what is stored.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Remove the stored results of an output directory, and list them. Packages, checkpoints and reports stay."""
    import octobert

    sizes = octobert.stored(out) if dry_run else octobert.clean(out, keep_last=keep_last)
    if as_json:
        _show.document(sizes)
        return
    for name, size in sizes.items():
        _show.line(f"{size / 1e6:>10.1f} MB  {name}")
    _show.line(f"{sum(sizes.values()) / 1e6:>10.1f} MB  {'stored' if dry_run else 'removed'}")
