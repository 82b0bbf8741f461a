"""The captured graph → the graph without the heads and neurons that give the model least for their time.

1. Rows: the calibration rows, and as many training rows as the recipe has tokens for. Tuning rows judge; evaluation rows are
   not read.
2. Moments of the inputs of output projections, and from them the levels of each sublayer: how many heads or neurons stay, and
   the error of its output.
3. Times of levels on the target's 8-bit kernels, at lengths of the rows.
4. What the error of a sublayer costs: the divergence of the outputs where only this sublayer is cut.
5. For a speedup: the levels with the smallest sum of losses within the time, cut, refitted, and judged on the tuning rows.

Writes `model.onnx` and `pruning.json`; after a training also `curve.json`, its loss and learning rate.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.config.pruning import Prune, Recover
from octobert.config.recipe import Choice
from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.core.files import canonical_digest, file_digest, link_or_copy
from octobert.core.frozen import FrozenModel
from octobert.core.pruning import (
    LeftWhole,
    LevelTimes,
    PrunedModel,
    PrunedSublayer,
    PruningFacts,
    Recovery,
    Sublayer,
    SublayerKind,
)
from octobert.core.session import Session, SessionEntries
from octobert.data.tokenization import Encoded, EncodedTexts, Tokenizer
from octobert.evaluation import candidates, latency, level_times
from octobert.evaluation.criterion import AccuracyJudge, Criterion
from octobert.evaluation.divergence import divergence
from octobert.graph import cutting, operators, parts, sites
from octobert.inference.batching import run_rows
from octobert.pipeline.contract import Context, ScoredTask, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _artifacts, _frontier, _levels, _rows, export, finetune
from octobert.quantization.pruning import allocation, fitting, moments, removal, sublayer_losses
from octobert.quantization.pruning.removal import Level
from octobert.tasks import Outputs, Task

FACTS = "pruning.json"
# Ends the name of the file with the curve of a training, beside its graph.
_CURVE = ".curve.json"
# Texts that are tokenized at a time, until there are enough tokens.
_ENCODED = 256
# Rows that losses are measured on, and their tokens: the same rows for all, so that few settle which is larger.
LOSS_ROWS, LOSS_TOKENS = 256, 16_384
# Shares of the units at which the loss of a sublayer is measured; between them it is interpolated by the error.
LOSS_AT = (0.5, 0.0)
# Quantiles of the lengths of the rows: the middle of each third.
QUANTILES = (1 / 6, 1 / 2, 5 / 6)


class Inputs(FrozenModel):
    """The captured graph, and the rows."""

    capture: StepResult
    data: StepResult


class Options(FrozenModel):
    """What is wanted, and how the 8-bit models are made that are timed.

    Args:
        target: whose kernels are timed.
        method: of quantization.
        entries: how sessions of the target are opened.
        form: what its files are like.
        lengths: that the user has named; none for those of the rows.
        batch, threads: of the timing.
        machine: digest of the machine and its runtimes, which times belong to.
    """

    settings: Prune
    target: str
    method: Choice
    entries: SessionEntries
    form: export.Options
    lengths: tuple[int, ...]
    batch: int
    threads: int
    machine: str
    task: ScoredTask
    seed: int


@dataclass(frozen=True)
class Whole:
    """The model that is pruned, and its rows.

    Args:
        path: its float graph.
        rows: that weights are fitted to.
        compared: some of them, that losses are measured on.
        seconds: by step.
    """

    path: Path
    family: EncoderFamily
    tokenizer: Tokenizer
    task: Task
    sublayers: tuple[Sublayer, ...]
    rows: tuple[Encoded, ...]
    compared: EncodedTexts
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time of a block to a step."""
        began = time.monotonic()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.monotonic() - began

    def outputs(self, path: Path) -> Outputs:
        """Outputs of a float graph on the rows that losses are measured on."""
        return run_rows(opened(path, self.task.head), self.compared.flat, self.tokenizer.pad_id, per_token=self.task.per_token)


def opened(path: Path, head: str) -> Session:
    """A float graph in ONNX Runtime."""
    return candidates.open_candidate(candidates.Candidate(name=candidates.REFERENCE.name, path=str(path), head=head), 0)


def run(context: Context[Inputs, Options]) -> Summary:
    """Prune."""
    options, settings = context.options, context.options.settings
    whole, left = _whole(context)
    judge = _judge(context)
    metric = judge.criteria[0].metric
    levels = _levels_of(context, whole)
    with whole.timed("times"):
        lengths, whole_ms, times = _times(context, whole)
    reference = whole.outputs(whole.path)
    losses = _losses(context, whole, levels, reference)
    best: PrunedModel | None
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:

        def attempt(speedup: float) -> PrunedModel | None:
            chosen = _allocated(whole, levels, times, losses, whole_ms, speedup)
            if chosen is None:
                return None
            predicted = whole_ms / (whole_ms - _saved(whole, levels, chosen, times))
            context.progress(f"fitting and judging {predicted:.2f} ×", 0, 1)
            path = Path(folder) / f"{speedup}.onnx"
            with whole.timed("fitting"):
                sublayers = _write(whole, levels, chosen, losses, settings.damping, path)
            recovery = None if settings.recover is None else _recovered(context, whole, settings.recover, path)
            with whole.timed("judging"):
                judged = judge.judge(opened(path, whole.task.head))
            found = judged.metrics[metric]
            loss = divergence(whole.task, whole.outputs(path), reference, whole.compared)
            paths[predicted] = path
            figures = {"metric": found.value, "drop": found.drop, "low": found.low, "high": found.high}
            return PrunedModel(
                speedup=predicted, loss=loss, rows=judged.rows, sublayers=sublayers, recovery=recovery, **figures
            )

        paths: dict[float, Path] = {}
        best, tried = _frontier.search(settings, judge.float_values[metric], attempt)
        if best is None:
            for file in whole.path.parent.glob(f"{whole.path.name}*"):
                link_or_copy(file, context.work / file.name)
        else:
            operators.save(ir.load(paths[best.speedup]), context.work / _artifacts.FLOAT)
            if best.recovery is not None:
                link_or_copy(paths[best.speedup].with_suffix(_CURVE), context.work / finetune.CURVE)
    facts = PruningFacts(
        target=options.target,
        lengths=lengths,
        threads=options.threads,
        tokens=sum(map(len, whole.rows)),
        whole_ms=whole_ms,
        times=times,
        metric=metric,
        whole=judge.float_values[metric],
        tried=tuple(tried),
        chosen=None if best is None else tried.index(best),
        reason=_frontier.reason(settings, metric, judge.float_values[metric], best, tried),
        left=left,
        seconds=whole.seconds,
    )
    context.write(FACTS, facts)
    drop = None if best is None else best.drop
    return {"speedup": 1.0 if best is None else best.speedup, "drop": drop, "tried": len(tried), "reason": facts.reason}


def _whole(context: Context[Inputs, Options]) -> tuple[Whole, tuple[LeftWhole, ...]]:
    """The model with its rows; the parts that cannot be pruned.

    Raises:
        ModelError: nothing can be pruned.
    """
    inputs, options = context.inputs, context.options
    # Divergences are of the task's own outputs, whatever metrics the recipe has.
    task = TaskSpec(name=options.task.name, options=options.task.options, stated=options.task.stated).build()
    tokenizer, family = _rows.tokenizer_of(inputs.capture, task), _artifacts.family_of(inputs.capture)
    path = inputs.capture.path(_artifacts.FLOAT)
    sublayers, left = cutting.find(ir.load(path).graph, family)
    if not sublayers:
        reasons = "; ".join(f"{each.module}: {each.reason}" for each in left[:3])
        fix = "remove prune from the recipe"
        raise ModelError("no heads or neurons of this model can be removed", where="prune", got=reasons, fix=fix)
    texts = _texts(inputs)
    rows: list[Encoded] = []
    tokens = 0
    for start in range(0, len(texts), _ENCODED):
        if tokens >= options.settings.tokens:
            break
        for row in _rows.encoded(texts[start : start + _ENCODED], task, tokenizer).flat:
            if tokens < options.settings.tokens:
                rows.append(row)
                tokens += len(row)
    compared = _compared(_rows.encoded(texts[:LOSS_ROWS], task, tokenizer))
    return Whole(path, family, tokenizer, task, tuple(sublayers), tuple(rows), compared), tuple(left)


def _texts(inputs: Inputs) -> list[Any]:
    """The texts that weights are fitted to: the calibration rows, and the training rows behind them."""
    return [text for name in ("calibration.json", "fitting.json") for text in inputs.data.read_json(name)["inputs"]]


def _compared(encoded: EncodedTexts) -> EncodedTexts:
    """The first texts, up to the tokens that losses are measured on."""
    ends = np.cumsum([sum(map(len, rows)) for rows in encoded.rows])
    count = max(1, int(np.searchsorted(ends, LOSS_TOKENS, side="right")))
    return EncodedTexts(encoded.texts[:count], encoded.rows[:count], encoded.tokenizer)


def _judge(context: Context[Inputs, Options]) -> AccuracyJudge:
    """Compares pruned models with the whole one on the tuning rows, in float."""
    inputs, options, task = context.inputs, context.options, context.options.task.build()
    settings, path = options.settings, inputs.capture.path(_artifacts.FLOAT)
    context.scratch.mkdir(parents=True, exist_ok=True)
    return AccuracyJudge(
        [Criterion(metric=str(task.primary), max_drop=settings.max_drop, relative=settings.relative)],
        task,
        _rows.tuning_parts(inputs.data),
        _rows.tokenizer_of(inputs.capture, task),
        open_float=lambda: opened(path, task.head),
        cache=context.scratch / "float.npz",
        seed=options.seed,
    )


def _levels_of(context: Context[Inputs, Options], whole: Whole) -> dict[str, list[Level]]:
    """Module → its levels, by ascending units."""
    graph, damping = ir.load(whole.path).graph, context.options.settings.damping
    nodes = {str(node.name): node for node in graph}
    values = {s.module: str(parts.linear_at(sites.linear_node(nodes, s.module)).x.name) for s in whole.sublayers}
    with whole.timed("moments"):
        gathered = moments.moments(
            whole.path,
            whole.rows,
            whole.tokenizer.pad_id,
            sorted(set(values.values())),
            on_rows=lambda done: context.progress("reading inputs of output projections", done, len(whole.rows)),
        )
    found = {}
    with whole.timed("removal"):
        for number, sublayer in enumerate(whole.sublayers):
            context.progress("removing heads and neurons", number, len(whole.sublayers))
            weight, bias = sublayer_losses.projection(graph, sublayer.module)
            levels = removal.removed(
                gathered[values[sublayer.module]].products,
                weight,
                bias,
                sublayer.width,
                _levels.levels_of(sublayer),
                damping,
            )
            found[sublayer.module] = sorted(levels, key=lambda level: level.units)
    return found


def _times(context: Context[Inputs, Options], whole: Whole) -> tuple[tuple[int, ...], float, tuple[LevelTimes, ...]]:
    """(Lengths, milliseconds of the whole model in 8 bits, times of levels)."""
    options, capture = context.options, context.inputs.capture
    tokens = [len(row) for row in whole.rows]
    lengths = options.lengths or tuple(sorted({int(np.quantile(tokens, q)) for q in QUANTILES}))
    vocabulary = int(capture.read_json("config.json").get("vocab_size", 1000))
    workloads = [latency.random_workload(options.batch, length, vocabulary, options.seed) for length in lengths]
    largest = {kind: max((s for s in whole.sublayers if s.kind == kind), key=lambda s: s.units) for kind in _kinds(whole)}

    def at_level(cut: level_times.Cut | None, folder: Path) -> Session:
        made = (capture, whole.sublayers, cut, folder, options.method, options.form)
        return _levels.opened(*made, entries=options.entries, threads=options.threads)

    total, times = level_times.measure(
        at_level,
        {kind: _levels.levels_of(sublayer) for kind, sublayer in largest.items()},
        {kind: _counts(kind, whole.sublayers) for kind in largest},
        workloads,
        seconds=level_times.SECONDS,
        size_bytes=sum(file.stat().st_size for file in whole.path.parent.glob(f"{whole.path.name}*")),
        seed=options.seed,
        on_progress=context.progress,
    )
    return lengths, total, times


def _kinds(whole: Whole) -> list[SublayerKind]:
    return sorted({each.kind for each in whole.sublayers})


def _counts(kind: SublayerKind, sublayers: Sequence[Sublayer]) -> tuple[int, int]:
    """Sublayers of a kind before the last layer, and in it."""
    own = [_levels.is_last(each, sublayers) for each in sublayers if each.kind == kind]
    return len(own) - sum(own), sum(own)


def _losses(
    context: Context[Inputs, Options], whole: Whole, levels: Mapping[str, Sequence[Level]], reference: Outputs
) -> dict[str, np.ndarray]:
    """Module → the loss of the model at each of its levels."""

    def loss(session: sublayer_losses.Overridden) -> float:
        outputs = run_rows(session, whole.compared.flat, whole.tokenizer.pad_id, per_token=whole.task.per_token)
        return divergence(whole.task, outputs, reference, whole.compared)

    with whole.timed("losses"):
        progress = lambda done, of: context.progress("measuring what sublayers give", done, of)  # noqa: E731
        return sublayer_losses.measure(whole.path, whole.sublayers, levels, LOSS_AT, loss, progress)


def _ms(whole: Whole, sublayer: Sublayer, units: int, times: Sequence[LevelTimes]) -> float:
    """Milliseconds of a sublayer with so many units."""
    own = next(each for each in times if each.kind == sublayer.kind)
    share = own.last if _levels.is_last(sublayer, whole.sublayers) else 1.0
    return share * float(np.interp(units, own.units, own.ms))


def _saved(
    whole: Whole, levels: Mapping[str, Sequence[Level]], places: Mapping[str, int], times: Sequence[LevelTimes]
) -> float:
    """Milliseconds that levels save."""
    units = {s.module: levels[s.module][places[s.module]].units for s in whole.sublayers}
    return sum(_ms(whole, s, s.units, times) - _ms(whole, s, units[s.module], times) for s in whole.sublayers)


def _allocated(
    whole: Whole,
    levels: Mapping[str, Sequence[Level]],
    times: Sequence[LevelTimes],
    losses: Mapping[str, np.ndarray],
    whole_ms: float,
    speedup: float,
) -> dict[str, int] | None:
    """Module → the place of its level in a model so many times faster; None where no model is."""
    ms = [[_ms(whole, s, level.units, times) for level in levels[s.module]] for s in whole.sublayers]
    budget = sum(_ms(whole, s, s.units, times) for s in whole.sublayers) - whole_ms * (1 - 1 / speedup)
    places = allocation.allocate(ms, [losses[s.module].tolist() for s in whole.sublayers], budget)
    return None if places is None else {s.module: place for s, place in zip(whole.sublayers, places, strict=True)}


def _write(
    whole: Whole,
    levels: Mapping[str, Sequence[Level]],
    places: Mapping[str, int],
    losses: Mapping[str, np.ndarray],
    damping: float,
    path: Path,
) -> tuple[PrunedSublayer, ...]:
    """Write the float graph at these levels, refitted; what each sublayer kept."""
    model = ir.load(whole.path)
    chosen = {s.module: levels[s.module][places[s.module]] for s in whole.sublayers}
    cut = {s.module: chosen[s.module] for s in whole.sublayers if chosen[s.module].units < s.units}
    cutting.cut_(model, whole.family, {module: level.kept for module, level in cut.items()})
    cutting.outputs_(model, {module: (level.weight, level.bias) for module, level in cut.items()})
    whole_model, pad_id = ir.load(whole.path), whole.tokenizer.pad_id
    refitted = fitting.refit_(model, whole_model, whole.sublayers, whole.rows, pad_id, damping=damping)
    cutting.fold_(model)
    operators.save(model, path)
    return tuple(
        PrunedSublayer(
            sublayer=sublayer,
            kept=chosen[sublayer.module].units,
            error=chosen[sublayer.module].error,
            refitted=refitted.get(sublayer.module),
            loss=float(losses[sublayer.module][places[sublayer.module]]),
        )
        for sublayer in whole.sublayers
    )


def _recovered(context: Context[Inputs, Options], whole: Whole, settings: Recover, path: Path) -> Recovery:
    """Train a pruned graph towards the whole one, in place."""
    from octobert.training import graph_training
    from octobert.training.job import TrainingRows

    inputs, task = context.inputs, whole.task
    texts = _texts(inputs)
    rows = _rows.encoded(texts, task, whole.tokenizer).flat
    pruned = ir.load(path)
    with whole.timed("recovering"):
        recovery, curve = graph_training.train_(
            pruned,
            ir.load(whole.path),
            TrainingRows(rows, [{} for _ in rows], whole.tokenizer.pad_id),
            settings,
            head=task.head,
            family=whole.family,
            seed=context.options.seed,
            scratch=context.scratch / path.stem,
            identity=canonical_digest([file_digest(path), texts, settings.model_dump(mode="json")]),
            on_step=lambda done, of: context.progress("training the pruned model", done, of),
        )
    operators.save(pruned, path)
    if curve is not None:
        path.with_suffix(_CURVE).write_text(curve.model_dump_json(), encoding="utf-8")
    return recovery
