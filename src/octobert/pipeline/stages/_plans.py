"""Plans, and graphs written by them: what the stages quantize, search, sweep and qat share."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from octobert import targets
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.session import Session, SessionEntries, SessionOptions
from octobert.graph import operators, qdq, sites
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel
from octobert.quantization import apply_corrections
from octobert.quantization.corrections import LayerChange
from octobert.quantization.methods import Method
from octobert.targets import runtimes


def plan_of(
    capture: CapturedModel, graph: Path, ranges: Ranges, target: str, method: Method
) -> QuantPlan:
    """The plan that a method makes of a float graph for a target.

    Args:
        graph: the float graph.
    """
    all_sites = sites.find_sites(ir.load(graph).graph, capture.family)
    return method.plan(all_sites, ranges, targets.load(target).capabilities)


def opened(
    graph: Path,
    plan: QuantPlan,
    changes: Mapping[str, LayerChange],
    target: str,
    session: SessionEntries,
) -> Session:
    """A session of a plan's model on its target.

    Args:
        graph: the float graph.
        changes: corrected layers.
        session: what the recipe sets for the target's sessions.
    """
    module = targets.load(target)
    entries = runtimes.entries_in(
        session, module.capabilities, plan.float_parts, per_token=plan.group is not None
    )
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / artifacts.QUANTIZED
        write_quantized(graph, plan, changes, path)
        return module.open_session(path, SessionOptions(entries=entries))


def write_quantized(
    graph: Path, plan: QuantPlan, changes: Mapping[str, LayerChange], path: Path
) -> int:
    """Write a copy of a float graph, quantized by a plan, with corrected layers; its size in bytes."""
    model = ir.load(graph)
    qdq.write(model, plan, apply_corrections.apply_(model, changes, plan))
    operators.save(model, path)
    onnx.checker.check_model(str(path), full_check=False)
    return path.stat().st_size
