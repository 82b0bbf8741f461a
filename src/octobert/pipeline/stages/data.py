"""Rows of the user's data → the rows that calibration sees, those that a search is judged on, and those that are evaluated in
the end; none of them in two parts.

Writes `calibration.json` {inputs, digest} and `evaluation.json` {inputs, gold, digest}. Where a search is wanted,
`tuning.json`: growing parts of its rows, [{inputs, gold}], so that a clearly bad plan is rejected on few rows. Where a model is
trained, `training.json` {inputs, gold}. Where it is pruned, `fitting.json` {inputs}: more rows to fit weights to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from octobert.config.recipe import RowSelection
from octobert.core.errors import DataError
from octobert.core.files import canonical_digest
from octobert.core.frozen import FrozenModel
from octobert.core.user_code import UserCode
from octobert.data import functions, readers, sampling
from octobert.data.functions import RowFunction
from octobert.data.hub import HubData
from octobert.data.rows import Row
from octobert.data.sources import Content
from octobert.data.tokenization import Text
from octobert.pipeline.contract import Context, Summary, TaskSpec
from octobert.tasks import Task

# Shares of the tuning rows that are judged one after another.
TUNING_SHARES = (0.125, 0.25, 0.5, 1.0)


class Inputs(FrozenModel):
    """Nothing: the rows come from the user."""


class Options(FrozenModel):
    """What the rows depend on.

    Args:
        places: part (`calibrate`, `evaluate`, `tune`, `train`) → file, folder, or split on the hub.
        content: digests of the files, or the exact revision on the hub.
        alone: one file for all parts; they are drawn at random, apart from each other.
        how: the choice in words, for the report.
        hub, revision: the data set on the hub, and what was asked for of it.
        calibrate, evaluate, tune, finetune: how many rows of each part, and which are left out; None where it is not wanted.
        fitting: how many rows to fit a pruned model to, beside the calibration rows; None where it is not pruned.
        functions: part → the user's function that gives its rows.
        preprocess: the user's function that changes rows or leaves them out.
        allow_leakage: accept rows that are both calibrated (or trained) on and evaluated.
    """

    NOT_IN_KEY: ClassVar = frozenset({"places"})

    task: TaskSpec
    seed: int
    places: dict[str, str]
    content: Content
    alone: bool
    how: str
    hub: HubData | None
    revision: str | None
    columns: tuple[str, ...]
    calibrate: RowSelection
    evaluate: RowSelection
    tune: RowSelection | None
    finetune: RowSelection | None
    fitting: int | None = None
    functions: dict[str, RowFunction]
    preprocess: UserCode | None
    allow_leakage: bool


def run(context: Context[Inputs, Options]) -> Summary:
    """Load, separate, check for leakage, sample."""
    options = context.options
    task, seed = options.task.build(), options.seed
    calibrate, evaluate, tune = options.calibrate, options.evaluate, options.tune
    samples = calibrate.samples or 0
    reader = _Reader(options)
    source, rows = reader.load("calibrate")
    tuning: list[Row] = []
    if options.alone:
        target, evaluated = source, rows
        rows, evaluated = _held_out(task, rows, source, samples, seed)
        if tune is not None:
            tuning, evaluated = _held_out(task, evaluated, source, tune.samples or 0, seed)
    else:
        target, evaluated = reader.load("evaluate")
    if evaluate.samples:
        evaluated = [evaluated[i] for i in sampling.sample(len(evaluated), evaluate.samples, seed)]
    evaluated_digests = _digests(task, evaluated, target)
    dropped = 0
    if calibrate.drop_evaluated:
        remaining = sampling.apart(_digests(task, rows, source), evaluated_digests)
        dropped, rows = len(rows) - len(remaining), [rows[i] for i in remaining]
    pool, rows = rows, [rows[i] for i in sampling.sample(len(rows), samples, seed)]
    if not rows:
        raise DataError("no rows are left to calibrate on", where="data.calibrate", fix="give more rows to calibrate from")
    calibrated_digests = _digests(task, rows, source)
    if not options.allow_leakage:
        sampling.refuse_leakage(calibrated_digests, evaluated_digests)
    if tune is not None:
        if not options.alone:
            place, tuning = reader.load("tune")
            remaining = sampling.apart(_digests(task, tuning, place), [*evaluated_digests, *calibrated_digests])
            tuning = [tuning[remaining[i]] for i in sampling.sample(len(remaining), tune.samples or 0, seed)]
        _write_tuning(context, task, tuning, seed)
    trained = _write_training(context, task, reader, evaluated_digests, tuning) if options.finetune else 0
    if options.fitting is not None:
        judged = _digests(task, tuning, "data.tune")
        others = sampling.apart(_digests(task, pool, source), [*evaluated_digests, *calibrated_digests, *judged])
        fitted = [pool[others[i]] for i in sampling.sample(len(others), options.fitting, seed)]
        context.write_json("fitting.json", {"inputs": task.inputs(fitted, where=source) if fitted else []})
    calibrated, inputs = task.inputs(rows, where=source), task.inputs(evaluated, where=target)
    gold = task.gold(evaluated, where=target)
    context.write_json("calibration.json", {"inputs": calibrated, "digest": canonical_digest(calibrated)})
    context.write_json("evaluation.json", {"inputs": inputs, "gold": gold, "digest": canonical_digest([inputs, gold])})
    return {
        "calibration_rows": len(rows),
        "evaluation_rows": len(evaluated),
        "tuning_rows": len(tuning),
        "training_rows": trained,
        "source": options.how,
        "leaked_rows": len(set(calibrated_digests) & set(evaluated_digests)),
        "dropped_rows": dropped,
        "left_out_rows": sum(reader.left_out.values()),
    }


def _held_out(task: Task, rows: list[Row], where: str, samples: int, seed: int) -> tuple[list[Row], list[Row]]:
    """So many rows, and the rest."""
    first, second = sampling.hold_out(_digests(task, rows, where), samples, seed)
    return [rows[i] for i in first], [rows[i] for i in second]


def _write_tuning(context: Context[Inputs, Options], task: Task, rows: list[Row], seed: int) -> None:
    where = "data.tune"
    if not rows:
        raise DataError(
            "no rows are left to search on",
            where=where,
            got="every row of the split is calibrated on or evaluated",
            fix="give a split with more rows, or calibrate on fewer",
        )
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = []
    for share in TUNING_SHARES:
        part = [rows[i] for i in order[: max(1, round(share * len(rows)))]]
        parts.append({"inputs": task.inputs(part, where=where), "gold": task.gold(part, where=where)})
    context.write_json("tuning.json", parts)


def _write_training(
    context: Context[Inputs, Options], task: Task, reader: _Reader, evaluated: Sequence[str], tuning: Sequence[Row]
) -> int:
    """The rows to fine-tune on, none of which a search is held against; how many."""
    options = context.options
    selection = options.finetune
    assert selection is not None
    place, rows = reader.load("train")
    foreign = [*_digests(task, tuning, "data.tune"), *(evaluated if selection.drop_evaluated else [])]
    digests = _digests(task, rows, place)
    remaining = sampling.apart(digests, foreign)
    if selection.samples:
        remaining = [remaining[i] for i in sampling.sample(len(remaining), selection.samples, options.seed)]
    rows = [rows[i] for i in remaining]
    if not rows:
        raise DataError("no rows are left to fine-tune on", where="data.finetune", fix="give a split with more rows")
    if not options.allow_leakage:
        sampling.refuse_leakage([digests[i] for i in remaining], evaluated, what="training", where="data.finetune")
    context.write_json("training.json", {"inputs": task.inputs(rows, where=place), "gold": task.gold(rows, where=place)})
    return len(rows)


@dataclass(frozen=True)
class _Reader:
    """Reads the parts.

    Args:
        left_out: place → rows that the user's `preprocess` left out.
    """

    options: Options
    left_out: dict[str, int] = field(default_factory=dict)

    def load(self, part: str) -> tuple[str, list[Row]]:
        """(Where the rows of a part are, the rows)."""
        options = self.options
        if part in options.functions:
            where, rows = options.functions[part].read()
        else:
            place = options.places[part]
            where, rows = readers.read(place, hub=options.hub, revision=options.revision, columns=options.columns)
        if options.preprocess is None:
            return where, rows
        kept = functions.preprocessed(rows, options.preprocess, where=where)
        self.left_out[where] = len(rows) - len(kept)
        return where, kept


def _digests(task: Task, rows: Sequence[Row], where: str) -> list[str]:
    """What makes each data row the row it is: all of its texts, whatever order the model reads them in."""
    if not rows:
        return []
    inputs = task.inputs(rows, where=where)
    per_row = len(inputs) // len(rows)
    texts: list[Text] = [
        tuple(t for k in range(per_row) for t in task.identity(inputs[k * len(rows) + i])) for i in range(len(rows))
    ]
    return [sampling.row_digest(text) for text in texts]
