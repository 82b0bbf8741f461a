"""Rows of the user's data → the texts that calibration sees, and the texts and gold that evaluation judges; kept apart.

Writes `calibration.json` {inputs, digest} and `evaluation.json` {inputs, gold, digest}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octobert import data, plugins
from octobert.artifact import canonical_digest
from octobert.errors import DataError
from octobert.recipe import Data, Rows
from octobert.stages import Context
from octobert.task import Row, Task
from octobert.texts import Text

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Load, split, check, sample."""
    module = plugins.load("tasks", context.options["task"]["name"])
    task: Task = module.build(
        module.Options.model_validate(context.options["task"]["options"]), tuple(context.options["labels"])
    )
    settings = Data.model_validate({**context.options["data"], **context.locations})
    seed = int(context.options["seed"])
    calibration, evaluation, how = _choose(settings, task, seed)
    evaluated = [data.row_digest(t) for t in _by_row(task, evaluation[0], evaluation[1])]
    candidates = [data.row_digest(t) for t in _by_row(task, calibration[0], calibration[1])]
    rows = calibration[0]
    dropped = 0
    if settings.calibrate.drop_evaluated:
        known = set(evaluated)
        kept = [i for i, digest in enumerate(candidates) if digest not in known]
        dropped = len(rows) - len(kept)
        rows, candidates = [rows[i] for i in kept], [candidates[i] for i in kept]
    chosen = data.sample(len(rows), settings.calibrate.samples or len(rows), seed)
    rows, candidates = [rows[i] for i in chosen], [candidates[i] for i in chosen]
    if not rows:
        raise DataError("no rows are left to calibrate on", where="data.calibrate", fix="give more rows to calibrate from")
    leaked = len(set(candidates) & set(evaluated))
    if not settings.allow_leakage:
        data.refuse_leakage(candidates, evaluated)
    calibrated = task.inputs(rows, where=calibration[1])
    inputs = task.inputs(evaluation[0], where=evaluation[1])
    gold = task.gold(evaluation[0], where=evaluation[1])
    context.write_json("calibration.json", {"inputs": calibrated, "digest": canonical_digest(calibrated)})
    context.write_json("evaluation.json", {"inputs": inputs, "gold": gold, "digest": canonical_digest([inputs, gold])})
    return {
        "calibration_rows": len(rows),
        "evaluation_rows": len(evaluation[0]),
        "source": how,
        "leaked_rows": leaked,
        "dropped_rows": dropped,
    }


_Part = tuple[list[Row], str]


def _choose(settings: Data, task: Task, seed: int) -> tuple[_Part, _Part, str]:
    """(rows to calibrate from, where they are), (rows to evaluate, where they are), how they were chosen."""
    cache: dict[str, list[Row]] = {}
    files = data.find_splits(settings.source) if settings.source and Path(settings.source).exists() else {}
    hub = settings.source if settings.source and not files else None
    for split in ("train", "validation", "test"):
        named = getattr(settings, split)
        if named:
            files[split] = Path(named)

    def part(rows: Rows, where: str) -> _Part:
        name = rows.from_
        if name in files:
            path = files[name]
        elif Path(name).suffix and Path(name).is_file():
            path = Path(name)
        elif hub is not None:
            return data.read_hub(hub, settings.config, name, settings.revision), f"{hub} {name}"
        else:
            path = files[data.pick_split(sorted(files), name, where=f"data.{where}.from")]
        if str(path) not in cache:
            cache[str(path)] = data.read_file(path, settings.columns)
        return cache[str(path)], str(path)

    if set(files) == {"all"}:
        rows, where = part(Rows.model_validate({"from": "all"}), "calibrate")
        digests = [data.row_digest(t) for t in _by_row(task, rows, where)]
        first, second = data.hold_out(digests, settings.calibrate.samples or len(rows), seed)
        how = "one file: calibration rows drawn at random, all other rows evaluated"
        return ([rows[i] for i in first], where), (_limit([rows[i] for i in second], settings, seed), where), how
    calibration, evaluation = part(settings.calibrate, "calibrate"), part(settings.evaluate, "evaluate")
    how = f"calibrated from {settings.calibrate.from_}, evaluated on {settings.evaluate.from_}"
    return calibration, (_limit(evaluation[0], settings, seed), evaluation[1]), how


def _limit(rows: list[Row], settings: Data, seed: int) -> list[Row]:
    samples = settings.evaluate.samples
    return [rows[i] for i in data.sample(len(rows), samples, seed)] if samples else rows


def _by_row(task: Task, rows: list[Row], where: str) -> list[Text]:
    """All texts of each data row together, whatever order the model reads them in."""
    inputs = task.inputs(rows, where=where)
    per_row = len(inputs) // len(rows)
    return [tuple(t for k in range(per_row) for t in inputs[k * len(rows) + i]) for i in range(len(rows))]
