"""The captured graph → the graph without the heads and neurons that give the model least for their time.

1. Rows: the calibration rows, and as many training rows as the recipe has tokens for. Tuning rows judge; evaluation rows are
   not read.
2. Moments of the inputs of output projections, and from them the levels of each sublayer: how many heads or neurons stay, and
   the error of its output.
3. Times of levels on the target's 8-bit kernels, at lengths of the rows.
4. What the error of a sublayer costs: the divergence of the outputs where only this sublayer is cut.
5. For a speedup: the levels with the smallest sum of losses within the time. A model of these levels is timed in turn with the
   whole one, and where it misses the speedup, the time is corrected. Then it is fitted, and judged on the tuning rows.

Writes `model.onnx` and `pruning.json`; after a training also `curve.json`, its loss and learning rate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.config.training import Prune, Recover
from octobert.core.estimate import Estimate
from octobert.core.files import canonical_digest, file_digest, link_or_copy
from octobert.core.pruning import (
    LevelTimes,
    PrunedModel,
    PrunedSublayer,
    PruningFacts,
    Recovery,
    Sublayer,
    SublayerKind,
)
from octobert.core.session import Session
from octobert.core.trials import Trials
from octobert.evaluation import latency, level_times
from octobert.evaluation.judging import AccuracyJudge
from octobert.graph import cutting, operators, parts, sites
from octobert.pipeline.contract import Context, ScoredTask, StepResult, Summary
from octobert.pipeline.stages import _artifacts, _frontier, _prunable
from octobert.pipeline.stages._prunable import (
    Timing,
    Whole,
    is_last,
    levels_of,
    open_graph,
    texts_of,
    units_of,
    whole_of,
)
from octobert.quantization.pruning import fitting, removal, sublayer_losses
from octobert.quantization.pruning.budget import Table, reach
from octobert.quantization.pruning.removal import Level
from octobert.tasks import Result

# Ends the name of the file with the curve of a training, beside its graph.
_CURVE = ".curve.json"
# Shares of the units at which the loss of a sublayer is measured; between them it is interpolated by the error.
LOSS_AT = (0.5, 0.0)
# Quantiles of the lengths of the rows: the middle of each third.
QUANTILES = (1 / 6, 1 / 2, 5 / 6)


def run(
    context: Context,
    capture: StepResult,
    data: StepResult,
    *,
    settings: Prune,
    timing: Timing,
    machine: str,
    scored: ScoredTask,
    seed: int,
) -> Summary:
    """Prune.

    Args:
        settings: what is wanted.
        timing: how the 8-bit models are made that are timed.
        machine: digest of the machine and its runtimes, which times belong to.
    """
    whole, left = whole_of(capture, data, scored, settings.tokens)
    task = scored.build()
    context.scratch.mkdir(parents=True, exist_ok=True)
    # Pruned models are compared with the whole one on the tuning rows, in float.
    judge = AccuracyJudge(
        settings.limits,
        task,
        _artifacts.tuning_parts(data),
        _artifacts.tokenizer_of(capture, task),
        open_float=lambda: open_graph(whole.path, task.head),
        cache=context.scratch / "float.npz",
        seed=seed,
        main=True,
    )
    metric = str(task.primary)
    levels = _levels_of(context, whole, settings.damping)
    tokens = [len(row) for row in whole.rows]
    lengths = timing.lengths or tuple(sorted({int(np.quantile(tokens, q)) for q in QUANTILES}))
    vocabulary = _artifacts.vocabulary_of(capture)
    workloads = [
        latency.random_workload(timing.batch, length, vocabulary, seed) for length in lengths
    ]
    with whole.timed("times"):
        whole_ms, times = _times(context, capture, whole, timing, workloads, seed)
    reference = whole.result_of(open_graph(whole.path, whole.task.head))
    units = {module: [level.units for level in of_module] for module, of_module in levels.items()}
    table = Table(
        whole.sublayers, units, _losses(context, whole, levels, reference), times, whole_ms
    )
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        pruner = _Pruner(
            context,
            capture,
            data,
            settings,
            timing,
            seed,
            whole,
            judge,
            levels,
            table,
            reference,
            workloads,
            Path(folder),
        )
        best, tried = _frontier.search(settings, judge.float_values[metric], Trials(pruner.attempt))
        if best is None:
            for file in whole.path.parent.glob(f"{whole.path.name}*"):
                link_or_copy(file, context.work / file.name)
        else:
            path = pruner.paths[best]
            operators.save(ir.load(path), context.work / _artifacts.FLOAT)
            if best.recovery is not None:
                link_or_copy(path.with_suffix(_CURVE), context.work / _artifacts.CURVE)
    facts = PruningFacts(
        target=timing.form.target,
        lengths=lengths,
        threads=timing.threads,
        tokens=sum(map(len, whole.rows)),
        whole_ms=whole_ms,
        times=times,
        metric=metric,
        whole=judge.float_values[metric],
        tried=tuple(tried),
        chosen=None if best is None else tried.index(best),
        reason=_frontier.reason(
            settings, metric, judge.float_values[metric], best, tried, pruner.fastest
        ),
        left=left,
        seconds=whole.seconds,
    )
    context.write(_artifacts.PRUNING, facts)
    drop = None if best is None else best.drop.value
    return {
        "speedup": 1.0 if best is None else best.speedup.value,
        "drop": drop,
        "tried": len(tried),
        "reason": facts.reason,
    }


@dataclass
class _Pruner:
    """Makes and judges pruned models.

    Args:
        table: times and losses of the levels.
        reference: result of the whole model on the rows that losses are measured on.
        folder: for graphs of the models.
        paths: model → its float graph.
        fastest: the largest speedup that was measured; None before the first.
    """

    context: Context
    capture: StepResult
    data: StepResult
    settings: Prune
    timing: Timing
    seed: int
    whole: Whole
    judge: AccuracyJudge
    levels: Mapping[str, Sequence[Level]]
    table: Table
    reference: Result
    workloads: Sequence[latency.Workload]
    folder: Path
    paths: dict[PrunedModel, Path] = field(default_factory=dict)
    fastest: float | None = None

    def attempt(self, speedup: float) -> PrunedModel | None:
        """The model of a speedup, judged on the tuning rows; None where no model is that fast."""
        context, whole, settings = self.context, self.whole, self.settings
        with whole.timed("measuring"):
            reached = reach(self.table, speedup, self._measured)
        if reached is None:
            return None
        context.progress(f"fitting and judging {reached.measured.value:.2f} ×", 0, 1)
        path = self.folder / f"{speedup}.onnx"
        with whole.timed("fitting"):
            sublayers = _write(
                whole, self.levels, reached.units, self.table, settings.damping, path
            )
        recovery = (
            None
            if settings.recover is None
            else _recovered(context, self.data, whole, settings.recover, path, self.seed)
        )
        with whole.timed("judging"):
            session = open_graph(path, whole.task.head)
            judged = self.judge.judge(session)
            loss = whole.task.divergence(whole.result_of(session), self.reference)
        (figures,) = judged.metrics.values()
        model = PrunedModel(
            speedup=reached.measured,
            predicted=reached.predicted,
            loss=loss,
            rows=judged.rows,
            metric=figures.value,
            drop=figures.drop,
            sublayers=sublayers,
            recovery=recovery,
        )
        self.paths[model] = path
        return model

    @cached_property
    def _whole_session(self) -> Session:
        """The whole model in 8 bits."""
        return _prunable.open_cut(self.capture, {}, self.folder / "whole", self.timing)

    def _measured(self, units: Mapping[str, int]) -> Estimate:
        """Time a model with so many units against the whole one."""
        self.context.progress("timing a pruned model against the whole one", 0, 1)
        cut = {
            sublayer.module: units[sublayer.module]
            for sublayer in self.whole.sublayers
            if units[sublayer.module] < sublayer.units
        }
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            session = _prunable.open_cut(self.capture, cut, Path(place), self.timing)
            speedup = level_times.against(
                self._whole_session, session, self.workloads, seed=self.seed
            )
            # Before its files go.
            del session
        self.fastest = max(speedup.value, self.fastest or 0.0)
        return speedup


def _levels_of(context: Context, whole: Whole, damping: float) -> dict[str, list[Level]]:
    """Module → its levels, by ascending units."""
    graph = ir.load(whole.path).graph
    nodes = {str(node.name): node for node in graph}
    values = {
        s.module: str(parts.linear_at(sites.linear_node(nodes, s.module)).x.name)
        for s in whole.sublayers
    }
    with whole.timed("moments"):
        gathered = removal.moments(
            whole.path,
            whole.rows,
            whole.tokenizer.pad_id,
            sorted(set(values.values())),
            on_rows=lambda done: context.progress(
                "reading inputs of output projections", done, len(whole.rows)
            ),
        )
    by_module = {}
    with whole.timed("removal"):
        for number, sublayer in enumerate(whole.sublayers):
            context.progress("removing heads and neurons", number, len(whole.sublayers))
            weight, bias = sublayer_losses.projection(graph, sublayer.module)
            levels = removal.removed(
                gathered[values[sublayer.module]].products,
                weight,
                bias,
                sublayer.width,
                levels_of(sublayer),
                damping,
            )
            by_module[sublayer.module] = sorted(levels, key=lambda level: level.units)
    return by_module


def _times(
    context: Context,
    capture: StepResult,
    whole: Whole,
    timing: Timing,
    workloads: Sequence[latency.Workload],
    seed: int,
) -> tuple[float, tuple[LevelTimes, ...]]:
    """(Milliseconds of the whole model in 8 bits, times of levels)."""
    kinds: list[SublayerKind] = sorted({sublayer.kind for sublayer in whole.sublayers})
    largest = {
        kind: max((s for s in whole.sublayers if s.kind == kind), key=lambda s: s.units)
        for kind in kinds
    }
    return level_times.measure(
        lambda cut, folder: _prunable.open_cut(
            capture, units_of(cut, whole.sublayers), folder, timing
        ),
        {kind: levels_of(sublayer) for kind, sublayer in largest.items()},
        {kind: _counts(kind, whole.sublayers) for kind in largest},
        workloads,
        seconds=level_times.SECONDS,
        size_bytes=sum(
            file.stat().st_size for file in whole.path.parent.glob(f"{whole.path.name}*")
        ),
        seed=seed,
        on_progress=context.progress,
    )


def _counts(kind: SublayerKind, sublayers: Sequence[Sublayer]) -> tuple[int, int]:
    """Sublayers of a kind before the last layer, and in it."""
    are_last = [is_last(sublayer, sublayers) for sublayer in sublayers if sublayer.kind == kind]
    return len(are_last) - sum(are_last), sum(are_last)


def _losses(
    context: Context, whole: Whole, levels: Mapping[str, Sequence[Level]], reference: Result
) -> dict[str, list[float]]:
    """Module → the loss of the model at each of its levels."""

    def loss(session: sublayer_losses.Overridden) -> float:
        return whole.task.divergence(whole.result_of(session), reference)

    with whole.timed("losses"):
        progress = lambda done, of: context.progress("measuring what sublayers give", done, of)  # noqa: E731
        losses = sublayer_losses.measure(
            whole.path, whole.sublayers, levels, LOSS_AT, loss, progress
        )
    return {module: values.tolist() for module, values in losses.items()}


def _write(
    whole: Whole,
    levels: Mapping[str, Sequence[Level]],
    units: Mapping[str, int],
    table: Table,
    damping: float,
    path: Path,
) -> tuple[PrunedSublayer, ...]:
    """Write the float graph at these levels, refitted; what each sublayer kept."""
    model = ir.load(whole.path)
    places = {module: table.units[module].index(left) for module, left in units.items()}
    chosen = {module: levels[module][place] for module, place in places.items()}
    cut = {s.module: chosen[s.module] for s in whole.sublayers if chosen[s.module].units < s.units}
    cutting.cut_(model, whole.family, {module: level.kept for module, level in cut.items()})
    cutting.outputs_(model, {module: (level.weight, level.bias) for module, level in cut.items()})
    whole_model, pad_id = ir.load(whole.path), whole.tokenizer.pad_id
    refitted = fitting.refit_(
        model, whole_model, whole.sublayers, whole.rows, pad_id, damping=damping
    )
    cutting.fold_(model)
    operators.save(model, path)
    return tuple(
        PrunedSublayer(
            sublayer=sublayer,
            kept=chosen[sublayer.module].units,
            error=chosen[sublayer.module].error,
            refitted=refitted.get(sublayer.module),
            loss=table.losses[sublayer.module][places[sublayer.module]],
        )
        for sublayer in whole.sublayers
    )


def _recovered(
    context: Context, data: StepResult, whole: Whole, settings: Recover, path: Path, seed: int
) -> Recovery:
    """Train a pruned graph towards the whole one, in place."""
    from octobert.training import graph_training
    from octobert.training.job import TrainingRows

    texts = texts_of(data)
    rows = _artifacts.encoded(texts, whole.task, whole.tokenizer).flat
    pruned = ir.load(path)
    with whole.timed("recovering"):
        recovery, curve = graph_training.train_(
            pruned,
            ir.load(whole.path),
            TrainingRows(rows, [{} for _ in rows], whole.tokenizer.pad_id),
            settings,
            head=whole.task.head,
            family=whole.family,
            seed=seed,
            scratch=context.scratch / path.stem,
            identity=canonical_digest([file_digest(path), texts, settings.model_dump(mode="json")]),
            on_step=lambda done, of: context.progress("training the pruned model", done, of),
        )
    operators.save(pruned, path)
    if curve is not None:
        path.with_suffix(_CURVE).write_text(curve.model_dump_json(), encoding="utf-8")
    return recovery
