"""What steps make: a class for each kind of artifact, which knows the files of its folder.

A stage takes these values and writes the files of one of them. A step in a process of its own gets them as a name and a folder
(`StepResult`), so that they hold no data: what is read, is read when a method is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.arrays import arrays_in
from octobert.core.errors import ModelError
from octobert.core.evidence import Curve, Execution, Smoothed
from octobert.core.families import family_of
from octobert.core.family import EncoderFamily
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Score
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges, TensorStatistics
from octobert.core.results import (
    CHECKPOINT,
    AccuracySearch,
    CaptureFacts,
    Sensitivity,
    Simulated,
    TransformFacts,
)
from octobert.core.session import Feeds, Tuned
from octobert.data import other_texts
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import EncodedTexts, Tokenizer, TuningPart
from octobert.engine.contract import StepResult
from octobert.engine.store import manifest_of
from octobert.models import source
from octobert.models.source import ModelSource
from octobert.quantization import apply_corrections, observer
from octobert.quantization.corrections import LayerChange
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


class Channels(FrozenModel):
    """`channels.json`: of every group whose channels were scaled, their magnitudes."""

    smoothed: tuple[Smoothed, ...]


class StoredScores(FrozenModel):
    """`scores.json`."""

    scores: tuple[Score, ...]


class TunedResults(FrozenModel):
    """`tuned.json`, one result per goal."""

    results: tuple[Tuned, ...]


class Rows(StepResult):
    """The rows of each part of the data, as the data stage stored them."""

    def calibration(self) -> list[list[str]]:
        """Return the texts of the calibration rows."""
        inputs: list[list[str]] = self.read_json("calibration.json")["inputs"]
        return inputs

    def tuning(self) -> list[TuningPart]:
        """Return the growing parts of the tuning rows."""
        parts = self.read_json("tuning.json")
        return [
            TuningPart([tuple(text) for text in part["inputs"]], part["gold"]) for part in parts
        ]

    def feeds(self, task: Task, folder: Path) -> list[Feeds]:
        """Return the calibration rows one by one, as a graph of any kind in a folder reads them."""
        rows = encoded(self.calibration(), task, task.tokenizer(folder))
        return [feeds_of([row], 0) for row in rows.flat]


class FloatGraph(StepResult):
    """A float graph."""

    @property
    def file(self) -> Path:
        """The ONNX file."""
        return self.path(FLOAT)

    def load(self) -> ir.Model:
        """Return the graph, to be edited."""
        return ir.load(self.file)


class CapturedModel(FloatGraph):
    """The captured model with its tokenizer."""

    @property
    def facts(self) -> CaptureFacts:
        """What capture found out."""
        return self.read(CAPTURED, CaptureFacts)

    @property
    def family(self) -> EncoderFamily:
        """The encoder family of the model.

        Raises:
            ModelError: it is not installed any more.
        """
        name = self.facts.family
        family = family_of(name)
        if family is None:
            raise ModelError("the encoder family is not installed", where=self.step, got=name)
        return family

    @property
    def vocabulary(self) -> int:
        """The number of tokens, for random inputs."""
        return int(self.read_json("config.json").get("vocab_size", 1000))

    def tokenizer(self, task: Task) -> Tokenizer:
        """Return the tokenizer, which cuts at the task's length."""
        return task.tokenizer(self.path(""))

    def calibration(self, data: Rows, task: Task) -> tuple[Tokenizer, EncodedTexts]:
        """Return the tokenizer, and what the model reads for the calibration rows."""
        tokenizer = self.tokenizer(task)
        return tokenizer, encoded(data.calibration(), task, tokenizer)

    def evaluation(self, data: Rows, task: Task) -> tuple[Tokenizer, EncodedTexts, list[Any]]:
        """Return the tokenizer, what the model reads for the evaluation rows, and the gold of each row."""
        tokenizer, stored = self.tokenizer(task), data.read_json("evaluation.json")
        return tokenizer, encoded(stored["inputs"], task, tokenizer), stored["gold"]


class Transformed(FloatGraph):
    """A float graph that loses less in 8 bits, and how it was changed."""

    @property
    def facts(self) -> TransformFacts:
        """What each transform did."""
        return self.read(TRANSFORMS, TransformFacts)

    @property
    def smoothed(self) -> tuple[Smoothed, ...]:
        """The magnitudes of channels that were scaled."""
        return self.read(CHANNELS, Channels).smoothed


class Statistics(StepResult):
    """What was observed of each activation."""

    def tensors(self) -> dict[str, TensorStatistics]:
        """Return the statistics by the name of the value."""
        return observer.load(self.path(STATISTICS))


class Calibrated(StepResult):
    """Ranges of activations; those of a training are with the scales of weights that it chose."""

    @property
    def ranges(self) -> Ranges:
        """The intervals, and where they come from."""
        return self.read(RANGES, Ranges)

    def scales(self) -> dict[str, np.ndarray]:
        """Return the trained scales of weights; none where nothing was trained."""
        path = self.path(SCALES)
        return arrays_in(path) if path.is_file() else {}


class Checkpoint(StepResult):
    """A checkpoint that a step has trained."""

    @property
    def checkpoint(self) -> Path:
        """Its folder."""
        return self.path(CHECKPOINT)

    @property
    def curve(self) -> Curve | None:
        """How training went; None for code of the user, and for a model that was trained elsewhere."""
        return self.read_if_there(CURVE, Curve)


class TrainedModel(Checkpoint, Calibrated):
    """What quantization-aware training makes: a checkpoint, ranges, scales of weights."""


class Planned(StepResult):
    """A plan for a target, and the graph that it writes."""

    @property
    def plan(self) -> QuantPlan:
        """The decision for every site."""
        return self.read(PLAN, QuantPlan)

    @property
    def file(self) -> Path:
        """The quantized ONNX file."""
        return self.path(QUANTIZED)

    @property
    def sensitivity(self) -> Sensitivity | None:
        """What the values of the plan cost; None where it was not estimated."""
        return self.read_if_there(SENSITIVITY, Sensitivity)

    @property
    def search(self) -> AccuracySearch | None:
        """How the plan was found; None where it was not searched for."""
        return self.read_if_there(SEARCH, AccuracySearch)

    def changes(self) -> dict[str, LayerChange]:
        """Return the corrected constants of layers; none where nothing was corrected."""
        path = self.path(CORRECTIONS)
        return apply_corrections.load(path) if path.is_file() else {}


class TargetFiles(StepResult):
    """The files of a target."""

    @property
    def file(self) -> Path:
        """The one that the target opens."""
        return self.path(manifest_of(self).summary["file"])


class Evaluated(StepResult):
    """The outputs of a candidate for all evaluation rows, and its scores."""

    def outputs(self) -> dict[str, np.ndarray]:
        """Return its outputs for the evaluation rows."""
        return arrays_in(self.path(OUTPUTS))

    def probed(self) -> dict[str, np.ndarray]:
        """Return its outputs for texts that nothing is fitted to."""
        return arrays_in(self.path(PROBED))

    @property
    def scores(self) -> tuple[Score, ...]:
        """Its scores, with intervals."""
        return self.read(SCORES, StoredScores).scores


class Timings(StepResult):
    """The times of all candidates."""


class Compared(StepResult):
    """A trained model in PyTorch beside the exported one."""

    @property
    def simulated(self) -> Simulated:
        """How far they agree."""
        return self.read(SIMULATION, Simulated)


class Profiled(StepResult):
    """What a runtime executes of a model."""

    @property
    def execution(self) -> Execution:
        """By the runtime's profiler."""
        return self.read(EXECUTION, Execution)


class TunedTarget(StepResult):
    """The fastest settings of a target's sessions."""

    @property
    def results(self) -> tuple[Tuned, ...]:
        """One for each goal."""
        return self.read(TUNED, TunedResults).results


def source_of(model: ModelSource, trained: Checkpoint | None) -> ModelSource:
    """Return the model that a run is about: what a step trained, or what the user named."""
    return model if trained is None else source.resolve(trained.checkpoint)


def supplement(
    tokenizer: Tokenizer, own: EncodedTexts, task: Task, *, wanted: bool
) -> EncodedTexts:
    """Return what the model reads for the texts that ranges have to hold for, too; none if they are not wanted.

    Args:
        own: the calibration rows, whose form they have.
    """
    texts = task.inputs_like(own.texts[0], other_texts.supplement(tokenizer)) if wanted else []
    return task.encode(tokenizer, texts)


def encoded(inputs: list[list[str]], task: Task, tokenizer: Tokenizer) -> EncodedTexts:
    """Return what the model reads for texts that the data stage stored as JSON."""
    return task.encode(tokenizer, [tuple(texts) for texts in inputs])
