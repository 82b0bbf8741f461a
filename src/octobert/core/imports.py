"""The files that code consists of, found without running it: for digests."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from octobert.core.files import files_in

_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w[\w.]*)|import[ \t]+(\w[^#\n]*))", re.MULTILINE)


def files_of(module: str, folder: Path | None = None) -> dict[str, Path]:
    """Return the files of the package that a module is in, or its one file; nothing where there is no such module.

    Of a namespace, which is nobody's, it is the package below. What lies in an archive is the archive. Bytecode is left out.

    Args:
        module: as it is imported.
        folder: that it is looked for in; None for everywhere that Python looks.

    Returns:
        Name below that folder → file.
    """
    name, *inner = module.split(".")
    try:
        find = importlib.util.find_spec
        spec = PathFinder.find_spec(name, [str(folder)]) if folder else find(name)
    except (ImportError, ValueError):
        return {}
    while spec and spec.origin is None and inner:
        name = f"{name}.{inner.pop(0)}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    if spec is None:
        return {}
    files: dict[str, Path] = {}
    for location in spec.submodule_search_locations or [spec.origin or ""]:
        path = Path(location)
        if not path.exists():
            files |= {archive.name: archive for archive in path.parents if archive.is_file()}
        root = path.parents[name.count(".")]
        # Python takes a folder without a package for a namespace, also one of data.
        inside = (
            [path] if not path.is_dir() else files_in(path) if spec.origin else path.glob("*.py")
        )
        files |= {
            file.relative_to(root).as_posix(): file
            for file in inside
            if file.is_file() and "__pycache__" not in file.relative_to(root).parts
        }
    return files


def with_imports(files: Mapping[str, Path]) -> dict[str, Path]:
    """Return Python files with all that they import from the folder that their names begin in.

    Args:
        files: name below that folder → file, as `files_of` returns them.
    """
    found, waiting, seen = dict(files), list(files.items()), set[tuple[Path, str]]()
    while waiting:
        name, path = waiting.pop()
        source = path.read_text("utf-8", "replace") if path.suffix == ".py" else ""
        for package, modules in _IMPORT.findall(source):
            for module in (package or modules).split(","):
                place = path.parents[name.count("/")], (module.split() or [""])[0]
                if place not in seen and place[1].partition(".")[0] != "octobert":
                    seen.add(place)
                    there = files_of(place[1], place[0])
                    waiting += there.items() - found.items()
                    found |= there
    return found
