"""The quantized graph → the files of one target, laid out as in the finished package: `onnx/`, and others that it needs."""

from __future__ import annotations

import shutil

import onnx_ir as ir

from octobert import targets
from octobert.core.capability import Capabilities
from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan
from octobert.core.session import ExportOptions, StaticShape
from octobert.graph import operators
from octobert.graph.passes import first_token, norms
from octobert.pipeline.contract import Context, StepResult, Summary
from octobert.pipeline.stages import _artifacts


class Inputs(FrozenModel):
    """The plan and the quantized graph."""

    quantize: StepResult


class Options(FrozenModel):
    """What the target's files are like.

    Args:
        fast_norms: write norms in operators that are faster on few cores.
        shape: of targets that want it fixed.
    """

    target: str
    fast_norms: bool
    shape: StaticShape | None


def run(context: Context[Inputs, Options]) -> Summary:
    """Export."""
    options, target = context.options, targets.load(context.options.target)
    plan = context.inputs.quantize.read(_artifacts.PLAN, QuantPlan)
    written = context.inputs.quantize.path(_artifacts.QUANTIZED)
    sliced = target.CAPABILITIES.first_token
    fast_norms = options.fast_norms and is_for_it_alone(plan, target.CAPABILITIES)
    products = rewritten = 0
    rewriting = context.work / "rewritten"
    if sliced or fast_norms:
        model = ir.load(written)
        products = first_token.slice_first_token_(model) if sliced else 0
        rewritten = norms.vectorize_norms_(model) if fast_norms else 0
        if products or rewritten:
            rewriting.mkdir()
            written = rewriting / written.name
            operators.save(model, written)
    target.export(written, context.work, ExportOptions(shape=options.shape, float_parts=plan.float_parts))
    shutil.rmtree(rewriting, ignore_errors=True)
    size = sum(file.stat().st_size for file in target.model_file(context.work).parent.iterdir())
    return {"size_bytes": size, "format": target.CAPABILITIES.formats[-1], "first_token": products, "fast_norms": rewritten}


def is_for_it_alone(plan: QuantPlan, capabilities: Capabilities) -> bool:
    """Whether a plan is for this target alone: what it quantizes and the target computes in float is for another runtime."""
    taken = all(d.site.role in capabilities.roles for d in plan.decisions if d.quantizer is not None)
    return taken and plan.float_parts == "float32"
