"""The files: a config is read, JSON or YAML of unknown origin and only plain data; a recipe is written with its outcomes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from octobert.config import yaml_text
from octobert.core.errors import RecipeError
from octobert.importers.outcomes import Outcome

# Fields that only Olive's configs have, at the top.
MARKS = ("input_model", "passes", "pass_flows", "evaluators", "data_configs", "engine", "builds")
# A config nested more deeply is damaged or hostile.
_DEEPEST = 50


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


def is_config(raw: Any) -> bool:
    """Whether plain data is an Olive config rather than a recipe.

    Example:
        >>> is_config({"input_model": {"type": "HfModel"}}), is_config({"model": "m", "task": "mrpc", "data": "d"})
        (True, False)
    """
    return isinstance(raw, Mapping) and "model" not in raw and any(mark in raw for mark in MARKS)


def is_config_file(path: Path) -> bool:
    """Whether a file is an Olive config. Mistakes in it are for `read`, or for the reader of recipes."""
    try:
        return is_config(read(path))
    except RecipeError:
        return False


def read(path: Path) -> Any:
    """Read a file.

    Raises:
        RecipeError: it does not exist, cannot be read, is too large, or is neither JSON nor YAML.
    """
    text = yaml_text.text_of(path, "config")
    if path.suffix.lower() != ".json":
        return yaml_text.parse(text, where=str(path), what="the config is not valid YAML")
    try:
        raw = json.loads(text, object_pairs_hook=_each_once)
        _check_depth(raw, str(path))
        return raw
    except RecursionError:
        raise RecipeError("the config is nested too deeply", where=str(path)) from None
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}"
        raise RecipeError("the file is not valid JSON", where=where, got=error.msg) from error
    except ValueError as error:
        raise RecipeError(
            "the file is not valid JSON", where=str(path), got=str(error)[:200]
        ) from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f'the key "{key}" is given twice')
        result[key] = value
    return result


def _check_depth(value: Any, where: str, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise RecipeError(
            "the config is nested too deeply", where=where, expected=f"at most {_DEEPEST} levels"
        )
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    for each in inner:
        _check_depth(each, where, depth + 1)


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
