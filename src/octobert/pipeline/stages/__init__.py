"""Stages: files in, files out; each runs in a process of its own, started by an executor.

A stage is a module with `VERSION` (bumped by hand when its results change) and `run(context) -> summary`. It reads the
artifacts in `context.inputs` and the options it was keyed by, and writes into `context.work`, nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from octobert.core.frozen import FrozenModel
from octobert.data.tokenization import Asked, TextEncoder
from octobert.tasks._task import Task, build

N = TypeVar("N", bound=FrozenModel)
# Where the fine-tuning stage puts what it made.
CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Context:
    """What a stage is given.

    Args:
        work: folder to write into.
        inputs: name → folder of a stored artifact.
        options: part of the key.
        locations: paths outside the store, whose content is part of the key but whose place is not.
        scratch: folder, to be made, for what an interrupted run of this very stage may go on from; gone once the stage is done.
        progress: call with (what, done, total).
    """

    work: Path
    scratch: Path
    inputs: dict[str, Path]
    options: dict[str, Any]
    locations: dict[str, str]
    progress: Callable[[str, int, int], None]

    def write_json(self, name: str, data: Any) -> None:
        """Write plain data as JSON."""
        (self.work / name).write_text(json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8")

    def write(self, name: str, noun: FrozenModel) -> None:
        """Write a noun as JSON."""
        (self.work / name).write_text(noun.model_dump_json(indent=1), encoding="utf-8")

    def read(self, source: str, name: str, kind: type[N]) -> N:
        """Read a noun from an input artifact."""
        return kind.model_validate_json((self.inputs[source] / name).read_text(encoding="utf-8"))

    def read_json(self, source: str, name: str) -> Any:
        """Read JSON from an input artifact."""
        return json.loads((self.inputs[source] / name).read_text(encoding="utf-8"))


def encoder_of(context: Context) -> TextEncoder:
    """The tokenizer of the captured model, at the task's length."""
    return TextEncoder(context.inputs["capture"], task_of(context.options).max_length)


def ask(context: Context, encoder: TextEncoder, inputs: Sequence[Sequence[str]]) -> Asked:
    """What the model reads for texts that a stage has stored."""
    return task_of(context.options).encode(encoder, [tuple(text) for text in inputs])


def calibration(context: Context) -> tuple[TextEncoder, Asked]:
    """The tokenizer of the captured model, and what the model reads for the calibration rows."""
    encoder = encoder_of(context)
    return encoder, ask(context, encoder, context.read_json("data", "calibration.json")["inputs"])


def evaluation(context: Context, encoder: TextEncoder) -> tuple[Asked, list[Any]]:
    """What the model reads for the evaluated rows, and what is expected."""
    stored = context.read_json("data", "evaluation.json")
    return ask(context, encoder, stored["inputs"]), stored["gold"]


def model_of(context: Context) -> Path:
    """The checkpoint or ONNX file that the run is about: what fine-tuning made, or what the user named."""
    if "finetune" in context.inputs:
        return context.inputs["finetune"] / CHECKPOINT
    return Path(context.locations["model"])


def task_of(options: Mapping[str, Any]) -> Task:
    """The task with its options and labels, from what a stage was keyed by."""
    return build(options["task"]["name"], options["task"]["options"], options["labels"])
