"""Rows of the user's data → the texts that calibration sees, and the texts and gold that evaluation judges; kept apart.

Writes `calibration.json` {inputs, digest} and `evaluation.json` {inputs, gold, digest}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octobert import data
from octobert.artifact import canonical_digest
from octobert.errors import DataError
from octobert.recipe import Rows
from octobert.stages import Context, task_of
from octobert.task import Row, Task
from octobert.texts import Text

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Load, hold apart, check, sample."""
    options = context.options
    task, seed = task_of(options), int(options["seed"])
    calibrate, evaluate = Rows.model_validate(options["calibrate"]), Rows.model_validate(options["evaluate"])
    samples = calibrate.samples or 0
    source, rows = _load(context, "calibrate")
    if options["alone"]:
        first, second = data.hold_out(_digests(task, rows, source), samples, seed)
        target, evaluated = source, [rows[i] for i in second]
        rows = [rows[i] for i in first]
    else:
        target, evaluated = _load(context, "evaluate")
    if evaluate.samples:
        evaluated = [evaluated[i] for i in data.sample(len(evaluated), evaluate.samples, seed)]
    known = _digests(task, evaluated, target)
    dropped = 0
    if calibrate.drop_evaluated:
        evaluated_digests = set(known)
        digests = _digests(task, rows, source)
        kept = [row for row, digest in zip(rows, digests, strict=True) if digest not in evaluated_digests]
        dropped, rows = len(rows) - len(kept), kept
    rows = [rows[i] for i in data.sample(len(rows), samples, seed)]
    if not rows:
        raise DataError("no rows are left to calibrate on", where="data.calibrate", fix="give more rows to calibrate from")
    chosen = _digests(task, rows, source)
    if not options["allow_leakage"]:
        data.refuse_leakage(chosen, known)
    calibrated, inputs = task.inputs(rows, where=source), task.inputs(evaluated, where=target)
    gold = task.gold(evaluated, where=target)
    context.write_json("calibration.json", {"inputs": calibrated, "digest": canonical_digest(calibrated)})
    context.write_json("evaluation.json", {"inputs": inputs, "gold": gold, "digest": canonical_digest([inputs, gold])})
    return {
        "calibration_rows": len(rows),
        "evaluation_rows": len(evaluated),
        "source": options["how"],
        "leaked_rows": len(set(chosen) & set(known)),
        "dropped_rows": dropped,
    }


def _load(context: Context, part: str) -> tuple[str, list[Row]]:
    """(where the rows are, the rows), for "calibrate" or "evaluate"."""
    given = {key: context.options[key] for key in ("hub", "config", "revision", "columns")}
    return data.read(context.locations[part], **given)


def _digests(task: Task, rows: Sequence[Row], where: str) -> list[str]:
    """What makes each data row the row it is: all of its texts, whatever order the model reads them in."""
    if not rows:
        return []
    inputs = task.inputs(rows, where=where)
    per_row = len(inputs) // len(rows)
    texts: list[Text] = [tuple(t for k in range(per_row) for t in inputs[k * len(rows) + i]) for i in range(len(rows))]
    return [data.row_digest(text) for text in texts]
