"""Plans, and graphs written by them: what the stages quantize, search, sweep and qat share."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.session import Session, SessionEntries, SessionOptions
from octobert.graph import operators, qdq, sites
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel
from octobert.quantization import apply_corrections
from octobert.quantization.corrections import LayerChange
from octobert.quantization.methods import Method
from octobert.targets import Target, runtimes


def plan_of(
    capture: CapturedModel, model: ir.Model, ranges: Ranges, target: Target, method: Method
) -> QuantPlan:
    """Return the plan that a method makes of a float graph for a target."""
    all_sites = sites.find_sites(model.graph, capture.family)
    return method.plan(all_sites, ranges, target.capabilities)


def opened(
    graph: Path,
    plan: QuantPlan,
    changes: Mapping[str, LayerChange],
    target: Target,
    session: SessionEntries,
) -> Session:
    """A session of a plan's model on its target.

    Args:
        graph: the float graph.
        changes: corrected layers.
        session: what the recipe sets for the target's sessions.
    """
    entries = runtimes.entries_in(
        session, target.capabilities, plan.float_parts, per_token=plan.group is not None
    )
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / artifacts.QUANTIZED
        write_quantized_(ir.load(graph), plan, changes, path)
        return target.open_session(path, SessionOptions(entries=entries))


def write_quantized_(
    model: ir.Model, plan: QuantPlan, changes: Mapping[str, LayerChange], path: Path
) -> int:
    """Quantize a float graph in place, by a plan and with corrected layers, and write it; return its size in bytes."""
    qdq.write(model, plan, apply_corrections.apply_(model, changes, plan))
    operators.save(model, path)
    onnx.checker.check_model(str(path), full_check=False)
    return path.stat().st_size
