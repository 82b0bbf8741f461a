"""`octobert schema`: the JSON Schema of recipes."""

from __future__ import annotations

from pathlib import Path

import octobert
from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert schema --out recipe.schema.json",)


def command(*, out: Path | None = None) -> None:
    """Print the JSON Schema of recipes, with the installed plugins. Editors check and complete recipes with it.

    Args:
        out: Write it to this file instead.
    """
    import json

    text = json.dumps(octobert.recipe_schema(), indent=1, ensure_ascii=False)
    if out is None:
        _show.line(text)
    else:
        _show.write(out, text + "\n")
