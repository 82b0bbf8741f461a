"""Where code looks plugins up by name, and asks them for members by name.

python -m benchmarks.house.names [FOLDER OF octobert]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = (
    "pipeline/stages",
    "quantization",
    "graph",
    "report",
    "evaluation",
    "inference",
    "targets",
    "tasks",
    "training",
    "inspection",
    "models",
    "pipeline",
    "engine",
    "config",
    "core",
)
FAMILY = re.compile(
    r"octobert\.(quantization\.(calibrators|corrections|methods|placements|transforms)|targets(\.runtimes)?|tasks"
    r"|inspection\.profilers|models\.(families|sources)|core\.(families|plugins)|config\.importers)"
)
# Functions that take a plugin's name, or data that hold it.
LOOKUPS = {"load", "make", "options_of", "rebuild", "files_of", "column_options"}
# What holds a plugin is called so.
PLUGIN = re.compile(
    r"\b(module|plugin|own|task|target|method|calibrator|transform|correction|placement|family|runtime|profiler|importer)\b"
    r"|\bfacts\b|load\("
)


def main(root: Path) -> None:
    """Print each place, and counts by room."""
    for room in ROOMS:
        looked_up: list[str] = []
        asked: list[str] = []
        for path in sorted((root / room).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if room == "pipeline" and "/stages/" in name:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            looked_up += (f"{name}:{line} {text}" for line, text in lookups(tree))
            asked += (f"{name}:{line} {text}" for line, text in members(tree))
        print(f"{room}: {len(looked_up)} lookups, {len(asked)} members asked for by name")
        print("".join(f"  {place}\n" for place in (*looked_up, *asked)), end="")


def lookups(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each call that looks a plugin up by its name."""
    origins = _origins(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, *rest = ast.unparse(node.func).split(".")
        called = ".".join((origins.get(first, ""), *rest))
        family, last = called.rpartition(".")[::2]
        if last == "options_of" or (
            last in LOOKUPS
            and (FAMILY.fullmatch(family.removesuffix(".PLUGINS")) or "values_of(" in family)
        ):
            yield node.lineno, ast.unparse(node)[:100]


def _origins(tree: ast.Module) -> dict[str, str]:
    """Return the imported names of a module of octobert, each with what it stands for."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("octobert")
        for alias in node.names
    }


def members(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each `hasattr` or `getattr` of what is called like a plugin."""
    for node in ast.walk(tree):
        asks = isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr")
        if asks and isinstance(node, ast.Call) and PLUGIN.search(ast.unparse(node.args[0])):
            yield node.lineno, ast.unparse(node)[:100]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/octobert"))
