"""What stages leave for each other, how it is read, and what can be told from it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octobert.core.errors import ModelError
from octobert.core.evidence import Smoothed
from octobert.core.family import EncoderFamily
from octobert.core.family import family_of as family_of_type
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Score
from octobert.core.results import CaptureFacts
from octobert.core.session import Feeds, Tuned
from octobert.data import other_texts
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.evaluation.judging import TuningPart
from octobert.models import source
from octobert.models.source import ModelSource
from octobert.pipeline.contract import StepResult
from octobert.tasks import Task

FLOAT, QUANTIZED = "model.onnx", "model_quantized.onnx"
PLAN, RANGES, CAPTURED = "plan.json", "ranges.json", "capture.json"
STATISTICS, OBSERVED = "statistics.npz", "observed.json"
TRANSFORMS, CHANNELS = "transforms.json", "channels.json"
SENSITIVITY, SEARCH, SIMULATION = "sensitivity.json", "search.json", "simulation.json"
OUTPUTS, SCORES, TIMINGS, TUNED = "outputs.npz", "scores.json", "timings.json", "tuned.json"
# Outputs for texts that nothing is fitted to.
PROBED = "probed.npz"
EXECUTION = "execution.json"
# Loss and learning rate of each step of a training.
CURVE = "curve.json"
# Corrected constants of linear layers, where there are any.
CORRECTIONS = "corrections.npz"
# Scales of weights that quantization-aware training chose.
SCALES = "scales.npz"
# The folder of a trained checkpoint.
CHECKPOINT = "checkpoint"


class Channels(FrozenModel):
    """`channels.json`: of every group whose channels were scaled, their magnitudes."""

    smoothed: tuple[Smoothed, ...]


class StoredScores(FrozenModel):
    """`scores.json`."""

    scores: tuple[Score, ...]


class TunedResults(FrozenModel):
    """`tuned.json`, one result per goal."""

    results: tuple[Tuned, ...]


def family_of(capture: StepResult) -> EncoderFamily:
    """The encoder family of the captured model."""
    facts = capture.read(CAPTURED, CaptureFacts)
    family = family_of_type(facts.family)
    if family is None:
        raise ModelError(
            "the encoder family is not installed", where=capture.step, got=facts.family
        )
    return family


def trained_source(model: ModelSource, trained: StepResult | None) -> ModelSource:
    """The model that a run is about: what a step trained, or what the user named."""
    return model if trained is None else source.resolve(trained.path(CHECKPOINT))


def vocabulary_of(capture: StepResult) -> int:
    """The size of the captured model's vocabulary, for random inputs."""
    return int(capture.read_json("config.json").get("vocab_size", 1000))


def tokenizer_of(capture: StepResult, task: Task) -> Tokenizer:
    """The tokenizer of the captured model, which cuts at the task's length."""
    return task.tokenizer(capture.path(""))


def calibration_rows(
    capture: StepResult, data: StepResult, task: Task
) -> tuple[Tokenizer, EncodedTexts]:
    """(The tokenizer of the captured model, what the model reads for the calibration rows)."""
    tokenizer = tokenizer_of(capture, task)
    return tokenizer, encoded(data.read_json("calibration.json")["inputs"], task, tokenizer)


def batches(folder: Path, data: StepResult, task: Task) -> list[Feeds]:
    """The calibration rows one by one, as a graph reads them."""
    rows = encoded(data.read_json("calibration.json")["inputs"], task, task.tokenizer(folder))
    return [feeds_of([row], 0) for row in rows.flat]


def supplement(
    tokenizer: Tokenizer, own: EncodedTexts, task: Task, *, wanted: bool
) -> EncodedTexts:
    """What the model reads for the texts that ranges have to hold for, too; none if they are not wanted.

    Args:
        own: the calibration rows, whose form they have.
    """
    texts = task.inputs_like(own.texts[0], other_texts.supplement(tokenizer)) if wanted else []
    return task.encode(tokenizer, texts)


def evaluation_rows(
    capture: StepResult, data: StepResult, task: Task
) -> tuple[Tokenizer, EncodedTexts, list[Any]]:
    """(The tokenizer of the captured model, what the model reads for the evaluation rows, gold of each row)."""
    tokenizer, stored = tokenizer_of(capture, task), data.read_json("evaluation.json")
    return tokenizer, encoded(stored["inputs"], task, tokenizer), stored["gold"]


def tuning_parts(data: StepResult) -> list[TuningPart]:
    """The growing parts of the tuning rows."""
    return [
        TuningPart([tuple(text) for text in part["inputs"]], part["gold"])
        for part in data.read_json("tuning.json")
    ]


def encoded(inputs: list[list[str]], task: Task, tokenizer: Tokenizer) -> EncodedTexts:
    """What the model reads for texts that the data stage stored as JSON."""
    return task.encode(tokenizer, [tuple(texts) for texts in inputs])
