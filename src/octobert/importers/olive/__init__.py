"""Olive configs become recipes.

`read` converts a file, `convert` plain data. Every field of the source gets one outcome (`importers/outcomes.py`). What is
known of Olive's fields is in `fields.yaml`, of its names in `names.yaml`; `rules` applies them to a `Draft`. Parts: `model`,
`data`, `systems`, `goals` and `passes` have what has to be computed; `scripts` reads what user scripts say, and runs none;
`document` reads configs and writes recipes with their outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octobert.core.errors import RecipeError
from octobert.core.frozen import Row, Tabular
from octobert.importers.olive import data, document, goals, model, passes, systems
from octobert.importers.olive.document import is_config, is_config_file
from octobert.importers.olive.rules import GROUPS, Config, Draft, Pass, apply, names
from octobert.importers.outcomes import Node, Outcome, outcomes_of

__all__ = ["Imported", "convert", "is_config", "is_config_file", "read"]


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

    def text(self, folder: Path | None = None) -> str:
        """The text of a recipe file, with one comment for each field of the config.

        Args:
            folder: where the file will be; relative paths follow. Default: the folder of the config.
        """
        recipe = document.moved(self.recipe, self.folder, folder or self.folder)
        return document.text(recipe, self.outcomes, self.source)

    def to_rows(self) -> list[Row]:
        """One row for each field: field, value, verdict, key, note."""
        return [outcome.model_dump() for outcome in self.outcomes]


def read(path: Path) -> Imported:
    """Convert a config file.

    Raises:
        RecipeError: it cannot be read, is not an Olive config, or asks for what changes the result and octobert cannot do.
    """
    return convert(document.read(path), where=str(path), folder=path.parent, name=path.name)


def convert(
    raw: Any, *, where: str = "config", folder: Path = Path(), name: str = "config"
) -> Imported:
    """Convert a config given as plain data.

    Args:
        raw: the config.
        where: name of the config in errors.
        folder: that relative paths are relative to.
        name: of the file, for the recipe's first line.

    Raises:
        RecipeError: it is not an Olive config, or asks for what changes the result and octobert cannot do.
    """
    config = _config_of(raw, where=where, folder=folder)
    steps = config.passes()
    draft = Draft(config, search=goals.search_of(config, steps))
    model.read(draft)
    metrics = config.named("evaluators", config.root.get("evaluator")).get("metrics").elements()
    data.read(draft, goals.leading(draft, metrics), _calibrated(config, steps))
    systems.read(draft)
    goals.read(draft, metrics)
    passes.read(draft, steps)
    if steps:
        systems.set_method_options(draft)
    systems.set_targets(draft)
    goals.set_sessions(draft)
    systems.fit_to_targets(draft)
    systems.set_shapes(draft)
    apply(draft, config.root, "top")
    goals.set_search(draft)
    for other in config.objects("evaluators").values():
        other.not_needed("not the evaluator of this config")
    draft.set("task", {draft.task: draft.task_options} if draft.task_options else draft.task)
    return Imported(
        recipe=draft.ordered(), outcomes=outcomes_of(config.root), folder=folder, source=name
    )


def _config_of(raw: Any, *, where: str, folder: Path) -> Config:
    """The config in plain data.

    Raises:
        RecipeError: the data is not an Olive config, or one of a layout that is not read.
    """
    if not is_config(raw):
        got = f"a {type(raw).__name__}"
        if isinstance(raw, Mapping):
            got = f"the keys {', '.join(map(str, list(raw)[:6]))}" if raw else "an empty object"
        expected = "a JSON object with input_model and passes"
        raise RecipeError(
            "the file is not an Olive config", where=where, got=got, expected=expected
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
