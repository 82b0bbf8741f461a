"""The text of an imported recipe: its keys, and one comment for each field of the source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from octobert.importers.outcomes import Outcome

_HEADINGS = {
    "mapped": "Fields that became keys of this recipe",
    "not needed": "Fields that octobert needs no key for",
    "refused": "Fields that octobert does not do",
}
# Keys whose values may be paths of files, or code in them.
_PATHS = (
    "model",
    "preprocess",
    "postprocess",
    "metric",
    "data.source",
    "data.train",
    "data.validation",
    "data.test",
    "qat.code",
)


def text(recipe: dict[str, Any], outcomes: Sequence[Outcome], source: str) -> str:
    """The recipe as YAML, with the outcomes as comments."""
    lines = [f"# Imported from {_line(source)}, a config of Olive.", ""]
    lines += [yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120).rstrip()]
    for verdict, heading in _HEADINGS.items():
        chosen = [outcome for outcome in outcomes if outcome.verdict == verdict]
        if chosen:
            lines += [
                "",
                f"# {heading}:",
                *(f"#   {_line(outcome.sentence())}" for outcome in chosen),
            ]
    return "\n".join(lines) + "\n"


def moved(recipe: dict[str, Any], old: Path, new: Path) -> dict[str, Any]:
    """The recipe for a file in another folder: relative paths of files that exist are changed."""
    if old.absolute() == new.absolute():
        return recipe

    def change(value: str) -> str:
        file, colon, function = value.rpartition(":") if ".py:" in value else (value, "", "")
        path = old / file
        if Path(file).is_absolute() or not path.exists():
            return value
        return os.path.relpath(path.absolute(), new.absolute()) + colon + function

    return {key: _changed(value, key, change) for key, value in recipe.items()}


def _changed(value: Any, key: str, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {name: _changed(inner, f"{key}.{name}", change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_changed(inner, key, change) for inner in value]
    return change(value) if isinstance(value, str) and key in _PATHS else value


def _line(text: str) -> str:
    """A text that stays in its comment: YAML ends lines at more characters than Python does."""
    return "".join(c if c.isprintable() else " " for c in text)
