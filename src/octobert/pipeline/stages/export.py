"""The quantized graph → the files of one target, laid out as in the finished package: `onnx/`, and others that it needs."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from octobert.core.capability import Capabilities
from octobert.core.plan import QuantPlan
from octobert.core.session import ExportOptions, StaticShape, WrittenOpset
from octobert.engine.contract import Context, Summary, stage
from octobert.graph import operators
from octobert.graph.passes import cpu, first_token
from octobert.graph.passes.opset import METADATA
from octobert.pipeline.artifacts import CapturedModel, Planned, Rows, TargetFiles
from octobert.pipeline.task import TaskSpec
from octobert.targets import TargetField

# Of the rows that the shorter lengths take; how many of these there are; and the tokens that one more of them has to leave.
_COVERED, _MOST_SHORTER, _WORTH = 0.95, 3, 0.9
# Tokens that attention takes at once: 130 MB for 12 heads.
_LONG = 1024
# Matrix units compute blocks of 16 rows.
_STEP, _STEPS = 16, 64


@stage(TargetFiles, anywhere=True)
def run(
    context: Context,
    planned: Planned,
    tokens: CapturedModel | None,
    rows: Rows | None,
    *,
    spec: TaskSpec,
    target: TargetField,
    fast_norms: bool,
    token_states: bool,
    shape: StaticShape | None,
    opset: int | None,
    format: Literal["auto", "qdq", "qoperator"],
    encoder: bool,
    max_length: int,
) -> Summary:
    """Write the files of a target.

    Args:
        planned: the plan, and the quantized graph.
        tokens, rows: the captured model and the data, by which lengths are chosen; None where nothing is chosen.
        fast_norms: write norms in operators that are faster on few cores.
        token_states: of embeddings, write the token states as an output too. Files of one fixed shape, and of
            operators that are fused here, never have them.
        shape: of targets that want it fixed.
        opset: of the ONNX file; None for that of the quantized graph.
        format: products are integer operators in the file (`qoperator`), Q/DQ, or what the target runs faster (`auto`).
        encoder: the graph is an encoder. Any other one is written as it is, with Q/DQ.
        max_length: tokens of the longest text that it reads.
    """
    plan, written = planned.plan, planned.file
    if tokens is not None and rows is not None and shape is not None:
        _, encoded = tokens.calibration(rows, spec.build())
        shorter = shorter_lengths([len(row) for row in encoded.flat], shape.sequence)
        shape = shape.replaced(shorter=shorter)
    model, capabilities = ir.load(written), target.capabilities
    # ONNX Runtime's fusion to QOrdered operators leaves an output unproduced that other operators read as well.
    fixed = shape is not None and capabilities.shapes != "profiles"
    states = token_states and not fixed and capabilities.qdq
    passes = (
        ("states", operators.drop_states_, not states),
        ("first_token", first_token.slice_first_token_, capabilities.rewrites.first_token),
        (
            "fast_norms",
            cpu.vectorize_norms_,
            fast_norms and is_for_it_alone(plan, capabilities),
        ),
    )
    changed = {
        name: apply_(model) if applies and encoder else 0 for name, apply_, applies in passes
    }
    rewriting = context.work / "rewritten"
    if any(changed.values()):
        rewriting.mkdir()
        written = rewriting / written.name
        operators.save(model, written)
    holds = {"domains": capabilities.onnx.domains, "whole_graph": capabilities.integer_only}
    opset_written = (
        WrittenOpset.model_validate({"opset": opset, **holds}) if opset is not None else None
    )
    # Other types are a matter of how the file is opened.
    parts = plan.float_parts if plan.float_parts in capabilities.float_parts.in_files else "float32"
    as_integers = {
        "qdq": False,
        "qoperator": bool(plan.quantized),
        "auto": encoder
        and takes_integer_operators(plan, capabilities)
        and cpu.count_products(model) > 0,
    }[format]
    details = ExportOptions(
        shape=shape,
        float_parts=parts,
        unfit=tuple(plan.unfit),
        opset=opset_written,
        qoperator=as_integers,
        long_texts=encoder and max_length > _LONG,
    )
    target.export(written, context.work, details)
    shutil.rmtree(rewriting, ignore_errors=True)
    opened = target.model_file(context.work)
    return {
        "file": opened.relative_to(context.work).as_posix(),
        "size_bytes": sum(file.stat().st_size for file in opened.parent.glob(f"{opened.stem}.*")),
        "format": capabilities.formats[-1],
        "lengths": [] if shape is None else sorted(shape.lengths),
        "inputs": [str(value.name) for value in model.graph.inputs],
        "outputs": [str(value.name) for value in model.graph.outputs],
        "first_token": changed["first_token"],
        "fast_norms": changed["fast_norms"],
        "opset": ir.load(context.work / capabilities.file).metadata_props.get(METADATA)
        if opset_written
        else None,
    }


def shorter_lengths(tokens: Sequence[int], longest: int) -> tuple[int, ...]:
    """The lengths besides the longest one that a static model is made for: at most three, each a multiple of 16.

    They are the fewest ones with which rows are padded little, and the greatest of them takes 95 % of the rows.

    Args:
        tokens: of rows such as the model will read.
        longest: tokens of the longest row that it takes.

    Example:
        >>> shorter_lengths([12] * 50 + [60] * 50, 512)
        (16, 64)
    """
    # So many steps at most, for models of thousands of tokens.
    step = _STEP * max(1, longest // (_STEP * _STEPS))
    counts = np.sort(np.asarray([0, *tokens]))[1:]
    # The least multiple that takes 95 % of the rows.
    most = step
    if len(counts):
        most *= max(1, -(-int(np.quantile(counts, _COVERED, method="inverted_cdf")) // step))
    if most >= longest or not len(counts):
        return ()
    chosen: tuple[int, ...] = (most,)
    padded = _padded(counts, (most, longest))
    for count in range(1, _MOST_SHORTER):
        found = min(
            (
                (*smaller, most)
                for smaller in itertools.combinations(range(step, most, step), count)
            ),
            key=lambda lengths: _padded(counts, (*lengths, longest)),
            default=chosen,
        )
        if _padded(counts, (*found, longest)) > _WORTH * padded:
            break
        chosen, padded = found, _padded(counts, (*found, longest))
    return chosen


def _padded(tokens: np.ndarray, lengths: tuple[int, ...]) -> int:
    """Tokens of all rows, padding included, where each takes the next longer length."""
    places = np.searchsorted(lengths, tokens).clip(max=len(lengths) - 1)
    return int(np.asarray(lengths)[places].sum())


def is_for_it_alone(plan: QuantPlan, capabilities: Capabilities) -> bool:
    """Whether a plan is for this target alone: what it quantizes and the target computes in float is for another runtime."""
    is_computed = all(
        d.site.role in capabilities.roles for d in plan.decisions if d.quantizer is not None
    )
    return is_computed and plan.float_parts == "float32"


def takes_integer_operators(plan: QuantPlan, capabilities: Capabilities) -> bool:
    """Whether a target takes integer operators, and computes all that a plan quantizes in integers."""
    activations = {
        (q.dtype, q.symmetric) for site, q in plan.quantized if not site.is_weight and not q.dynamic
    }
    return (
        capabilities.rewrites.integer_products
        and is_for_it_alone(plan, capabilities)
        and activations <= set(capabilities.activations.computed)
    )
