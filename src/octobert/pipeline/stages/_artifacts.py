"""Files that stages leave for each other, and what can be told from them alone."""

from __future__ import annotations

from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.core.family import family_of as family_of_type
from octobert.core.results import CaptureFacts
from octobert.models import source
from octobert.models.source import ModelSource
from octobert.pipeline.contract import StepResult

FLOAT, QUANTIZED = "model.onnx", "model_quantized.onnx"
PLAN, RANGES = "plan.json", "ranges.json"
# Corrected constants of linear layers, where there are any.
CORRECTIONS = "corrections.npz"
# Scales of weights that quantization-aware training chose.
SCALES = "scales.npz"
# The folder of a trained checkpoint.
CHECKPOINT = "checkpoint"


def family_of(capture: StepResult) -> EncoderFamily:
    """The encoder family of the captured model."""
    facts = capture.read("capture.json", CaptureFacts)
    family = family_of_type(facts.family)
    if family is None:
        raise ModelError("the encoder family is not installed", where=capture.step, got=facts.family)
    return family


def trained_source(model: ModelSource, trained: StepResult | None) -> ModelSource:
    """The model that a run is about: what a step trained, or what the user named."""
    return model if trained is None else source.resolve(trained.path(CHECKPOINT))
