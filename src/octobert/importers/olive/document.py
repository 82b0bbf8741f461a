"""Read an Olive config: JSON or YAML of unknown origin, and only plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octobert.config import yaml_text
from octobert.core.errors import RecipeError

# Fields that only Olive's configs have, at the top.
MARKS = ("input_model", "passes", "pass_flows", "evaluators", "data_configs", "engine", "builds")
# A config nested more deeply is damaged or hostile.
_DEEPEST = 50


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
    if path.suffix.lower() != ".json":
        return yaml_text.parse(
            yaml_text.text_of(path, "config"), where=str(path), what="the config is not valid YAML"
        )
    text = yaml_text.text_of(path, "config")
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
