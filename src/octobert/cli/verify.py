"""`octobert verify DIR`: check that the files of packages are the ones that octobert wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = ("octobert verify out",)


def command(
    directory: Annotated[Path, typer.Argument(help="A package (folder or zip file), or an output directory with packages.")],
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Compare the content of every file of a package with the sha256 in octobert.json."""
    import octobert

    found = [octobert.verify(folder) for folder in octobert.packages(directory)]
    if as_json:
        _show.document([each.model_dump(mode="json") for each in found])
        return
    for each in found:
        added = f"; added since: {', '.join(each.added)}" if each.added else ""
        _show.line(f"{each.package}: {len(each.files)} files as packaged{added}")
