"""Paths in recipes: as they can be opened from the working directory, or from any folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from octobert.config.measuring import EvaluateMetric
from octobert.config.recipe import SPLITS, Recipe, RowSelection
from octobert.core.user_code import names_code

_ROWS = ("calibrate", "evaluate", "tune", "finetune")


def looks_local(name: str, suffixes: Container[str]) -> bool:
    """Whether a name that does not exist as a file is a mistyped path rather than a Hub id.

    Example:
        >>> looks_local("./model", ()), looks_local("google-bert/bert-base-uncased", ())
        (True, False)
    """
    return (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or Path(name).suffix.lower() in suffixes
    )


def with_paths(recipe: Recipe, base: Path | None) -> Recipe:
    """The recipe with paths to read that can be opened: `~` expanded, relative paths taken from `base`."""

    def local(name: str) -> str:
        path = Path(os.path.expanduser(name))
        if base is None or path.is_absolute():
            return str(path) if name.startswith("~") else name
        return (
            os.path.normpath(base / path)
            if os.path.exists(base / path) or name.startswith(".")
            else name
        )

    return _moved(recipe, local)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that its file can be in any folder."""
    return _moved(recipe, lambda name: str(Path(name).resolve()) if os.path.exists(name) else name)


def _moved(recipe: Recipe, move: Callable[[str], str]) -> Recipe:
    """The recipe with its paths moved, also those in `file.py:function`."""

    def moved(name: str | None) -> str | None:
        if name is None or name.startswith("package:"):
            return name
        file, colon, function = (
            name.rpartition(":") if names_code(name) and ":" in name else (name, "", "")
        )
        return f"{move(file)}{colon}{function}"

    def metric_at(metric: str | EvaluateMetric) -> str | EvaluateMetric:
        """A metric whose file, or folder of a module, is at another path."""
        if isinstance(metric, str):
            return str(moved(metric)) if names_code(metric) else metric
        is_path = looks_local(metric.name, (".py",))
        return (
            EvaluateMetric(evaluate={**metric.arguments, "name": str(moved(metric.name))})
            if is_path
            else metric
        )

    data = recipe.data
    places: dict[str, Any] = {key: moved(getattr(data, key)) for key in ("source", *SPLITS)}
    for key in _ROWS:
        rows: RowSelection = getattr(data, key)
        name = rows.from_.rpartition("[")[0] if rows.from_.endswith("]") else rows.from_
        if Path(name).suffix:
            places[key] = rows.model_copy(
                update={"from_": f"{moved(name)}{rows.from_.removeprefix(name)}"}
            )
    update: dict[str, Any] = {
        key: moved(getattr(recipe, key)) for key in ("model", "preprocess", "postprocess")
    }
    update["metric"] = tuple(map(metric_at, recipe.metric))
    update["data"] = data.model_copy(update=places)
    for name in ("finetune", "qat"):
        stage = getattr(recipe, name)
        if stage is not None:
            distill = stage.distill and stage.distill.model_copy(
                update={"teacher": moved(stage.distill.teacher)}
            )
            update[name] = stage.model_copy(update={"distill": distill, "code": moved(stage.code)})
    if recipe.qat is not None and recipe.qat.trained is not None:
        update["qat"] = update["qat"].model_copy(update={"trained": moved(recipe.qat.trained)})
    return recipe.model_copy(update=update)
