"""What devices need of the system besides Python packages: how it is found here, and how it is installed.

Only files and names of installed packages are looked at; no device is opened. Whether a target really runs says its `probe`.
`drivers.yaml` is the table.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import yaml

from octobert.core.frozen import FrozenModel


class Driver(FrozenModel):
    """A driver or a library of a device.

    Args:
        title: as its maker calls it.
        looks_for: what `detect` looks for, in words.
        install: what to do.
        variable: name of an environment variable.
        packages: Python packages that contain it.
        libraries: shared libraries on the system's path.
        files: of which one is there.
        program: on the path.
    """

    title: str
    looks_for: str
    install: str
    variable: str = ""
    packages: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    program: str = ""

    def detect(self) -> str | None:
        """A version, or where it was found; None if it was not."""
        return next(self._places(), None)

    def _places(self) -> Iterator[str]:
        if value := os.environ.get(self.variable):
            yield value
        for package in self.packages:
            with contextlib.suppress(metadata.PackageNotFoundError):
                yield f"{package} {metadata.version(package)}"
        yield from filter(None, map(ctypes.util.find_library, self.libraries))
        for path in self.files:
            if path.exists():
                # A small text has the version in it.
                text = (
                    path.read_text(errors="replace")
                    if path.is_file() and path.stat().st_size < 4096
                    else ""
                )
                version = re.search(r"\b\d+\.\d+(\.\d+)*", text)
                yield version[0] if version else str(path)
        if program := shutil.which(self.program):
            yield program


_TABLE = yaml.safe_load(files(__package__).joinpath("drivers.yaml").read_text(encoding="utf-8"))
DRIVERS: Mapping[str, Driver] = {name: Driver(**row) for name, row in _TABLE.items()}
