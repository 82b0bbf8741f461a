"""Olive configs become recipes.

`read` converts a file, `convert` plain data. Every field of the source gets one outcome (`octobert.importers`), and so does
every default of its tools that changes the model. What is known of Olive's fields is in `fields.yaml`, of its names and
defaults in `names.yaml`; `rules` applies them to a `Draft`. Parts: `model`, `data`, `systems`, `goals`, `searches`, `passes`
and `quantizers` have what has to be computed; `scripts` reads what user scripts say, and runs none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from octobert.config import yaml_text
from octobert.core.errors import RecipeError
from octobert.core.frozen import Row, Tabular
from octobert.core.plain import parsed_json
from octobert.importers import Node, Outcome, outcomes_of
from octobert.importers.olive import data, goals, model, passes, searches, systems
from octobert.importers.olive.rules import GROUPS, Config, Draft, Pass, apply, names

# Fields that only Olive's configs have, at the top.
MARKS = ("input_model", "passes", "pass_flows", "evaluators", "data_configs", "engine", "builds")
_HEADINGS = {
    "refused": "Fields that octobert does not do",
    "mapped": "Fields that became keys of this recipe, and defaults of their tool",
    "not needed": "Fields that octobert needs no key for",
}
# Keys that say how a model is quantized.
_METHOD = ("quantize", "transforms", "calibrate", "corrections", "repair", "format", "search")
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


class Imported(Tabular):
    """A config as a recipe.

    Args:
        recipe: the recipe as plain data; relative paths are relative to `folder`.
        outcomes: what became of each field of the config, in its order.
        folder: of the config.
        source: name of the config.
    """

    recipe: dict[str, Any]
    outcomes: tuple[Outcome, ...]
    folder: Path
    source: str

    def text(self, folder: Path | None = None, *, every: bool = False) -> str:
        """The text of a recipe file, with one comment for each field of the config that is refused or mapped.

        Args:
            folder: where the file will be; relative paths follow. Default: the folder of the config.
            every: also the fields that octobert needs no key for.
        """
        recipe = _moved(self.recipe, self.folder, folder or self.folder)
        lines = [f"# Imported from {_line(self.source)}, a config of Olive.", ""]
        lines += [yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120).rstrip()]
        for verdict, heading in _HEADINGS.items():
            chosen = [outcome for outcome in self.outcomes if outcome.verdict == verdict]
            if chosen and (every or verdict != "not needed"):
                lines += [
                    "",
                    f"# {heading}:",
                    *(f"#   {_line(outcome.sentence())}" for outcome in chosen),
                ]
        return "\n".join(lines) + "\n"

    def to_rows(self) -> list[Row]:
        """One row for each field: field, value, verdict, key, note, default. Refused ones come first, then mapped ones."""
        order = list(_HEADINGS)
        ordered = sorted(self.outcomes, key=lambda outcome: order.index(outcome.verdict))
        return [outcome.model_dump() for outcome in ordered]


def is_config(raw: Any) -> bool:
    """Return whether plain data is an Olive config rather than a recipe.

    Example:
        >>> is_config({"input_model": {"type": "HfModel"}}), is_config({"model": "m", "task": "mrpc", "data": "d"})
        (True, False)
    """
    return isinstance(raw, Mapping) and "model" not in raw and any(mark in raw for mark in MARKS)


def is_config_file(path: Path) -> bool:
    """Return whether a file is an Olive config. Mistakes in it are for `read`, or for the reader of recipes."""
    try:
        return is_config(_content_of(path))
    except RecipeError:
        return False


def _content_of(path: Path) -> Any:
    """Read a file.

    Raises:
        RecipeError: it does not exist, cannot be read, is too large, or is neither JSON nor YAML.
    """
    text = yaml_text.text_of(path, "config")
    if path.suffix.lower() != ".json":
        return yaml_text.parse(text, where=str(path), what="the config is not valid YAML")
    try:
        return parsed_json(text, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        raise RecipeError(
            "the file is not valid JSON", where=f"{path}, line {error.lineno}", got=error.msg
        ) from error
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


def read(path: Path, *, as_octobert: bool = False) -> Imported:
    """Convert a config file; see `convert`.

    Raises:
        RecipeError: it cannot be read, is not an Olive config, or asks for what changes the result and octobert cannot do.
    """
    try:
        return convert(
            _content_of(path),
            where=str(path),
            folder=path.parent,
            name=path.name,
            as_octobert=as_octobert,
        )
    except RecursionError:
        raise RecipeError("the config is nested too deeply", where=str(path)) from None


def convert(
    raw: Any,
    *,
    where: str = "config",
    folder: Path = Path(),
    name: str = "config",
    as_octobert: bool = False,
) -> Imported:
    """Convert a config given as plain data.

    Args:
        raw: the config.
        where: name of the config in errors.
        folder: that relative paths are relative to.
        name: of the file, for the recipe's first line.
        as_octobert: keep model, data, targets and goals, and leave the method to octobert.

    Raises:
        RecipeError: it is not an Olive config, or asks for what changes the result and octobert cannot do.
    """
    config = _config_of(raw, where=where, folder=folder)
    steps = config.passes()
    draft = Draft(config, search=searches.search_of(config, steps))
    model.read(draft)
    evaluator = config.named("evaluators", config.root.get("evaluator"))
    metrics = evaluator.get("metrics").elements()
    data.read(
        draft,
        goals.leading(draft, metrics),
        _calibrated(config, steps),
        [*metrics, *(step.node for step in steps)],
        ranges=any(step.takes_ranges for step in steps),
    )
    systems.read(draft, evaluator)
    goals.read(draft, metrics, judged=config.searches)
    passes.read(draft, steps or [passes.chosen_by_olive(draft, metrics)])
    systems.set_method_options(draft)
    systems.set_targets(draft)
    goals.set_sessions(draft)
    systems.fit_to_targets(draft)
    systems.set_shapes(draft)
    apply(draft, config.root, "top")
    searches.set_search(draft)
    apply(draft, evaluator, "evaluator")
    for other in config.objects("evaluators").values():
        if other.path != evaluator.path:
            other.not_needed("not the evaluator of this config")
    draft.set("task", {draft.task: draft.task_options} if draft.task_options else draft.task)
    outcomes = outcomes_of(config.root)
    if as_octobert:
        outcomes = _without_method(draft, outcomes)
    return Imported(recipe=draft.ordered(), outcomes=outcomes, folder=folder, source=name)


def _without_method(draft: Draft, outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Remove the method from a recipe. A search for limits stays one, over octobert's own forms."""
    search = draft.recipe.get("search")
    for key in _METHOD:
        draft.recipe.pop(key, None)
    if search is not None:
        kept = {key: search[key] for key in ("limits", "minutes") if key in search}
        draft.recipe["choose"] = kept
    calibrate = draft.recipe.get("data", {}).get("calibrate", {})
    calibrate.pop("samples", None)
    taken = {"verdict": "not needed", "key": None, "note": "the method is octobert's own"}
    removed = (*_METHOD, "data.calibrate.samples")
    result = []
    for outcome in outcomes:
        key = (outcome.key or "").replace("search.limits", "choose.limits")
        if not key.startswith(removed):
            result.append(outcome.model_copy(update={"key": key or None}))
        elif not outcome.default:
            result.append(outcome.model_copy(update=taken))
    return tuple(result)


def _config_of(raw: Any, *, where: str, folder: Path) -> Config:
    """The config in plain data.

    Raises:
        RecipeError: the data is not an Olive config, or one of a layout that is not read.
    """
    if not is_config(raw):
        got = f"a {type(raw).__name__}"
        if isinstance(raw, Mapping):
            got = f"the keys {', '.join(map(str, list(raw)[:6]))}" if raw else "an empty object"
        raise RecipeError(
            "the file is not an Olive config",
            where=where,
            got=got,
            expected="a JSON object with input_model and passes",
        )
    for field, why in names("other_layouts").items():
        if raw.get(field):
            raise RecipeError(
                f"the config is of another version of Olive's schema: {field} means {why}",
                where=where,
            )
    return Config(Node(raw, "", {}, GROUPS), folder, where)


def _calibrated(config: Config, steps: list[Pass]) -> list[Node]:
    """The data configs of passes that quantize or train."""
    fields = [
        step.node.get(name)
        for step in steps
        if step.quantizes
        for name in ("data_config", "train_data_config")
    ]
    for field in fields:
        if isinstance(field.value, str):
            field.mapped("data.calibrate", data.FROM_TRAIN)
    return [node for node in (config.named("data_configs", field) for field in fields) if node]


def _moved(recipe: dict[str, Any], old: Path, new: Path) -> dict[str, Any]:
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
