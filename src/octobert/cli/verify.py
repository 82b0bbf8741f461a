"""`octobert verify DIR`: check that the files of packages are the ones that octobert wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import octobert
from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = ("octobert verify out",)


def command(
    directory: Path,
    *,
    run: bool = True,
) -> Iterator[Any]:
    """Compare the content of every file of a package with the sha256 in octobert.json, and measure what batches do to answers.

    Args:
        directory: A package, or an output directory with packages.
        run: Also run the models: are answers the same in any batch, and near those of float?
    """
    packages = [octobert.verify(folder, run=run) for folder in octobert.packages(directory)]
    yield packages
    for package in packages:
        added = f"; added since: {', '.join(package.added)}" if package.added else ""
        _show.line(f"{package.package}: {len(package.files)} files as packaged{added}")
        if package.batches is not None:
            _show.line(f"  {package.batches}")
        if package.probe is not None:
            _show.line(f"  {package.probe}")
