"""The key of a step: the sha256 of everything its result depends on.

    stage        its name
    octobert     the version of this package
    code         digest of the source files that the stage imports, directly or not: its import closure
    packages     versions of the other packages that those files import
    options      of the step
    inputs       content digests of the artifacts it reads

Names and paths of models and data are not part of it; their content is. The closure over-approximates: it follows imports
inside functions, and takes all plugins of a family whose loader is imported. A change can make a step run again without need,
but an old result is never served for new code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from octobert.core import plugins, version
from octobert.core.files import canonical_digest
from octobert.pipeline.contract import NOT_IN_KEY, STAGES, Step

_ROOT = Path(__file__).parents[1]


def key_of(step: Step, digests: Mapping[str, str]) -> str:
    """The key of a step.

    Args:
        digests: input name → content digest of its artifact.
    """
    return canonical_digest(
        {
            "stage": step.stage,
            "octobert": version.__version__,
            "code": code_digest(step.stage),
            "packages": package_versions(step.stage),
            "options": key_data(step.options),
            "inputs": dict(digests),
        }
    )


def key_data(value: Any) -> Any:
    """Plain data with what counts for a key.

    Data with a `digest` counts by it alone, wherever it lies. Fields that are annotated with `NOT_IN_KEY` do not count.
    """
    if isinstance(value, BaseModel):
        if isinstance(digest := getattr(value, "digest", None), str):
            return digest
        fields = type(value).model_fields
        return {
            name: key_data(inner)
            for name, inner in value
            if NOT_IN_KEY not in fields[name].metadata
        }
    if isinstance(value, Mapping):
        return {str(key): key_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [key_data(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


@functools.cache
def code_digest(stage: str) -> str:
    """sha256 over the source files in a stage's import closure, by module name."""
    return canonical_digest(
        {name: _source(path)[0] for name, path in sorted(_closure(f"{STAGES}.{stage}").items())}
    )


@functools.cache
def package_versions(stage: str) -> dict[str, str]:
    """Installed packages that a stage's import closure names, with their versions."""
    modules = {name for path in _closure(f"{STAGES}.{stage}").values() for name in _source(path)[2]}
    distributions = {
        name
        for module in modules - sys.stdlib_module_names
        for name in _distributions().get(module, ())
    }
    return {name: _version(name) for name in sorted(distributions) if name != "octobert"}


def closure(module: str, root: Path = _ROOT) -> dict[str, Path]:
    """A module of octobert and all modules of octobert that it imports, directly or not: name → file.

    Args:
        root: the folder of the package.
    """
    reached: dict[str, Path] = {}
    # `octobert/__init__.py` imports nothing by itself, and would bring all it re-exports.
    waiting, seen = [module], {"octobert"}
    while waiting:
        name = waiting.pop()
        if name in seen or (file := _file(name, root)) is None:
            continue
        seen.add(name)
        reached[name] = file
        waiting += [name.rpartition(".")[0], *_source(file)[1]]
        if name in plugins.PACKAGES.values():
            waiting += [f"{name}.{path.stem}" for path in file.parent.glob("*.py")]
            reached |= _foreign_plugins(name)
    return reached


# Files and packages do not change while a process runs.
_closure = functools.cache(closure)


@functools.cache
def _version(package: str) -> str:
    return metadata.version(package)


@functools.cache
def _file(module: str, root: Path) -> Path | None:
    """The source file of a module of octobert."""
    first, *parts = module.split(".")
    place = root.joinpath(*parts)
    candidates = (place / "__init__.py", place.with_suffix(".py") if parts else place)
    return next((path for path in candidates if first == "octobert" and path.is_file()), None)


def _foreign_plugins(package: str) -> dict[str, Path]:
    """The modules of plugins that other packages add to a family."""
    family = next(name for name, place in plugins.PACKAGES.items() if place == package)
    modules = [point.value for point in metadata.entry_points(group=f"octobert.{family}")]
    specs = [(name, importlib.util.find_spec(name)) for name in modules]
    return {name: Path(spec.origin) for name, spec in specs if spec is not None and spec.origin}


@functools.cache
def _source(path: Path) -> tuple[str, tuple[str, ...], frozenset[str]]:
    """(sha256 of a file, modules of octobert that it imports, other top-level modules that it imports)."""
    content = path.read_bytes()
    modules, others = set(), set()
    for name in _imported(ast.parse(content)):
        if name.split(".")[0] == "octobert":
            modules.add(name)
        else:
            others.add(name.split(".")[0])
    return hashlib.sha256(content).hexdigest(), tuple(sorted(modules)), frozenset(others)


def _imported(tree: ast.Module) -> Iterator[str]:
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


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
