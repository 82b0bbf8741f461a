"""Finished packages as files: which are in a folder, what is in their manifests, and whether they are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octobert.api._arguments import PathLike, path_of

if TYPE_CHECKING:
    from octobert.core.results import PackageManifest
    from octobert.inference.package_files import Verified


def packages(folder: PathLike) -> list[Path]:
    """The packages in an output directory; a package itself gives a list of one."""
    from octobert.core.results import PACKAGE_FILE

    root = path_of(folder, "folder")
    inside = sorted(path.parent for path in root.glob(f"*/{PACKAGE_FILE}"))
    return inside if inside and not (root / PACKAGE_FILE).is_file() else [root]


def manifest(package: PathLike) -> PackageManifest:
    """The manifest of a package: the recipe, the plan, the ranges, the scores.

    Args:
        package: A package, `OUT/TARGET`. Of a merged folder the package for this machine.

    Raises:
        ModelError: The folder is not a package.
    """
    from octobert.inference.machines import for_this_machine
    from octobert.inference.package_files import read_manifest

    return read_manifest(for_this_machine(path_of(package, "package")))


def verify(package: PathLike) -> Verified:
    """Compare the content of every file of a package with the sha256 in its manifest.

    Args:
        package: A package, `OUT/TARGET`, or its zip file.

    Returns:
        The files, and those that were added after it was packaged.

    Raises:
        ModelError: Files are missing or have another content, all named; or the folder is not a package.
    """
    from octobert.inference import package_files

    return package_files.verify(path_of(package, "package"))
