"""The captured graph → one that computes the same and loses less in 8 bits, by graph transforms in turn; and the parity check.

Writes `model.onnx`, `transforms.json`, and `channels.json`, the magnitudes of channels before and after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.core import environment
from octobert.core.errors import ParityError
from octobert.core.evidence import Smoothed
from octobert.core.ranges import Sample, held_out
from octobert.core.results import AppliedTransform, Parity, TransformFacts
from octobert.data.encoded import feeds_of
from octobert.engine.contract import Context, Summary, stage
from octobert.graph import operators, parity
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, Rows, Transformed
from octobert.pipeline.stages.capture import COMPARED, parity_batches
from octobert.pipeline.task import TaskSpec
from octobert.quantization import observer
from octobert.quantization.transforms import PLUGINS, Record, TransformField

# Tokens on which alternatives are tried; more change no choice that matters and cost time in proportion.
SAMPLED_TOKENS = 1024
# Channels of a group whose magnitudes are kept.
KEPT_CHANNELS = 128


@stage(Transformed, anywhere=True)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    *,
    transforms: tuple[TransformField, ...],
    spec: TaskSpec,
    supplement: bool,
    integer_targets: tuple[str, ...],
    seed: int,
) -> Summary:
    """Transform.

    Args:
        transforms: in order.
        supplement: sample other texts than the calibration rows, too.
        integer_targets: those that compute in integers alone.
    """
    task, source = spec.build(), capture.file
    tokenizer, encoded = capture.calibration(data, task)
    rows = [
        *encoded.flat,
        *artifacts.supplement(tokenizer, encoded, task, wanted=supplement).flat,
    ]
    rows = [row for row, held in zip(rows, held_out(len(rows)), strict=True) if not held]
    family = capture.family
    batches = [feeds_of([row], tokenizer.pad_id) for row in encoded.flat[:COMPARED]]
    if task.reads_texts:
        # Transforms do not depend on the length, and the longest batch takes most of the time.
        *batches, _ = sorted(
            parity_batches(tokenizer, task.head), key=lambda feeds: feeds["input_ids"].shape[1]
        )
    model = ir.load(source)
    batches = [parity.only(batch, model) for batch in batches]
    compare = functools.partial(
        parity.compare,
        batches=batches,
        reference=parity.onnx_outputs(model, batches),
        against="the captured graph",
        what="the transformed graph",
        padded=task.reads_texts,
    )
    proof: Parity | None = None
    samples = dict[str, Sample]()
    applied: list[AppliedTransform] = []
    smoothed: list[Smoothed] = []
    for transform in transforms:
        title = PLUGINS.name_of(transform)
        groups: list[Record] = []
        why: str | None = None
        if integer_targets and transform.needs_float:
            alone = f"{', '.join(integer_targets)} computes in integers alone"
            why = f"{transform.needs_float}, and {alone}"
        else:
            if not samples.keys() >= {*transform.values(model.graph, family)}:
                # One pass for all that follow, where what they need is there before the others have changed the graph.
                follow = transforms[len(applied) :]
                wanted = {value for each in follow for value in each.values(model.graph, family)}
                samples |= observer.sample(
                    model,
                    rows,
                    tokenizer.pad_id,
                    sorted(wanted - samples.keys()),
                    tokens=SAMPLED_TOKENS,
                    seed=seed,
                    on_rows=functools.partial(context.progress, "sampling"),
                )
            progress = lambda done, of, name=title: context.progress(name, done, of)  # noqa: E731
            changed, after = model.clone(), dict(samples)
            # What overflows shows in the answers.
            with np.errstate(all="ignore"):
                groups = transform.transform_(changed, family, after, progress)
            try:
                proof = _compared(changed, source, compare)
            except ParityError as error:
                why = f"the model does not take it: {error.got}, expected {error.expected}"
        if why is None:
            model, samples = changed, after
            del changed, after
            environment.release_memory()
            smoothed += [_smoothed(title, group) for group in groups if "channels" in group]
        else:
            groups = []
        groups = [
            {name: fact for name, fact in group.items() if name != "channels"} for group in groups
        ]
        applied.append(
            AppliedTransform(
                name=title,
                options=transform.model_dump(),
                groups=tuple(groups),
                summary=transform.summary(groups) if why is None else f"none: {why}",
            )
        )
    proof = proof or compare(model)
    operators.save(model, context.work / artifacts.FLOAT)
    context.write(artifacts.TRANSFORMS, TransformFacts(transforms=tuple(applied), parity=proof))
    context.write(artifacts.CHANNELS, artifacts.Channels(smoothed=tuple(smoothed)))
    return {
        "transforms": [transform.name for transform in applied],
        "largest_difference": proof.largest_difference,
    }


def _compared(model: ir.Model, source: Path, compare: Callable[..., Parity]) -> Parity:
    """The comparison of a transformed graph. What float32 itself loses is asked where it is further apart than most are."""
    try:
        return compare(model)
    except ParityError:
        return compare(model, tolerance=parity.tolerance_of(ir.load(source), compare))


def _smoothed(name: str, group: Record) -> Smoothed:
    """The channels of a group by their magnitude before, those of equal distance in rank where there are many."""
    before, after = group["channels"]
    order = np.argsort(-before, kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, KEPT_CHANNELS).round().astype(int))]
    module, kind = group["module"], group["kind"]
    return Smoothed(
        transform=name,
        module=module,
        kind=kind,
        before=before[shown].tolist(),
        after=after[shown].tolist(),
    )
