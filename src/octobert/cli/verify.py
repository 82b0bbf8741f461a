"""`octobert verify DIR`: check that the files of packages are the ones that octobert wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = ("octobert verify out",)


def command(
    directory: Annotated[Path, typer.Argument(help="A package (folder or zip file), or an output directory with packages.")],
) -> Iterator[Any]:
    """Compare the content of every file of a package with the sha256 in octobert.json."""
    import octobert

    packages = [octobert.verify(folder) for folder in octobert.packages(directory)]
    yield packages
    for package in packages:
        added = f"; added since: {', '.join(package.added)}" if package.added else ""
        _show.line(f"{package.package}: {len(package.files)} files as packaged{added}")
