"""`octobert import CONFIG`: a config of another tool becomes a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import octobert
from octobert.cli import _show
from octobert.core.files import atomic_write, storage_errors

PANEL = _show.MAKE
EXAMPLES = (
    "octobert import bert_ptq_cpu.json --out recipe.yaml",
    "octobert import bert_ptq_cpu.json --json",
)


def command(
    config: Path,
    *,
    out: Path | None = None,
) -> Iterator[Any]:
    """Make a recipe from a config of Olive, and say what became of each of its fields.

    Args:
        config: Config of Olive, JSON or YAML.
        out: Write the recipe to this file. Default: print it.
    """
    imported = octobert.import_olive(config)
    if out is not None:
        with storage_errors(out.parent):
            out.parent.mkdir(parents=True, exist_ok=True)
        with storage_errors(out.parent), atomic_write(out) as file:
            file.write_text(imported.text(out.parent), encoding="utf-8")
    yield {"recipe": imported.recipe, "fields": imported.to_rows()}
    if out is None:
        _show.line(imported.text(Path()).rstrip())
        return
    from octobert.report import terminal

    _show.render(terminal.outcomes_table(imported.to_rows()))
    _show.line(f"\nRecipe   {out}")
    _show.line(f"   try   octobert run {out} --dry-run")
