"""Rows of the user's data → the rows that calibration sees, those that a search is judged on, and those that are evaluated in
the end; none of them in two parts.

Writes `calibration.json` {inputs, digest} and `evaluation.json` {inputs, gold, digest}. Where a search is wanted,
`tuning.json`: growing parts of its rows, [{inputs, gold}], so that a clearly bad plan is rejected on few rows. Where a model is
trained, `training.json` {inputs, gold}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from octobert.config.rows import RowSelection
from octobert.core.errors import DataError
from octobert.core.files import canonical_digest
from octobert.core.user_code import UserCode
from octobert.data import readers, sampling, sources
from octobert.data.readers import HubData
from octobert.data.sampling import Row
from octobert.data.sources import Content, RowFunction
from octobert.engine.contract import NOT_IN_KEY, Context, Summary, stage
from octobert.models.source import ModelSource
from octobert.pipeline.artifacts import Rows
from octobert.pipeline.task import TaskSpec
from octobert.tasks import PLUGINS, Table, Task, check_columns

# Shares of the tuning rows that are judged one after another.
TUNING_SHARES = (0.125, 0.25, 0.5, 1.0)


@stage(Rows)
def run(
    context: Context,
    *,
    spec: TaskSpec,
    seed: int,
    places: Annotated[dict[str, str], NOT_IN_KEY],
    content: Content,
    alone: bool,
    how: str,
    tune_from: str,
    hub: HubData | None,
    revision: str | None,
    columns: tuple[str, ...],
    calibrate: RowSelection,
    evaluate: RowSelection,
    tune: RowSelection | None,
    finetune: RowSelection | None,
    functions: dict[str, RowFunction],
    preprocess: UserCode | None,
    allow_leakage: bool,
    reads: ModelSource | None,
) -> Summary:
    """Load, separate, check for leakage, sample.

    Args:
        places: part (`calibrate`, `evaluate`, `tune`, `train`, `corpus`) → file, folder, or split on the hub.
        content: digests of the files, or the exact revision on the hub.
        alone: one file for all parts; they are drawn at random, apart from each other.
        how: the choice in words, for the report.
        tune_from: split or file of the rows to search on, for the report; empty without a search.
        hub, revision: the data set on the hub, and what was asked for of it.
        calibrate, evaluate, tune, finetune: how many rows of each part, and which are left out; None where it is not wanted.
        functions: part → the user's function that gives its rows.
        preprocess: the user's function that changes rows or leaves them out.
        allow_leakage: accept rows that are both calibrated (or trained) on and evaluated.
        reads: the model, where its tokenizer has tokens that it has no embedding for: rows with them are refused.
    """
    task, samples = spec.build(), calibrate.samples or 0
    reader = _Reader(
        task,
        PLUGINS.name_of(spec.options),
        places,
        functions,
        hub,
        revision,
        columns,
        preprocess,
        alone,
        reads,
    )
    # Evaluated rows first, as they need most columns.
    target, evaluated = reader.load("evaluate") if "evaluate" in places and not alone else ("", [])
    source, rows = reader.load("calibrate")
    tuning: list[Row] = []
    if alone:
        target = source
        rows, evaluated = _held_out(
            task, rows, source, samples, seed, parts=2 if tune is None else 3
        )
        if tune is not None:
            tuning, evaluated = _held_out(task, evaluated, source, tune.samples or 0, seed)
    if evaluate.samples:
        evaluated = [evaluated[i] for i in sampling.sample(len(evaluated), evaluate.samples, seed)]
    evaluated_digests = _digests(task, evaluated, target)
    dropped = 0
    if calibrate.drop_evaluated:
        remaining = sampling.apart(_digests(task, rows, source), evaluated_digests)
        dropped, rows = len(rows) - len(remaining), [rows[i] for i in remaining]
    if tune is not None and not alone:
        place, tuning = reader.load("tune")
        digests = _digests(task, tuning, place)
        remaining = sampling.apart(digests, evaluated_digests)
        tuning, digests = [tuning[i] for i in remaining], [digests[i] for i in remaining]
        samples = _leaving_half(samples, _digests(task, rows, source), digests)
    rows = [rows[i] for i in sampling.sample(len(rows), samples, seed)]
    if not rows:
        raise DataError(
            "no rows are left to calibrate on",
            where="data.calibrate",
            fix="give more rows to calibrate from",
        )
    calibrated_digests = _digests(task, rows, source)
    if not allow_leakage:
        sampling.refuse_leakage(calibrated_digests, evaluated_digests)
    if tune is not None:
        if not alone:
            remaining = sampling.apart(digests, calibrated_digests)
            tuning = [
                tuning[remaining[i]]
                for i in sampling.sample(len(remaining), tune.samples or 0, seed)
            ]
        _write_tuning(context, task, tuning, seed)
    trained = 0
    judged = _digests(task, tuning, "data.tune")
    if finetune is not None:
        trained = _write_training(
            context, reader, finetune, judged, evaluated_digests, seed, allow_leakage=allow_leakage
        )
    for place, part in ((source, rows), (target, evaluated), ("data.tune", tuning)):
        reader.check(part, place)
    if "corpus" in places:
        # Searched, but not scored.
        evaluated += task.searched(reader.load("corpus")[1])
    calibrated = task.inputs(rows, where=source)
    inputs, gold = (
        (task.inputs(evaluated, where=target), task.gold(evaluated, where=target))
        if evaluated
        else ([], [])
    )
    context.write_json(
        "calibration.json", {"inputs": calibrated, "digest": canonical_digest(calibrated)}
    )
    context.write_json(
        "evaluation.json",
        {"inputs": inputs, "gold": gold, "digest": canonical_digest([inputs, gold])},
    )
    return {
        "calibration_rows": len(rows),
        "evaluation_rows": len(evaluated_digests),
        "tuning_rows": len(tuning),
        "tuning_split": tune_from,
        "training_rows": trained,
        "source": how,
        "leaked_rows": len(set(calibrated_digests) & set(evaluated_digests)),
        "dropped_rows": dropped,
        "left_out_rows": sum(reader.left_out.values()),
    }


def _held_out(
    task: Task, rows: list[Row], where: str, samples: int, seed: int, *, parts: int = 2
) -> tuple[list[Row], list[Row]]:
    """So many rows, at most one of so many equal parts, and the rest."""
    first, second = sampling.hold_out(_digests(task, rows, where), samples, seed, parts=parts)
    return [rows[i] for i in first], [rows[i] for i in second]


def _leaving_half(samples: int, calibration: Sequence[str], tuning: Sequence[str]) -> int:
    """How many rows to calibrate on, so that at least half of the rows to search on are left where they are the same rows.

    Args:
        samples: that are wanted.
        calibration, tuning: digests of the rows that may be taken for each.
    """
    distinct = set(tuning)
    return samples if distinct.isdisjoint(calibration) else min(samples, max(1, len(distinct) // 2))


def _write_tuning(context: Context, task: Task, rows: list[Row], seed: int) -> None:
    where = "data.tune"
    if not rows:
        raise DataError(
            "no rows are left to search on",
            where=where,
            got="every row of the split is calibrated on or evaluated",
            fix="give a split with more rows, such as data.tune.from: SPLIT",
        )
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = []
    for share in TUNING_SHARES:
        part = [rows[i] for i in order[: max(1, round(share * len(rows)))]]
        parts.append(
            {"inputs": task.inputs(part, where=where), "gold": task.gold(part, where=where)}
        )
    context.write_json("tuning.json", parts)


def _write_training(
    context: Context,
    reader: _Reader,
    selection: RowSelection,
    foreign: Sequence[str],
    evaluated: Sequence[str],
    seed: int,
    *,
    allow_leakage: bool,
) -> int:
    """The rows to fine-tune on; how many.

    Args:
        foreign, evaluated: digests of rows that a search is held against, and of those that are evaluated.
    """
    task, (place, rows) = reader.task, reader.load("train")
    foreign = [*foreign, *(evaluated if selection.drop_evaluated else [])]
    digests = _digests(task, rows, place)
    remaining = sampling.apart(digests, foreign)
    if selection.samples:
        remaining = [remaining[i] for i in sampling.sample(len(remaining), selection.samples, seed)]
    rows = [rows[i] for i in remaining]
    if not rows:
        raise DataError(
            "no rows are left to fine-tune on",
            where="data.finetune",
            fix="give a split with more rows",
        )
    if not allow_leakage:
        sampling.refuse_leakage(
            [digests[i] for i in remaining], evaluated, what="training", where="data.finetune"
        )
    reader.check(rows, place)
    context.write_json(
        "training.json",
        {"inputs": task.inputs(rows, where=place), "gold": task.gold(rows, where=place)},
    )
    return len(rows)


@dataclass(frozen=True)
class _Reader:
    """Reads the parts.

    Args:
        left_out: place → rows that the user's `preprocess` left out.
    """

    task: Task
    task_name: str
    places: Mapping[str, str]
    functions: Mapping[str, RowFunction]
    hub: HubData | None
    revision: str | None
    columns: Sequence[str]
    preprocess: UserCode | None
    alone: bool
    reads: ModelSource | None
    left_out: dict[str, int] = field(default_factory=dict)

    def check(self, rows: Sequence[Row], where: str) -> None:
        """Refuse rows that the model cannot read."""
        if self.reads is not None:
            tokenizer = self.task.tokenizer(self.reads.tokenizer_folder, self.reads.config)
            self.task.check_tokens(tokenizer, rows, where=where)

    def load(self, part: str) -> tuple[str, list[Row]]:
        """(Where the rows of a part are, the rows)."""
        if part in self.functions:
            where, rows = self.functions[part].read()
        else:
            where, rows = readers.read(
                self.places[part], hub=self.hub, revision=self.revision, columns=self.columns
            )
        if self.preprocess is not None:
            remaining = sources.preprocessed(rows, self.preprocess, where=where)
            self.left_out[where], rows = len(rows) - len(remaining), remaining
        check_columns(
            self.task_name, self.task, rows, where=where, gold=part != "calibrate" or self.alone
        )
        return where, self.task.grouped(Table(rows, where))


def _digests(task: Task, rows: Sequence[Row], where: str) -> list[str]:
    """The digest of what makes each row the row it is."""
    if not rows:
        return []
    return [sampling.row_digest(texts) for texts in task.row_texts(Table(rows, where))]
