"""Paths in recipes: as they can be opened from the working directory, or from any folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from octobert.config.measuring import EvaluateMetric
from octobert.config.recipe import Recipe, RowSelection
from octobert.core.user_code import names_code

_ROWS = ("calibrate", "evaluate", "tune", "finetune")


def looks_local(name: str, suffixes: Container[str]) -> bool:
    """Whether a name that does not exist as a file is a mistyped path rather than a Hub id.

    Example:
        >>> looks_local("./model", ()), looks_local("google-bert/bert-base-uncased", ())
        (True, False)
    """
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).suffix.lower() in suffixes


def with_paths(recipe: Recipe, base: Path | None) -> Recipe:
    """The recipe with paths to read that can be opened: `~` expanded, relative paths taken from `base`."""

    def local(name: str | None) -> str | None:
        if name is None or name.startswith("package:"):
            return name
        if names_code(name) and ":" in name:
            file, _, function = name.rpartition(":")
            return f"{local(file)}:{function}"
        path = Path(os.path.expanduser(name))
        if base is None or path.is_absolute():
            return str(path) if name.startswith("~") else name
        return os.path.normpath(base / path) if os.path.exists(base / path) or name.startswith(".") else name

    data = recipe.data
    places: dict[str, Any] = {key: local(getattr(data, key)) for key in ("source", "train", "validation", "test")}
    for key in _ROWS:
        rows: RowSelection = getattr(data, key)
        name, rest = _sliced(rows.from_)
        if Path(name).suffix:
            places[key] = rows.model_copy(update={"from_": f"{local(name)}{rest}"})
    update: dict[str, Any] = {key: local(getattr(recipe, key)) for key in ("model", "preprocess", "postprocess")}
    update["metric"] = tuple(_metric_at(metric, local) for metric in recipe.metric)
    update["data"] = data.model_copy(update=places)
    for name in ("finetune", "qat"):
        stage = getattr(recipe, name)
        if stage is not None:
            distill = stage.distill and stage.distill.model_copy(update={"teacher": local(stage.distill.teacher)})
            update[name] = stage.model_copy(update={"distill": distill, "code": local(stage.code)})
    if recipe.qat is not None and recipe.qat.trained is not None:
        update["qat"] = update["qat"].model_copy(update={"trained": local(recipe.qat.trained)})
    return recipe.model_copy(update=update)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that its file can be in any folder."""
    plain = recipe.model_dump(by_alias=True, exclude_unset=True)

    def absolute(name: Any) -> Any:
        file, _, function = name.rpartition(":") if isinstance(name, str) and names_code(name) else (name, "", "")
        found = isinstance(file, str) and os.path.exists(file)
        return str(Path(file).resolve()) + (f":{function}" if function else "") if found else name

    plain |= {key: absolute(plain[key]) for key in ("model", "preprocess", "postprocess") if key in plain}
    plain["metric"] = [_metric_at(metric, absolute) for metric in recipe.metric]
    plain["data"] = {key: absolute(value) for key, value in plain["data"].items()}
    for key in set(_ROWS) & set(plain["data"]):
        name, rest = _sliced(plain["data"][key]["from"])
        if Path(name).suffix:
            plain["data"][key] = {**plain["data"][key], "from": f"{absolute(name)}{rest}"}
    return Recipe.model_validate(plain)


def _sliced(rows: str) -> tuple[str, str]:
    """The name of rows, and the slice of them: `own.tsv`, `[:10]`."""
    name = rows.rpartition("[")[0] if rows.endswith("]") else rows
    return name, rows.removeprefix(name)


def _metric_at(metric: str | EvaluateMetric, local: Callable[[str], str | None]) -> str | EvaluateMetric:
    """A metric whose file, or folder of a module, is at another path."""
    if isinstance(metric, str):
        return str(local(metric)) if names_code(metric) else metric
    is_path = looks_local(metric.name, (".py",))
    return EvaluateMetric(evaluate={**metric.arguments, "name": str(local(metric.name))}) if is_path else metric
