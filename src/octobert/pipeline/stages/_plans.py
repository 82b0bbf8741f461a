"""Plans, and graphs written by them: what the stages quantize, search, sweep and qat share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from octobert import targets
from octobert.config.recipe import Choice
from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.core.family import family_of as family_of_type
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.results import CaptureFacts
from octobert.graph import operators, qdq, sites
from octobert.pipeline.contract import StepResult
from octobert.quantization import apply_corrections, methods
from octobert.quantization.layers import LayerChange

FLOAT, QUANTIZED = "model.onnx", "model_quantized.onnx"
PLAN, RANGES = "plan.json", "ranges.json"
# Corrected constants of linear layers, where there are any.
CORRECTIONS = "corrections.npz"
# Scales of weights that quantization-aware training chose.
SCALES = "scales.npz"


def family_of(capture: StepResult) -> EncoderFamily:
    """The encoder family of the captured model."""
    facts = capture.read("capture.json", CaptureFacts)
    family = family_of_type(facts.family)
    if family is None:
        raise ModelError("the encoder family is not installed", where=capture.step, got=facts.family)
    return family


def plan_of(capture: StepResult, graph: Path, ranges: Ranges, target: str, method: Choice) -> QuantPlan:
    """The plan that a method makes of a float graph for a target.

    Args:
        graph: the float graph.
    """
    planner = methods.load(method.name)
    found = sites.find_sites(ir.load(graph).graph, family_of(capture))
    options = planner.Options.model_validate(method.options)
    return planner.plan(found, ranges, targets.load(target).CAPABILITIES, options)


def write_quantized(graph: Path, plan: QuantPlan, changes: Mapping[str, LayerChange], path: Path) -> int:
    """Write a copy of a float graph, quantized by a plan, with corrected layers; its size in bytes."""
    model = ir.load(graph)
    qdq.write(model, plan, apply_corrections.apply_(model, changes, plan))
    operators.save(model, path)
    onnx.checker.check_model(str(path), full_check=False)
    return path.stat().st_size
