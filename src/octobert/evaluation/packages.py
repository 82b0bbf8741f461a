"""Score a packaged directory on other data, next to the float model that lies in it. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from octobert.config.recipe import AUTO, Data
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Comparison, Score
from octobert.data import sources, tokenization
from octobert.data.rows import Row
from octobert.evaluation import candidates, scoring
from octobert.inference.batching import run_rows
from octobert.inference.predictor import Predictor
from octobert.tasks._task import files_of


class Judgement(FrozenModel):
    """Scores of the finished model and of its float model, and the comparison of the two."""

    scores: dict[str, tuple[Score, ...]]
    comparison: Comparison


def judge(
    folder: Path,
    source: str,
    *,
    split: str = AUTO,
    columns: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    runtime_log: bool = False,
) -> Judgement:
    """Evaluate a packaged directory.

    Args:
        source: a file, a folder in which `split` is found, or a hub id.
        split: which; of itself validation, or of data that has none, test.
        columns: column names, for a file without a header.
        samples: score at most so many rows, drawn at random.
        cache, runtime_log: see `Predictor`.

    Raises:
        DataError: the rows cannot be used.
        ModelError: the folder is no packaged directory.
    """
    predictor = Predictor(folder, cache=cache, runtime_log=runtime_log)
    task = predictor.task
    where, rows = _rows(source, split, columns, prefer=files_of(predictor.manifest.task.name))
    if samples:
        rows = [rows[i] for i in sources.sample(len(rows), samples, seed)]
    gold = task.gold(rows, where=where)
    encoder = tokenization.TextEncoder(folder, task.max_length)
    asked = task.encode(encoder, task.inputs(rows, where=where))
    name, reference = predictor.target, candidates.float_baseline(predictor.target)
    floating = candidates.open_float(predictor.target, folder / "onnx" / "model.onnx", task.head)
    ours = predictor.outputs(asked.flat)
    theirs = run_rows(floating, asked.flat, encoder.pad_id, per_token=task.per_token)
    return Judgement(
        scores={n: scoring.scores(task, o, asked, gold, seed=seed) for n, o in ((name, ours), (reference, theirs))},
        comparison=scoring.compare(task, (name, reference), (ours, theirs), asked, gold, seed=seed),
    )


def _rows(source: str, split: str, columns: Sequence[str], *, prefer: Sequence[str]) -> tuple[str, list[Row]]:
    """(where the rows are, the rows)."""
    if Path(source).is_file():
        return sources.read(source, hub=None, config=None, revision=None, columns=columns)
    places = sources.places(Data.model_validate({"source": source, "calibrate": split, "evaluate": split}), prefer=prefer)
    return sources.read(places.evaluate, hub=places.hub, config=None, revision=None, columns=columns)
