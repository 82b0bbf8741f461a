"""Rows of the user's data → the texts that calibration sees, those that a search is held against, and those that are judged
in the end; kept apart.

Writes `calibration.json` {inputs, digest}, `evaluation.json` {inputs, gold, digest}, and `tuning.json` where a search is
wanted: growing parts of its rows, [{inputs, gold}], so that what is clearly bad is seen to be on few; `training.json` {inputs,
gold} where a model is fine-tuned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octobert.config.recipe import RowSelection
from octobert.core.errors import DataError
from octobert.core.files import canonical_digest
from octobert.data import sources
from octobert.data.rows import Row
from octobert.data.tokenization import Text
from octobert.pipeline.stages import Context, task_of
from octobert.tasks._task import Task

VERSION = 4
# Shares of the tuning rows that are judged one after another.
TUNING_SHARES = (0.125, 0.25, 0.5, 1.0)


def run(context: Context) -> dict[str, Any]:
    """Load, hold apart, check, sample."""
    options = context.options
    task, seed = task_of(options), int(options["seed"])
    calibrate, evaluate = (RowSelection.model_validate(options[name]) for name in ("calibrate", "evaluate"))
    tune = RowSelection.model_validate(options["tune"]) if options["tune"] else None
    samples = calibrate.samples or 0
    source, rows = _load(context, "calibrate")
    tuning: list[Row] = []
    if options["alone"]:
        target, evaluated = source, rows
        rows, evaluated = _held_out(task, rows, source, samples, seed)
        if tune is not None:
            tuning, evaluated = _held_out(task, evaluated, source, tune.samples or 0, seed)
    else:
        target, evaluated = _load(context, "evaluate")
    if evaluate.samples:
        evaluated = [evaluated[i] for i in sources.sample(len(evaluated), evaluate.samples, seed)]
    known = _digests(task, evaluated, target)
    dropped = 0
    if calibrate.drop_evaluated:
        kept = sources.apart(_digests(task, rows, source), known)
        dropped, rows = len(rows) - len(kept), [rows[i] for i in kept]
    rows = [rows[i] for i in sources.sample(len(rows), samples, seed)]
    if not rows:
        raise DataError("no rows are left to calibrate on", where="data.calibrate", fix="give more rows to calibrate from")
    chosen = _digests(task, rows, source)
    if not options["allow_leakage"]:
        sources.refuse_leakage(chosen, known)
    if tune is not None:
        if not options["alone"]:
            place, tuning = _load(context, "tune")
            kept = sources.apart(_digests(task, tuning, place), [*known, *chosen])
            tuning = [tuning[kept[i]] for i in sources.sample(len(kept), tune.samples or 0, seed)]
        _write_tuning(context, task, tuning, seed)
    trained = _write_training(context, task, known, tuning) if options["finetune"] else 0
    calibrated, inputs = task.inputs(rows, where=source), task.inputs(evaluated, where=target)
    gold = task.gold(evaluated, where=target)
    context.write_json("calibration.json", {"inputs": calibrated, "digest": canonical_digest(calibrated)})
    context.write_json("evaluation.json", {"inputs": inputs, "gold": gold, "digest": canonical_digest([inputs, gold])})
    return {
        "calibration_rows": len(rows),
        "evaluation_rows": len(evaluated),
        "tuning_rows": len(tuning),
        "training_rows": trained,
        "source": options["how"],
        "leaked_rows": len(set(chosen) & set(known)),
        "dropped_rows": dropped,
    }


def _held_out(task: Task, rows: list[Row], where: str, samples: int, seed: int) -> tuple[list[Row], list[Row]]:
    """So many rows, and the rest."""
    first, second = sources.hold_out(_digests(task, rows, where), samples, seed)
    return [rows[i] for i in first], [rows[i] for i in second]


def _write_tuning(context: Context, task: Task, rows: list[Row], seed: int) -> None:
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


def _write_training(context: Context, task: Task, evaluated: Sequence[str], tuning: Sequence[Row]) -> int:
    """The rows to fine-tune on, none of which a search is held against; how many."""
    options = context.options
    wanted = RowSelection.model_validate(options["finetune"])
    place, rows = _load(context, "train")
    foreign = [*_digests(task, tuning, "data.tune"), *(evaluated if wanted.drop_evaluated else [])]
    digests = _digests(task, rows, place)
    kept = sources.apart(digests, foreign)
    if wanted.samples:
        kept = [kept[i] for i in sources.sample(len(kept), wanted.samples, int(options["seed"]))]
    rows = [rows[i] for i in kept]
    if not rows:
        raise DataError("no rows are left to fine-tune on", where="data.finetune", fix="give a split with more rows")
    if not options["allow_leakage"]:
        sources.refuse_leakage([digests[i] for i in kept], evaluated, what="training", where="data.finetune")
    context.write_json("training.json", {"inputs": task.inputs(rows, where=place), "gold": task.gold(rows, where=place)})
    return len(rows)


def _load(context: Context, part: str) -> tuple[str, list[Row]]:
    """(where the rows are, the rows), for "calibrate" or "evaluate"."""
    given = {key: context.options[key] for key in ("hub", "config", "revision", "columns")}
    return sources.read(context.locations[part], **given)


def _digests(task: Task, rows: Sequence[Row], where: str) -> list[str]:
    """What makes each data row the row it is: all of its texts, whatever order the model reads them in."""
    if not rows:
        return []
    inputs = task.inputs(rows, where=where)
    per_row = len(inputs) // len(rows)
    texts: list[Text] = [
        tuple(t for k in range(per_row) for t in task.identity(inputs[k * len(rows) + i])) for i in range(len(rows))
    ]
    return [sources.row_digest(text) for text in texts]
