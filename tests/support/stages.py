"""Run a stage in the test's process, or as a request of an executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octobert.config.recipe import Recipe
from octobert.core.frozen import FrozenModel
from octobert.engine import store
from octobert.engine.contract import Context, Request, Step, Summary, resolved, stage_named
from octobert.pipeline.planner import steps_of


def step_of(recipe: Recipe, name: str) -> Step:
    """The step of that name."""
    return next(step for step in steps_of(recipe) if step.name == name)


def stored(out: Path, stage: str, target: str = "") -> Path:
    """The only artifact of a stage, for a target, in the store of a run."""
    folders = (out / ".octobert" / "store").glob(f"{stage}-*")
    (found,) = (f for f in folders if target in (f / store.MANIFEST).read_text(encoding="utf-8"))
    return found


def changed(model: FrozenModel, /, **changes: Any) -> Any:
    """A copy with other values, checked; a dictionary changes parts of what is there."""
    values = {name: getattr(model, name) for name in type(model).model_fields}
    for name, value in changes.items():
        inner = values[name]
        values[name] = (
            changed(inner, **value)
            if isinstance(value, dict) and isinstance(inner, FrozenModel)
            else value
        )
    return type(model)(**values)


@dataclass(frozen=True)
class Call:
    """A stage that can be run in the test's process, in folders of its own."""

    stage: str
    parameters: Mapping[str, Any]
    work: Path
    scratch: Path

    def run(self) -> Summary:
        """Run it."""
        return stage_named(self.stage)(
            Context(self.work, self.scratch, lambda *_: None), **self.parameters
        )


def call_of(step: Step, folder: Path, made: Mapping[str, Path], /, **options: Any) -> Call:
    """A step as a call, in folders of its own below `folder`.

    Args:
        made: step → the folder of its result.
        options: those that are to be otherwise.
    """
    (folder / "work").mkdir(parents=True)
    parameters = {**dict(resolved(step.inputs, made)), **dict(changed(step.options, **options))}
    return Call(step.stage, parameters, folder / "work", folder / "scratch")


def request_of(step: Step, scratch: Path, made: Mapping[str, Path], /, **options: Any) -> Request:
    """A step as an executor gets it."""
    return Request(
        stage=step.stage,
        inputs=resolved(step.inputs, made).model_dump(mode="json"),
        options=changed(step.options, **options).model_dump(mode="json", by_alias=True),
        scratch=scratch,
        temporary=scratch.parent,
    )
