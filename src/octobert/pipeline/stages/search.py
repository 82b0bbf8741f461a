"""A plan, what its values cost, and labelled rows → the fastest plan that meets the user's criterion.

Writes `plan.json`, `model_quantized.onnx` and `search.json`. Trials, float outputs and timings are kept in `context.scratch` as
soon as they are known, so an interrupted search goes on where it was.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert.config.recipe import Accuracy
from octobert.core import plugins
from octobert.core.capability import Capabilities
from octobert.core.errors import DataError, RecipeError
from octobert.core.files import atomic_write, link_or_copy
from octobert.core.plan import DType, QuantPlan
from octobert.core.results import Search, Sensitivity, Trial
from octobert.core.session import Session, SessionOptions
from octobert.data.tokenization import Asked, Encoded, Text
from octobert.evaluation import candidates, latency
from octobert.evaluation.statistics import paired
from octobert.inference.batching import run_rows
from octobert.pipeline.stages import Context, encoder_of, quantize, task_of
from octobert.quantization import apply_corrections, search
from octobert.quantization.layers import LayerChange
from octobert.tasks._task import Task

VERSION = 2
# Rounds in which the kinds of units are timed against each other.
_TIMING_ROUNDS = 15
_TRIALS, _TIMINGS, _FLOAT = "trials.jsonl", "timings.json", "float.npz"

Outputs = dict[Text, dict[str, np.ndarray]]
Changes = dict[str, LayerChange]
Part = tuple[list[Text], list[Any]]


def run(context: Context) -> dict[str, Any]:
    """Search."""
    criterion = Accuracy.model_validate(context.options["accuracy"])
    context.scratch.mkdir(parents=True, exist_ok=True)
    target = plugins.load("targets", context.options["target"])
    plan = context.read("quantize", "plan.json", QuantPlan)
    refined = context.inputs["quantize"] / "refined.npz"
    layers = apply_corrections.load(refined) if refined.is_file() else {}
    began = time.monotonic()
    judge = Judge(context, criterion)
    units = search.units_of(plan)
    sixteen = _sixteen_bits(target.CAPABILITIES, criterion)
    saving, tokens = _savings(context, plan, layers, units, judge, sixteen)
    harm = search.unit_errors(units, context.read("sensitivity", "sensitivity.json", Sensitivity))
    order = search.ordered(units, harm, saving)
    trials = _known(context.scratch / _TRIALS)
    spent = time.monotonic() - began

    def attempt(names: tuple[str, ...]) -> Trial:
        started = time.monotonic()
        context.progress(
            f"trial {len(trials) + 1}: {len(names)} of {len(units)} units stepped back", len(trials), len(trials) + 1
        )
        back = [u for u in units if u.name in names]
        tried = search.with_fallback(plan, back, sixteen)
        saved = sum(saving.get(u.kind, 0.0) for u in units if u not in back)
        rows, value, drop = judge.judge(_opened(context, target, tried, layers))
        met = rows == judge.rows and judge.meets(value, drop)
        seconds = time.monotonic() - started
        return Trial(fallback=names, rows=rows, value=value, drop=drop, met=met, saved_ms=saved, seconds=seconds)

    def keep(trial: Trial) -> None:
        trials.append(trial)
        with (context.scratch / _TRIALS).open("a", encoding="utf-8") as stream:
            stream.write(trial.model_dump_json() + "\n")

    seconds = criterion.minutes * 60 - spent
    # Something must stay in 8 bits, or there is nothing to hand over.
    most = len(units) - 1 if sixteen is None else len(units)
    outcome = search.search(order, saving, attempt, list(trials), most=most, seconds=seconds, on_trial=keep)
    taken = search.with_fallback(plan, [u for u in units if u.name in outcome.taken.fallback], sixteen)
    quantize.write(context.inputs["float"] / "model.onnx", taken, layers, context.work / quantize.FILE)
    if refined.is_file():
        link_or_copy(refined, context.work / refined.name)
    found = Search(
        metric=judge.metric,
        criterion=judge.in_words(),
        float_value=judge.float_value,
        rows=judge.rows,
        met=outcome.met,
        taken=outcome.taken,
        trials=tuple(trials),
        unit_saving_ms=saving,
        tokens=tokens,
        seconds=sum(t.seconds for t in trials) + spent,
        ended=outcome.ended,
    )
    context.write("plan.json", taken)
    context.write("search.json", found)
    return {
        "met": found.met,
        "trials": len(trials),
        "fallback": list(outcome.taken.fallback),
        "drop": outcome.taken.drop,
    }


class Judge:
    """Holds models against the criterion, on growing parts of the tuning rows.

    Texts are tokenized once, the float model is run once, and no text is run twice for one model.
    """

    def __init__(self, context: Context, criterion: Accuracy) -> None:
        self._criterion = criterion
        self._task: Task = task_of(context.options)
        self._seed = int(context.options["seed"])
        self.metric = criterion.metric or str(self._task.primary)
        self._parts: list[Part] = [
            ([tuple(t) for t in part["inputs"]], part["gold"]) for part in context.read_json("data", "tuning.json")
        ]
        if not len(self._parts[-1][1]):
            raise DataError(
                "the rows to search on have no gold", where="data.tune", fix="give labelled rows, or leave out accuracy"
            )
        encoder = encoder_of(context)
        self._pad_id = encoder.pad_id
        distinct = list(dict.fromkeys(text for inputs, _ in self._parts for text in inputs))
        asked = self._task.encode(encoder, distinct)
        self._rows: dict[Text, Sequence[Encoded]] = dict(zip(distinct, asked.rows, strict=True))
        self.rows = len(self._parts[-1][1])
        self.median_tokens = int(np.median([len(row) for row in asked.flat]))
        self._float = self._float_outputs(context, distinct)
        self.float_value = self._value(self._parts[-1], self._float)
        self._check()

    def judge(self, session: Session) -> tuple[int, float, float]:
        """(rows judged, value, drop) of a model; fewer than all rows when it is clear that it fails."""
        known: Outputs = {}
        value = drop = 0.0
        rows = 0
        for number, part in enumerate(self._parts):
            self._run(session, [t for t in dict.fromkeys(part[0]) if t not in known], known)
            value, rows = self._value(part, known), len(part[1])
            drop = self._value(part, self._float) - value
            if number < len(self._parts) - 1 and self._hopeless(part, known):
                break
        return rows, value, drop

    def meets(self, value: float, drop: float) -> bool:
        """Whether figures on all rows meet the criterion."""
        within = self._criterion.max_drop is None or drop <= self._allowed(self.float_value) + 1e-12
        return within and (self._criterion.at_least is None or value >= self._criterion.at_least)

    def in_words(self) -> str:
        """The criterion as a person would say it."""
        parts = []
        if self._criterion.max_drop is not None:
            share = " of the float figure" if self._criterion.relative else ""
            parts.append(f"{self.metric} drops by at most {self._criterion.max_drop:g}{share}")
        if self._criterion.at_least is not None:
            parts.append(f"{self.metric} is at least {self._criterion.at_least:g}")
        return " and ".join(parts)

    def _allowed(self, float_value: float) -> float:
        return (self._criterion.max_drop or 0.0) * (abs(float_value) if self._criterion.relative else 1.0)

    def _hopeless(self, part: Part, outputs: Outputs) -> bool:
        """Whether even the upper end of the interval of the difference is below what is allowed."""
        metric = self._task.metrics[self.metric]
        ours, theirs = (self._items(part, o) for o in (outputs, self._float))
        _, _, high, _ = paired(metric, ours, theirs, seed=self._seed)
        return self._criterion.max_drop is not None and high < -self._allowed(metric(theirs))

    def _value(self, part: Part, outputs: Outputs) -> float:
        return float(self._task.metrics[self.metric](self._items(part, outputs)))

    def _items(self, part: Part, outputs: Outputs) -> np.ndarray:
        inputs, gold = part
        asked = Asked(inputs, [self._rows[t] for t in inputs])
        joined = {name: np.concatenate([outputs[t][name] for t in inputs]) for name in outputs[inputs[0]]}
        return self._task.items(joined, asked, gold)

    def _run(self, session: Session, wanted: Sequence[Text], known: Outputs) -> None:
        rows = [row for text in wanted for row in self._rows[text]]
        joined = run_rows(session, rows, self._pad_id, per_token=self._task.per_token)
        known.update(self._apart(joined, wanted))

    def _apart(self, joined: Mapping[str, np.ndarray], wanted: Sequence[Text]) -> Outputs:
        """Outputs text by text."""
        sizes = [sum(map(len, self._rows[t])) if self._task.per_token else len(self._rows[t]) for t in wanted]
        parts = {name: np.split(array, np.cumsum(sizes)[:-1]) for name, array in joined.items()}
        return {text: {name: parts[name][i] for name in parts} for i, text in enumerate(wanted)}

    def _float_outputs(self, context: Context, distinct: list[Text]) -> Outputs:
        path = context.scratch / _FLOAT
        if path.is_file():
            with np.load(path) as arrays:
                return self._apart({name: arrays[name] for name in arrays.files}, distinct)
        model = context.inputs["capture"] / "model.onnx"
        session = candidates.open_float(context.options["target"], model, self._task.head)
        known: Outputs = {}
        self._run(session, distinct, known)
        joined = {name: np.concatenate([known[t][name] for t in distinct]) for name in known[distinct[0]]}
        with atomic_write(path) as partial:
            np.savez(partial, **joined)  # type: ignore[arg-type]
        return known

    def _check(self) -> None:
        floor = self._criterion.at_least
        if floor is not None and self.float_value < floor:
            raise RecipeError(
                "the float model itself misses the criterion",
                where="accuracy.at_least",
                got=f"{self.metric} {self.float_value:.4f} on {self.rows} tuning rows",
                expected=f"at least {floor:g}",
                fix="lower it, or fine-tune the model first",
            )


def _opened(context: Context, target: Any, plan: QuantPlan, layers: Changes) -> Session:
    """A session of a plan on its target."""
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / quantize.FILE
        quantize.write(context.inputs["float"] / "model.onnx", plan, layers, path)
        return target.open_session(path, SessionOptions())


def _savings(
    context: Context,
    plan: QuantPlan,
    layers: Changes,
    units: Sequence[search.Unit],
    judge: Judge,
    sixteen: DType | None,
) -> tuple[dict[str, float], int]:
    """Kind of unit → milliseconds that 8 bits save on one of them: all of the kind stepped back against none, interleaved."""
    path = context.scratch / _TIMINGS
    tokens = judge.median_tokens
    if path.is_file():
        return json.loads(path.read_text()), tokens
    kinds = list(dict.fromkeys(u.kind for u in units))
    vocabulary = int(context.read_json("capture", "config.json").get("vocab_size", 1000))
    head = task_of(context.options).head
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        plans = {"none": plan}
        plans |= {kind: search.with_fallback(plan, [u for u in units if u.kind == kind], sixteen) for kind in kinds}
        named = []
        for index, (label, one) in enumerate(plans.items()):
            file = Path(folder) / f"{index}.onnx"
            if one.quantized:
                quantize.write(context.inputs["float"] / "model.onnx", one, layers, file)
            else:
                link_or_copy(context.inputs["float"] / "model.onnx", file)
            named.append(candidates.Candidate(name=context.options["target"], path=str(file), head=head, label=label))
        shape = latency.fixed_shape(1, tokens, vocabulary, int(context.options["seed"]))
        latencies, _ = latency.measure(
            named,
            [shape],
            repeats=_TIMING_ROUNDS,
            threads=0,
            on_progress=lambda _, n, of: context.progress("timing units", n, of),
        )
    # Differences are taken round by round: what slows the machine down for a while slows neighbours in a round alike.
    times = {one.candidate: np.array(one.samples_ms) for one in latencies}
    counts = {kind: sum(u.kind == kind for u in units) for kind in kinds}
    saving = {kind: float(np.median(times[kind] - times["none"])) / counts[kind] for kind in kinds}
    with atomic_write(path) as partial:
        partial.write_text(json.dumps(saving))
    return saving, tokens


def _sixteen_bits(capabilities: Capabilities, criterion: Accuracy) -> DType | None:
    """The 16-bit type that units step back to, or None for float."""
    if criterion.fallback == "float":
        return None
    computed = [dtype for dtype, _ in capabilities.activations if dtype in ("int16", "uint16")]
    simulated = [dtype for dtype, _ in capabilities.simulated_activations if dtype in ("int16", "uint16")]
    if criterion.fallback == "int16" and not computed + simulated:
        raise RecipeError(f"{capabilities.name} takes no 16-bit activations", where="accuracy.fallback", fix="use float")
    chosen = computed + (simulated if criterion.fallback == "int16" else [])
    return chosen[0] if chosen else None


def _known(path: Path) -> list[Trial]:
    """Trials of an interrupted search; a line that was cut short is left out."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(Trial.model_validate_json(line))
        except ValueError:
            break
    path.write_text("".join(t.model_dump_json() + "\n" for t in found), encoding="utf-8")
    return found
