"""Olive configs become recipes: an importer of octobert (`octobert.config.importers`).

Every field of a config gets one outcome, and so does every default of its tools that changes the model. What is known of the
fields is in `fields.yaml`, of names and defaults in `names.yaml`; `rules` applies them to a `Draft`. Parts: `nodes` is the
config; `model`, `data`, `systems`, `goals`, `searches`, `passes` and `quantizers` have what has to be computed; `scripts` reads
what user scripts say, and runs none; `stand_ins` is what they import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from octobert.config.importers import Importer, Outcome
from octobert.config.recipe import PlainRecipe
from octobert.core.errors import RecipeError
from octobert_olive import data, goals, model, passes, searches, stand_ins, systems
from octobert_olive.nodes import Node, outcomes_of
from octobert_olive.rules import GROUPS, Config, Draft, OlivePass, apply, names

# Fields that only Olive's configs have, at the top.
MARKS = ("input_model", "passes", "pass_flows", "evaluators", "data_configs", "engine", "builds")
# Keys that say how a model is quantized.
_METHOD = ("quantize", "transforms", "calibrate", "corrections", "repair", "format", "search")


class Olive(Importer):
    """Olive, Microsoft's tool that optimizes models."""

    tool: str = "Olive"
    expected: str = "a JSON object with input_model and passes"

    def is_config(self, raw: Any) -> bool:
        """Return whether plain data is an Olive config rather than a recipe.

        Example:
            >>> Olive().is_config({"input_model": {"type": "HfModel"}}), Olive().is_config({"model": "m", "task": "mrpc"})
            (True, False)
        """
        return (
            isinstance(raw, Mapping) and "model" not in raw and any(mark in raw for mark in MARKS)
        )

    def convert(
        self, raw: Any, where: str, folder: Path, as_octobert: bool
    ) -> tuple[PlainRecipe, tuple[Outcome, ...]]:
        """Return the recipe and the outcomes; see `octobert.config.importers.Importer`.

        Raises:
            RecipeError: the config asks for what changes the result and octobert cannot do.
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
        return draft.ordered(), outcomes

    def modules(self) -> AbstractContextManager[None]:
        """Let scripts import what stands in for Olive, where Olive is not installed."""
        return stand_ins.modules()


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
            result.append(outcome.replaced(key=key or None))
        elif not outcome.default:
            result.append(outcome.replaced(**taken))
    return tuple(result)


def _config_of(raw: Any, *, where: str, folder: Path) -> Config:
    """The config in plain data.

    Raises:
        RecipeError: its layout is not read.
    """
    for field, why in names("other_layouts").items():
        if raw.get(field):
            raise RecipeError(
                f"the config is of another version of Olive's schema: {field} means {why}",
                where=where,
            )
    return Config(Node(raw, "", {}, GROUPS), folder, where)


def _calibrated(config: Config, steps: list[OlivePass]) -> list[Node]:
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
