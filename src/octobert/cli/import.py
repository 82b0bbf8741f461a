"""`octobert import CONFIG`: a config of another tool becomes a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import octobert
from octobert.cli import _show

PANEL = _show.MAKE
EXAMPLES = (
    "octobert import bert_ptq_cpu.json --out recipe.yaml",
    "octobert import bert_ptq_cpu.json --json",
)


def command(
    config: Path,
    *,
    out: Path | None = None,
    as_octobert: bool = False,
    every: bool = False,
) -> Iterator[Any]:
    """Make a recipe from a config of another tool, such as Olive, and say what became of each of its fields.

    Args:
        config: Config of the other tool, JSON or YAML.
        out: Write the recipe to this file. Default: print it.
        as_octobert: Keep model, data, targets and goals, and quantize as octobert does by default. Otherwise the recipe does
            what the config does, defaults of its tools included.
        every: Also list the fields that octobert needs no key for.
    """
    imported = octobert.import_config(config, as_octobert=as_octobert)
    if out is not None:
        _show.write(out, imported.text(out.parent, every=every))
    yield {"recipe": imported.recipe, "fields": imported.to_rows()}
    if out is None:
        _show.line(imported.text(Path(), every=every).rstrip())
        return
    from octobert.report import terminal

    rows = imported.to_rows()
    shown = [row for row in rows if every or row["verdict"] != "not needed"]
    _show.render(terminal.outcomes_table(shown))
    if len(shown) < len(rows):
        _show.line(f"{len(rows) - len(shown)} more fields need no key: --all lists them")
    _show.line(f"\nRecipe   {out}")
    _show.line(f"   try   octobert run {out} --dry-run")
