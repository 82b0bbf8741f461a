"""What a module of octobert imports, directly or not, found without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import octobert
from octobert.core import plugins

_ROOT = Path(octobert.__file__).parent


@cache
def closure(module: str) -> dict[str, Path]:
    """A module and all modules of octobert that it imports: name → file.

    It follows imports inside functions, and takes all plugins of a family whose loader is imported.
    """
    reached: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        # `octobert/__init__.py` imports nothing by itself, and would bring all it re-exports.
        if name in reached or name == "octobert" or (file := _file(name)) is None:
            continue
        reached[name] = file
        waiting += [name.rpartition(".")[0], *_imported(file)]
        if name in plugins.PACKAGES.values():
            waiting += [f"{name}.{path.stem}" for path in file.parent.glob("*.py")]
    return reached


def packages_of(module: str) -> set[str]:
    """The installed packages, but octobert itself, that a module's closure imports."""
    tops = {name.partition(".")[0] for path in closure(module).values() for name in _imported(path)}
    owners = _owners()
    return {name for top in tops - sys.stdlib_module_names for name in owners.get(top, ())} - {
        "octobert"
    }


_owners = cache(metadata.packages_distributions)


def _file(module: str) -> Path | None:
    first, *parts = module.split(".")
    place = _ROOT.joinpath(*parts)
    candidates = (place / "__init__.py", place.with_suffix(".py"))
    return next((path for path in candidates if first == "octobert" and path.is_file()), None)


@cache
def _imported(path: Path) -> frozenset[str]:
    return frozenset(_names(ast.parse(path.read_bytes())))


def _names(tree: ast.Module) -> Iterator[str]:
    """Names of imported modules, anywhere in a file but for type checkers; of `from a import b` both `a` and `a.b`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            waiting += node.orelse
            continue
        # Expressions, most of a file, hold no imports.
        waiting += (
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)
        )
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
