"""The files that code consists of, found without running it: for digests."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from octobert.core.files import files_in


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
        for module in _imported(path):
            place = path.parents[name.count("/")], module
            if place not in seen and module.partition(".")[0] != "octobert":
                seen.add(place)
                there = files_of(module, place[0])
                waiting += there.items() - found.items()
                found |= there
    return found


def _imported(path: Path) -> list[str]:
    """The modules that a file imports, wherever it does; none of a file that is no Python."""
    if path.suffix != ".py":
        return []
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return []
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module
    ]
