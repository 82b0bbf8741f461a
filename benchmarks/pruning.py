"""Structured pruning after training: loss against latency in 8 bits, beside magnitude pruning at the same latency.

    python benchmarks/pruning.py --shared ../shared --out runs/pruning [--only mrpc|squad|NAME=CHECKPOINT:TASK:TRAIN:EVALUATION]

A model is pruned with the functions of the stage `prune`: moments over 50,000 tokens of training rows, removal, times of levels
on the kernels of the target, losses of sublayers, levels whose model is measured to be as fast as wanted, refitting. No label
is read. Then it is quantized (SmoothQuant, minmax over 64 training rows, the target's default placement) and scored on
evaluation rows, from which nothing was chosen.
Every figure is compared row by row with the whole model in 8 bits. Intervals are paired bootstraps of 95 %.

octobert          levels by dynamic programming over losses and times, weights by optimal brain surgeon, refitted
without refit     the same, but for the refit
magnitude         the same share of units in all sublayers, as large as the speedup allows; those with the largest L2 norm of
                  their weights stay as they are
magnitude, refit  the same, refitted
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert import targets, tasks
from octobert.core import environment
from octobert.core.estimate import Estimate
from octobert.core.family import EncoderFamily
from octobert.core.pruning import LevelTimes, Sublayer
from octobert.core.ranges import Provenance, Ranges
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.data.readers import read_file
from octobert.data.tokenization import Encoded, EncodedTexts, Tokenizer, feeds_of
from octobert.evaluation import candidates, latency, level_times, scoring, statistics
from octobert.graph import cutting, operators, parts, qdq, sites
from octobert.graph.capture.capture import capture
from octobert.graph.passes import first_token
from octobert.inference.batching import run_rows
from octobert.models.source import resolve
from octobert.quantization import calibrators, observer
from octobert.quantization.methods import static
from octobert.quantization.pruning import fitting, removal, sublayer_losses
from octobert.quantization.pruning.budget import Table, reach
from octobert.quantization.pruning.removal import Level
from octobert.quantization.transforms import smoothquant
from octobert.tasks import Outputs, Result, Task

SEED, DAMPING, TILE = 0, 0.01, 64
RANGE_ROWS, LOSS_ROWS = 64, 256
# Shares of the units at which the loss of a sublayer is measured, as in the stage.
LOSS_AT = (0.5, 0.0)


@dataclass(frozen=True)
class Case:
    """A checkpoint, its task, and the files with training rows and evaluation rows."""

    name: str
    checkpoint: str
    task: str
    train: Path
    evaluation: Path
    max_length: int


@dataclass
class Model:
    """The whole model with its rows, its levels, and what was found out about them."""

    path: Path
    family: EncoderFamily
    task: Task
    tokenizer: Tokenizer
    rows: list[Encoded]
    compared: EncodedTexts
    evaluated: EncodedTexts
    gold: list[Any]
    sublayers: list[Sublayer]
    levels: dict[str, list[Level]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Note the seconds of a block."""
        began = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - began

    def outputs(self, session: Session, texts: EncodedTexts) -> Outputs:
        """Outputs of a session."""
        return run_rows(session, texts.flat, self.tokenizer.pad_id, per_token=self.task.per_token)


def cases(shared: Path) -> list[Case]:
    """The shared checkpoints."""
    data, checkpoints = shared / "data", shared / "checkpoints"
    mrpc, squad = data / "mrpc", data / "squad"
    return [
        Case(
            "mrpc",
            str(checkpoints / "minilm-mrpc"),
            "mrpc",
            mrpc / "train.tsv",
            mrpc / "validation.tsv",
            128,
        ),
        Case(
            "squad",
            str(checkpoints / "minilm-squad"),
            "squad",
            squad / "train-v1.1.json",
            squad / "dev-v1.1.json",
            384,
        ),
    ]


def opened(case: Case, folder: Path, evaluated: int, wanted: int) -> Model:
    """Capture a checkpoint, and tokenize its rows."""
    task, tokenizer = tasks.build(case.task, {}), Tokenizer(Path(case.checkpoint), case.max_length)
    train, judged = read_file(case.train), read_file(case.evaluation)
    random.Random(SEED).shuffle(train)
    judged = random.Random(SEED).sample(judged, min(evaluated, len(judged)))
    texts = task.encode(tokenizer, task.inputs(train[: wanted // 10], where=case.train.name))
    ends = np.cumsum([sum(map(len, rows)) for rows in texts.rows])
    rows = [row for rows in texts.rows[: int(np.searchsorted(ends, wanted)) + 1] for row in rows]
    compared = EncodedTexts(texts.texts[:LOSS_ROWS], texts.rows[:LOSS_ROWS], texts.tokenizer)
    captured = capture(resolve(case.checkpoint), task.head, [feeds_of(rows[:4], tokenizer.pad_id)])
    assert captured.family is not None
    path = folder / "whole.onnx"
    operators.save(captured.model, path)
    evaluation = task.encode(tokenizer, task.inputs(judged, where=case.evaluation.name))
    gold, sublayers = (
        task.gold(judged, where=case.evaluation.name),
        cutting.find(captured.model.graph, captured.family)[0],
    )
    return Model(
        path, captured.family, task, tokenizer, rows, compared, evaluation, gold, sublayers
    )


def floating(path: Path, head: str) -> Session:
    """A float graph in ONNX Runtime."""
    return candidates.open_candidate(
        candidates.Candidate(name="ort-f32", path=str(path), head=head), 0
    )


def counts(sublayer: Sublayer) -> list[int]:
    """The levels of a sublayer, ascending."""
    return [*range(0, sublayer.units, TILE if sublayer.kind == "ffn" else 1), sublayer.units]


def add_levels_(model: Model) -> None:
    """Moments and removal."""
    graph = ir.load(model.path).graph
    nodes = {str(node.name): node for node in graph}
    x = {
        s.module: str(parts.linear_at(sites.linear_node(nodes, s.module)).x.name)
        for s in model.sublayers
    }
    with model.timed("moments"):
        gathered = removal.moments(
            model.path, model.rows, model.tokenizer.pad_id, sorted(set(x.values()))
        )
    with model.timed("removal"):
        for each in model.sublayers:
            weight, bias = sublayer_losses.projection(graph, each.module)
            found = removal.removed(
                gathered[x[each.module]].products, weight, bias, each.width, counts(each), DAMPING
            )
            model.levels[each.module] = sorted(found, key=lambda level: level.units)


def by_magnitude(model: Model, share: float) -> dict[str, Level]:
    """The units with the largest weights, as they are: the same share of all sublayers, in whole tiles."""
    graph = ir.load(model.path).graph
    chosen = {}
    for each in model.sublayers:
        weight, bias = sublayer_losses.projection(graph, each.module)
        units = (
            max(1, math.floor(share * each.units))
            if each.kind == "attention"
            else TILE * max(1, round(share * each.units / TILE))
        )
        norms = np.linalg.norm(weight.reshape(each.units, -1), axis=1)
        kept = np.sort(np.argsort(-norms)[:units])
        rows = (kept[:, None] * each.width + np.arange(each.width)).reshape(-1)
        chosen[each.module] = Level(len(kept), kept, weight[rows], bias, 0.0)
    return chosen


def pruned(model: Model, chosen: Mapping[str, Level], folder: Path, *, refit: bool) -> Path:
    """Write a pruned float graph."""
    graph = ir.load(model.path)
    cut = {s.module: chosen[s.module] for s in model.sublayers if chosen[s.module].units < s.units}
    cutting.cut_(graph, model.family, {module: level.kept for module, level in cut.items()})
    cutting.outputs_(graph, {module: (level.weight, level.bias) for module, level in cut.items()})
    if refit:
        whole = ir.load(model.path)
        fitting.refit_(
            graph, whole, model.sublayers, model.rows, model.tokenizer.pad_id, damping=DAMPING
        )
    cutting.fold_(graph)
    folder.mkdir(parents=True, exist_ok=True)
    operators.save(graph, folder / "float.onnx")
    return folder / "float.onnx"


def in_8_bits(model: Model, path: Path, target: str, *, ranges: bool = True) -> Session:
    """Quantize a float graph next to it, and open it on a target. Times do not depend on ranges."""
    rows, pad_id, graph = model.rows[:RANGE_ROWS], model.tokenizer.pad_id, ir.load(path)
    plugin, folder = targets.load(target), path.parent
    if ranges:
        options = smoothquant.Options()
        samples = observer.sample(
            path,
            rows,
            pad_id,
            smoothquant.values(graph.graph, model.family, options),
            tokens=512,
            seed=SEED,
        )
        smoothquant.transform_(graph, model.family, samples, options, lambda *_: None)
        operators.save(graph, folder / "smoothed.onnx")
        path = folder / "smoothed.onnx"
    placed = sites.find_sites(graph.graph, model.family)
    names = sorted({site.value for site in placed if not site.is_weight})
    minmax = calibrators.load("minmax")
    seen = observer.observe(path, rows if ranges else rows[:1], pad_id, names)
    intervals = {name: minmax.interval(each, minmax.Options()) for name, each in seen.items()}
    about = Provenance(
        samples=len(rows), tokens=0, data_digest="", model_digest="", source="benchmark"
    )
    plan = static.plan(
        placed,
        Ranges(calibrator="minmax", options={}, intervals=intervals, provenance=about),
        plugin.CAPABILITIES,
        static.Options(),
    )
    qdq.write(graph, plan)
    if plugin.CAPABILITIES.rewrites.first_token:
        first_token.slice_first_token_(graph)
    operators.save(graph, folder / "model_quantized.onnx")
    plugin.export(folder / "model_quantized.onnx", folder, ExportOptions(shape=None))
    return plugin.open_session(plugin.model_file(folder), SessionOptions(threads=0))


def timed(
    model: Model, target: str, workloads: Sequence[latency.Workload]
) -> tuple[float, tuple[LevelTimes, ...]]:
    """(Milliseconds of the whole model in 8 bits, times of levels)."""
    last = max(each.layer for each in model.sublayers)

    def at(cut: level_times.Cut | None, place: Path) -> Session:
        own = [
            s
            for s in model.sublayers
            if cut is not None and s.kind == cut.kind and (s.layer == last) == cut.last
        ]
        return lacking(
            model, target, {} if cut is None else {s.module: cut.units for s in own}, place
        )

    kinds = sorted({each.kind for each in model.sublayers})
    own = {kind: [s for s in model.sublayers if s.kind == kind] for kind in kinds}
    numbers = {
        kind: (sum(s.layer != last for s in each), sum(s.layer == last for s in each))
        for kind, each in own.items()
    }
    levels = {kind: counts(each[0]) for kind, each in own.items()}
    size = model.path.stat().st_size
    with model.timed("times"):
        return level_times.measure(
            at, levels, numbers, workloads, seconds=level_times.SECONDS, size_bytes=size, seed=SEED
        )


def lacking(model: Model, target: str, units: Mapping[str, int], place: Path) -> Session:
    """An 8-bit model in which modules have so many units, for timing."""
    graph = ir.load(model.path)
    cut = {
        s.module: np.arange(units[s.module])
        for s in model.sublayers
        if units.get(s.module, s.units) < s.units
    }
    if cut:
        cutting.cut_(graph, model.family, cut)
        cutting.fold_(graph)
    place.mkdir(parents=True, exist_ok=True)
    operators.save(graph, place / "float.onnx")
    return in_8_bits(model, place / "float.onnx", target, ranges=False)


@dataclass(frozen=True)
class Variant:
    """A pruned model: its method, the speedup by the times of its levels, and its float graph."""

    method: str
    predicted: float
    path: Path


def variants(
    model: Model,
    timed_levels: tuple[float, tuple[LevelTimes, ...]],
    workloads: Sequence[latency.Workload],
    options: argparse.Namespace,
    folder: Path,
) -> list[Variant]:
    """Write every pruned model. All methods of a speedup have models that are as fast, measured."""
    reference = model.outputs(floating(model.path, model.task.head), model.compared)

    def loss(session: sublayer_losses.Overridden) -> float:
        outputs = Result(model.outputs(session, model.compared), model.compared)
        return model.task.divergence(outputs, Result(reference, model.compared))

    with model.timed("losses"):
        losses = sublayer_losses.measure(
            model.path, model.sublayers, model.levels, LOSS_AT, loss, lambda *_: None
        )
    units = {module: [level.units for level in own] for module, own in model.levels.items()}
    whole_ms, times = timed_levels
    table = Table(
        model.sublayers,
        units,
        {module: own.tolist() for module, own in losses.items()},
        times,
        whole_ms,
    )
    whole = lacking(model, options.target, {}, folder / "timed whole")

    def measured(units: Mapping[str, int]) -> Estimate:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            session = lacking(model, options.target, units, Path(place))
            return level_times.against(whole, session, workloads, seed=SEED)

    shares = [by_magnitude(model, percent / 100) for percent in range(99, 0, -1)]
    smaller = list({tuple(units_of(each).values()): each for each in shares}.values())
    made: list[Variant] = []
    for speedup in options.speedups:
        with model.timed(f"measuring {speedup:g}"):
            best = reach(table, speedup, measured)
        if best is None:
            print(f"no model is {speedup:g} × as fast")
            continue
        levels = {
            s.module: model.levels[s.module][table.units[s.module].index(best.units[s.module])]
            for s in model.sublayers
        }
        place = bisect.bisect_left(
            smaller, best.measured.value, key=lambda each: measured(units_of(each)).value
        )
        uniform = smaller[min(place, len(smaller) - 1)]
        methods = {
            "octobert": (levels, True),
            "without refit": (levels, False),
            "magnitude": (uniform, False),
            "magnitude, refit": (uniform, True),
        }
        for name, (chosen, refit) in methods.items():
            with model.timed(f"fitting {name} {speedup:g}") if refit else nullcontext():
                path = pruned(model, chosen, folder / f"{name} {speedup}", refit=refit)
            made.append(Variant(name, table.speedup(units_of(chosen)), path))
    return made


def units_of(chosen: Mapping[str, Level]) -> dict[str, int]:
    """Module → units."""
    return {module: level.units for module, level in chosen.items()}


def examine(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Prune, quantize, score and time one case."""
    folder = options.out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    model = opened(case, folder, options.evaluated, options.tokens)
    add_levels_(model)
    tokens = [len(row) for row in model.evaluated.flat]
    lengths = sorted({int(np.quantile(tokens, q)) for q in (1 / 6, 1 / 2, 5 / 6)})
    workloads = [latency.random_workload(1, length, 1000, SEED) for length in lengths]
    times = timed(model, options.target, workloads)
    whole = folder / "whole" / "float.onnx"
    whole.parent.mkdir(exist_ok=True)
    operators.save(ir.load(model.path), whole)
    made = [Variant("whole", 1.0, whole), *variants(model, times, workloads, options, folder)]
    sessions = [in_8_bits(model, each.path, options.target) for each in made]
    floats = [model.outputs(floating(each.path, model.task.head), model.evaluated) for each in made]
    integers = [model.outputs(session, model.evaluated) for session in sessions]
    feeds = [workload.rounds[0] for workload in workloads]
    mean = level_times.interleaved(sessions, feeds, options.seconds, SEED).mean(axis=2)
    rows = []
    for index, (each, taken) in enumerate(zip(made, mean, strict=True)):
        row: dict[str, Any] = {"method": each.method, "predicted": each.predicted}
        for kind, outputs in (("float", floats), ("int8", integers)):
            scores = scoring.scores(
                model.task, outputs[index], model.evaluated, model.gold, seed=SEED
            )
            compared = scoring.compare(
                model.task,
                (each.method, "whole"),
                (outputs[index], outputs[0]),
                model.evaluated,
                model.gold,
                seed=SEED,
            )
            row[kind] = {
                "value": next(
                    score.value for score in scores if score.metric == model.task.primary
                ),
                "loss": model.task.divergence(
                    Result(outputs[index], model.evaluated), Result(floats[0], model.evaluated)
                ),
                **compared.model_dump(exclude={"changed"}),
            }
        ratio = statistics.speedup(taken, mean[0])
        row |= {"measured": ratio.value, "low": ratio.low, "high": ratio.high}
        rows.append(row)
    show(case, model, lengths, rows)
    return {
        "rows": rows,
        "seconds": model.seconds,
        "lengths": lengths,
        "times": [each.model_dump() for each in times[1]],
    }


def show(
    case: Case, model: Model, lengths: Sequence[int], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Print one table."""
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in model.seconds.items())
    print(
        f"\n{case.name}: {len(model.gold)} rows, {model.task.primary} × 100, 8 bits at {lengths} tokens; {seconds}\n"
    )
    print(
        "| method | predicted × | measured × [95 %] | float, − whole | 8 bits, − whole [95 %] | loss in float |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda row: (row["method"], row["measured"])):
        cells = []
        for kind in ("float", "int8"):
            each = row[kind]
            interval = (
                f" [{100 * each['low']:+.2f}, {100 * each['high']:+.2f}]"
                if each.get("low") is not None
                else ""
            )
            cells.append(f"{100 * each['value']:.2f}, {100 * each['difference']:+.2f}{interval}")
        speed = f"{row['measured']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        figures = [f"{row['predicted']:.2f}", speed, *cells, f"{row['float']['loss']:.4f}"]
        print(f"| {row['method']} | {' | '.join(figures)} |")


def named(text: str) -> Case:
    """`NAME=CHECKPOINT:TASK:TRAIN:EVALUATION`."""
    name, _, rest = text.partition("=")
    checkpoint, task, train, evaluation = rest.split(":")
    return Case(name, checkpoint, task, Path(train), Path(evaluation), 128)


def main() -> None:
    """Run, print, write `results.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/pruning"))
    parser.add_argument("--only")
    parser.add_argument("--target", default="openvino-cpu")
    parser.add_argument("--evaluated", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--speedups", type=float, nargs="+", default=(1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0)
    )
    options = parser.parse_args()
    chosen = (
        [named(options.only)] if options.only and "=" in options.only else cases(options.shared)
    )
    results: dict[str, Any] = {}
    for case in chosen:
        if options.only is None or "=" in options.only or options.only == case.name:
            results[case.name] = examine(case, options)
            here = environment.current()
            results["environment"] = here.model_dump()
            (options.out / "results.json").write_text(
                json.dumps(results, indent=1, default=str), encoding="utf-8"
            )
    print(f"\n{here.cpu}, {here.cores} cores, {', '.join(here.features)}")


if __name__ == "__main__":
    main()
