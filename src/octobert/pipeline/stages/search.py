"""A plan, what its values cost, and labelled rows → the fastest plan that meets the user's accuracy criterion.

Writes `plan.json`, `model_quantized.onnx` and `search.json`. Trials, float outputs and timings are kept in `context.scratch` as
soon as they are known, so an interrupted search resumes.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.config.choosing import Accuracy
from octobert.core.capability import Capabilities
from octobert.core.errors import RecipeError
from octobert.core.files import (
    atomic_write,
    link_or_copy,
    read_sealed,
    sealed,
    unsealed,
    write_sealed,
)
from octobert.core.plan import DType, QuantPlan
from octobert.core.results import AccuracySearch, Trial
from octobert.core.session import Session, SessionEntries
from octobert.engine.contract import Context, Summary, stage
from octobert.evaluation import candidates, latency
from octobert.evaluation.judging import AccuracyJudge
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, FloatGraph, Planned, Rows
from octobert.pipeline.stages import _plans
from octobert.pipeline.task import ScoredTask
from octobert.quantization import search
from octobert.quantization.corrections import LayerChange
from octobert.targets import Target, TargetField, runtimes

# Rounds in which the kinds of units are timed against each other.
_TIMING_ROUNDS = 15
_TRIALS, _TIMINGS, _FLOAT = "trials.jsonl", "timings.json", "float.npz"


@dataclass(frozen=True)
class _Models:
    """Models of plans, on their target.

    Args:
        graph: the float graph.
        changes: corrected layers.
        session: what the recipe sets for the target's sessions.
        head, vocabulary, seed: of the run, for timings.
    """

    graph: Path
    changes: Mapping[str, LayerChange]
    target: Target
    session: SessionEntries
    head: str
    vocabulary: int
    seed: int

    def write(self, plan: QuantPlan, path: Path) -> None:
        """Write the quantized graph of a plan."""
        _plans.write_quantized_(ir.load(self.graph), plan, self.changes, path)

    def entries(self, plan: QuantPlan) -> SessionEntries:
        """What models of a plan are opened with."""
        return runtimes.entries_in(
            self.session,
            self.target.capabilities,
            plan.float_parts,
            per_token=plan.group is not None,
        )

    def opened(self, plan: QuantPlan) -> Session:
        """A session of a plan."""
        return _plans.opened(self.graph, plan, self.changes, self.target, self.session)


@stage(Planned)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    float_graph: FloatGraph,
    quantized: Planned,
    *,
    accuracy: Accuracy,
    target: TargetField,
    session: SessionEntries,
    machine: str,
    scored: ScoredTask,
    seed: int,
) -> Summary:
    """Search.

    Args:
        float_graph: the graph to quantize.
        quantized: the plan that quantizes all, and what its values cost.
        accuracy: the criterion.
        target: that it must be met on.
        session: what the recipe sets for the target's sessions.
        machine: digest of the machine and its runtimes, which the timings belong to.
    """
    task = scored.build()
    context.scratch.mkdir(parents=True, exist_ok=True)
    plan = quantized.plan
    changes, costs = quantized.changes(), quantized.sensitivity
    # A search asks for it.
    assert costs is not None
    graph, vocabulary = float_graph.file, capture.vocabulary
    models = _Models(graph, changes, target, session, task.head, vocabulary, seed)
    began = time.monotonic()
    judge = AccuracyJudge(
        [accuracy.limit],
        task,
        data.tuning(),
        capture.tokenizer(task),
        open_float=lambda: candidates.open_float(target.name, capture.file, task.head, session),
        cache=context.scratch / _FLOAT,
        seed=seed,
    )
    judge.check_float("accuracy.at_least")
    (metric,) = judge.metrics
    units = search.units_of(plan)
    sixteen = _sixteen_bits(target.capabilities, accuracy)
    saving = _savings(context, models, plan, units, judge.median_tokens, sixteen)
    order = search.fallback_order(
        units,
        search.unit_errors(units, costs),
        saving,
    )
    stored = _stored_trials(context.scratch / _TRIALS)
    spent = time.monotonic() - began

    def attempt(names: frozenset[str]) -> Trial:
        started, count = time.monotonic(), len(trials.results)
        context.progress(
            f"trial {count + 1}: {len(names)} of {len(units)} units in fallback", count, count + 1
        )
        fallback = [unit for unit in order if unit.name in names]
        judged = judge.judge(models.opened(search.with_fallback(plan, fallback, sixteen)))
        change = judged.metrics[metric]
        saved = sum(saving.get(unit.kind, 0.0) for unit in units if unit.name not in names)
        trial = Trial(
            fallback=tuple(unit.name for unit in fallback),
            rows=judged.rows,
            value=change.value,
            drop=change.drop.value,
            met=judged.met,
            saved_ms=saved,
            seconds=time.monotonic() - started,
        )
        with (context.scratch / _TRIALS).open("ab") as stream:
            stream.write(_line(trial))
        return trial

    trials = search.Trials(attempt, seconds=accuracy.minutes * 60 - spent, earlier=stored)
    # Something must stay in 8 bits, or there is nothing to write.
    most = len(units) - 1 if sixteen is None else len(units)
    outcome = search.search(order, saving, trials, most=most)
    fallback = [unit for unit in units if unit.name in outcome.taken.fallback]
    final = search.with_fallback(plan, fallback, sixteen)
    models.write(final, context.work / artifacts.QUANTIZED)
    if changes:
        link_or_copy(quantized.path(artifacts.CORRECTIONS), context.work / artifacts.CORRECTIONS)
    result = AccuracySearch(
        metric=metric,
        criterion=accuracy.limit,
        float_value=judge.float_values[metric],
        rows=judge.rows,
        met=outcome.met,
        taken=outcome.taken,
        trials=tuple(trials.results.values()),
        unit_saving_ms=saving,
        tokens=judge.median_tokens,
        seconds=trials.seconds + spent,
        ended=outcome.ended,
    )
    context.write(artifacts.PLAN, final)
    context.write(artifacts.SEARCH, result)
    return {
        "met": result.met,
        "trials": len(trials.results),
        "fallback": list(outcome.taken.fallback),
        "drop": outcome.taken.drop,
    }


def _savings(
    context: Context,
    models: _Models,
    plan: QuantPlan,
    units: Sequence[search.Unit],
    tokens: int,
    sixteen: DType | None,
) -> dict[str, float]:
    """Kind of unit → milliseconds that 8 bits save on one of them: all of the kind in fallback against none, timed in turn."""
    path = context.scratch / _TIMINGS
    if (content := read_sealed(path)) is not None:
        stored: dict[str, float] = json.loads(content)
        return stored
    kinds = list(dict.fromkeys(unit.kind for unit in units))
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        plans = {"none": plan}
        plans |= {
            kind: search.with_fallback(plan, [u for u in units if u.kind == kind], sixteen)
            for kind in kinds
        }
        timed = []
        for index, (label, variant) in enumerate(plans.items()):
            file = Path(folder) / f"{index}.onnx"
            if variant.quantized:
                models.write(variant, file)
            else:
                link_or_copy(models.graph, file)
            entries = models.entries(plan)
            timed.append(
                candidates.Candidate(
                    name=models.target.name,
                    path=str(file),
                    head=models.head,
                    label=label,
                    entries=entries,
                )
            )
        latencies = latency.measure(
            timed,
            [latency.random_workload(1, tokens, models.vocabulary, models.seed)],
            repeats=_TIMING_ROUNDS,
            threads=0,
            on_progress=lambda _, done, of: context.progress("timing units", done, of),
        ).latencies
    # Differences are taken round by round: what slows the machine down for a while slows neighbours in a round alike.
    times = {timing.candidate: np.array(timing.samples_ms) for timing in latencies}
    counts = {kind: sum(unit.kind == kind for unit in units) for kind in kinds}
    saving = {kind: float(np.median(times[kind] - times["none"])) / counts[kind] for kind in kinds}
    write_sealed(path, json.dumps(saving).encode())
    return saving


def _sixteen_bits(capabilities: Capabilities, criterion: Accuracy) -> DType | None:
    """The 16-bit type that units fall back to, or None for float."""
    if criterion.fallback == "float":
        return None
    activations = capabilities.activations
    computed, simulated = (
        [dtype for dtype, _ in types if dtype in ("int16", "uint16")]
        for types in (activations.computed, activations.simulated)
    )
    if criterion.fallback == "int16" and not computed + simulated:
        raise RecipeError(
            f"{capabilities.name} takes no 16-bit activations",
            where="accuracy.fallback",
            fix="use float",
        )
    chosen = computed + (simulated if criterion.fallback == "int16" else [])
    return chosen[0] if chosen else None


def _stored_trials(path: Path) -> list[Trial]:
    """Trials of an interrupted search, up to the first line that is not as it was written."""
    if not path.is_file():
        return []
    whole = itertools.takewhile(
        lambda content: content is not None, map(unsealed, path.read_bytes().splitlines())
    )
    trials = [Trial.model_validate_json(content) for content in whole if content is not None]
    with atomic_write(path) as partial:
        partial.write_bytes(b"".join(map(_line, trials)))
    return trials


def _line(trial: Trial) -> bytes:
    return sealed(trial.model_dump_json().encode()) + b"\n"
