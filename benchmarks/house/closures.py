"""Code tokens that are reachable by import from a module, types of data, and properties of a recipe.

python -m benchmarks.house.closures [FOLDER OF A CHECKOUT]
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = ("octobert.inference.predictor", "octobert.pipeline.stages.quantize")
CODE = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}


def main(checkout: Path) -> None:
    """Count, print."""
    root = checkout / "src"
    for module in MODULES:
        plain = closure(root, module, families=False)
        whole = closure(root, module, families=True)
        print(
            f"{module}: {sum(map(tokens, plain.values())):,} tokens in {len(plain)} files; "
            f"with all plugins of its families {sum(map(tokens, whole.values())):,} in {len(whole)}"
        )
    files = sorted((root / "octobert").rglob("*.py"))
    print(f"octobert: {sum(map(tokens, files)):,} tokens in {len(files)} files")
    kinds = types_of_data(files)
    print(f"types of data: {sum(kinds.values())} {kinds}")
    schema = json.loads((checkout / "docs/reference/recipe.schema.json").read_text("utf-8"))
    print(f"recipe properties: {sum(properties(schema))}")


def closure(root: Path, module: str, *, families: bool) -> dict[str, Path]:
    """Return a module and all that it imports, in functions too: name → file.

    Args:
        families: with all plugins of a family whose package is imported.
    """
    reached: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        # `octobert` alone imports nothing.
        if name in reached or name == "octobert" or (file := _file(root, name)) is None:
            continue
        reached[name] = file
        tree = ast.parse(file.read_text(encoding="utf-8"))
        waiting += [name.rpartition(".")[0], *_imported(tree)]
        if families and _is_family(tree):
            waiting += [f"{name}.{path.stem}" for path in file.parent.glob("*.py")]
    return reached


def _file(root: Path, module: str) -> Path | None:
    place = root.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield names of modules that are imported anywhere but for type checkers."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_family(tree: ast.Module) -> bool:
    """Return whether a package's file makes a family of plugins (`PLUGINS = plugins.Plugins(…)`)."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(
        ast.unparse(call).startswith(("plugins.Plugins", "plugins.Family")) for call in calls
    )


def tokens(file: Path) -> int:
    """Return how many names, operators, numbers and strings a file has, docstrings left out."""
    text = file.read_text(encoding="utf-8")
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None
    }
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type in CODE and token.start not in docstrings for token in found)


def types_of_data(files: list[Path]) -> dict[str, int]:
    """Return how many classes are written as each kind of data, and as protocols."""
    classes = [
        node
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    counts = {
        kind: sum(kind in map(_name, node.bases) for node in classes)
        for kind in ("FrozenModel", "NamedTuple", "Protocol")
    }
    decorated = (" ".join(map(ast.unparse, node.decorator_list)) for node in classes)
    return {**counts, "dataclass": sum("dataclass" in text for text in decorated)}


def _name(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def properties(schema: Any) -> Iterator[int]:
    """Yield how many properties each object of a schema has, however deep."""
    parts = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield len(schema["properties"])
    for part in parts:
        if isinstance(part, dict | list):
            yield from properties(part)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
