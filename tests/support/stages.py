"""Run a stage in the test's process, or as a request of an executor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octobert.config.recipe import Recipe
from octobert.core.frozen import FrozenModel
from octobert.pipeline.contract import Context, Request, Step, resolved
from octobert.pipeline.planner import steps_of


def step_of(recipe: Recipe, name: str) -> Step:
    """The step of that name."""
    return next(step for step in steps_of(recipe) if step.name == name)


def stored(out: Path, stage: str) -> Path:
    """The only artifact of a stage in the store of a run."""
    (folder,) = (out / ".octobert" / "store").glob(f"{stage}-*")
    return folder


def changed(model: FrozenModel, /, **changes: Any) -> Any:
    """A copy with other values, checked; a dictionary changes parts of what is there."""
    values = {name: getattr(model, name) for name in type(model).model_fields}
    for name, value in changes.items():
        inner = values[name]
        values[name] = changed(inner, **value) if isinstance(value, dict) and isinstance(inner, FrozenModel) else value
    return type(model)(**values)


def context_of(step: Step, folder: Path, made: Mapping[str, Path], /, **options: Any) -> Context:
    """What a stage is given, in folders of its own below `folder`.

    Args:
        made: step → the folder of its result.
        options: those that are to be otherwise.
    """
    (folder / "work").mkdir(parents=True)
    inputs = resolved(step.inputs, made)
    return Context(inputs, changed(step.options, **options), folder / "work", folder / "scratch", lambda *_: None)


def request_of(step: Step, scratch: Path, made: Mapping[str, Path], /, **options: Any) -> Request:
    """A step as an executor gets it."""
    return Request(
        stage=step.stage,
        inputs=resolved(step.inputs, made).model_dump(mode="json"),
        options=changed(step.options, **options).model_dump(mode="json", by_alias=True),
        scratch=scratch,
        temporary=scratch.parent,
    )
