"""Olive configs become recipes.

`read` converts a file, `convert` plain data. Every field of the source gets one outcome (`importers/outcomes.py`). Parts:
`layout` finds the parts of a config in whichever layout they stand; `model`, `data`, `systems`, `goals`, `engine` and `passes`
set keys of a `Draft`; `scripts` reads what user scripts say, and runs none; `rendering` writes the recipe with its outcomes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octobert.core.tabular import Row, Tabular
from octobert.importers.olive import data, document, engine, finishing, goals, model, passes, rendering, searching, systems
from octobert.importers.olive.document import is_config, is_config_file
from octobert.importers.olive.draft import Draft
from octobert.importers.olive.layout import Config, Pass, config_of
from octobert.importers.outcomes import Node, Outcome

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
        recipe = rendering.moved(self.recipe, self.folder, folder or self.folder)
        return rendering.text(recipe, self.outcomes, self.source)

    def to_rows(self) -> list[Row]:
        """One row for each field: field, value, verdict, key, note."""
        return [outcome.model_dump() for outcome in self.outcomes]


def read(path: Path) -> Imported:
    """Convert a config file.

    Raises:
        RecipeError: it cannot be read, is not an Olive config, or asks for what changes the result and octobert cannot do.
    """
    return convert(document.read(path), where=str(path), folder=path.parent, name=path.name)


def convert(raw: Any, *, where: str = "config", folder: Path = Path(), name: str = "config") -> Imported:
    """Convert a config given as plain data.

    Args:
        raw: the config.
        where: name of the config in errors.
        folder: that relative paths are relative to.
        name: of the file, for the recipe's first line.

    Raises:
        RecipeError: it is not an Olive config, or asks for what changes the result and octobert cannot do.
    """
    config = config_of(raw, where=where, folder=folder)
    draft = Draft(config)
    steps = config.passes()
    draft.searching = searching.is_searched(config, steps)
    model.read(draft)
    evaluator = config.named("evaluators", config.get("evaluator"))
    metrics = goals.metrics_of(evaluator)
    data.read(draft, goals.leading(draft, metrics), _calibrated(config, steps))
    systems.read(draft)
    goals.read(draft, metrics)
    passes.read(draft, steps)
    finishing.method(draft, any_pass=bool(steps))
    systems.finish(draft)
    goals.finish(draft)
    finishing.fit(draft)
    finishing.shapes(draft)
    engine.read(draft)
    searching.finish(draft)
    for other in config.objects("evaluators").values():
        other.not_needed("not the evaluator of this config")
    draft.set("task", {draft.task: draft.task_options} if draft.task_options else draft.task)
    return Imported(recipe=draft.ordered(), outcomes=config.root.ledger.outcomes(raw), folder=folder, source=name)


def _calibrated(config: Config, steps: list[Pass]) -> list[tuple[Node, Node]]:
    """(field of a pass that quantizes or trains, its data config)."""
    fields = [
        step.node.get(name) for step in steps if "quantization" in step.kind for name in ("data_config", "train_data_config")
    ]
    found = []
    for field in fields:
        if field is not None:
            field.mapped("data.calibrate", data.FROM_TRAIN) if isinstance(field.value, str) else None
            resolved = config.named("data_configs", field)
            found += [(field, resolved)] if resolved is not None else []
    return found
