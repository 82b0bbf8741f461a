"""Rows that the data stage stored, as the model reads them."""

from __future__ import annotations

from typing import Any

from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.evaluation.criterion import TuningPart
from octobert.pipeline.contract import StepResult
from octobert.tasks import Task


def tokenizer_of(capture: StepResult, task: Task) -> Tokenizer:
    """The tokenizer of the captured model, which cuts at the task's length."""
    return Tokenizer(capture.path(""), task.max_length)


def calibration_rows(data: StepResult, task: Task, tokenizer: Tokenizer) -> EncodedTexts:
    """What the model reads for the calibration rows."""
    return encoded(data.read_json("calibration.json")["inputs"], task, tokenizer)


def evaluation_rows(data: StepResult, task: Task, tokenizer: Tokenizer) -> tuple[EncodedTexts, list[Any]]:
    """(What the model reads for the evaluation rows, gold of each row)."""
    stored = data.read_json("evaluation.json")
    return encoded(stored["inputs"], task, tokenizer), stored["gold"]


def tuning_parts(data: StepResult) -> list[TuningPart]:
    """The growing parts of the tuning rows."""
    return [TuningPart([tuple(text) for text in part["inputs"]], part["gold"]) for part in data.read_json("tuning.json")]


def encoded(inputs: list[list[str]], task: Task, tokenizer: Tokenizer) -> EncodedTexts:
    """What the model reads for texts that the data stage stored as JSON."""
    return task.encode(tokenizer, [tuple(texts) for texts in inputs])
