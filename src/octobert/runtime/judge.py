"""Score a packaged directory on other data, next to the float model that lies in it. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert import candidates, data, measure, texts
from octobert.batching import run_rows
from octobert.measure import Comparison, Score
from octobert.plan import Noun
from octobert.runtime.predictor import Predictor
from octobert.stages.report import compare


class Judgement(Noun):
    """Scores of the finished model and of its float model, and the comparison of the two."""

    scores: dict[str, tuple[Score, ...]]
    comparison: Comparison


def judge(folder: Path, source: str, *, split: str = "validation", samples: int | None = None, seed: int = 0) -> Judgement:
    """Evaluate a packaged directory.

    Args:
        source: a file, or a folder in which `split` is found.
        samples: score at most so many rows, drawn at random.

    Raises:
        DataError: the rows cannot be used.
        ModelError: the folder is no packaged directory.
    """
    predictor = Predictor(folder)
    task = predictor.task
    found = data.find_splits(source)
    path = found["all"] if "all" in found else found[data.pick_split(sorted(found), split, where="--split")]
    rows = data.read_file(path)
    if samples:
        rows = [rows[i] for i in data.sample(len(rows), samples, seed)]
    encoder = texts.TextEncoder(folder, task.max_length)
    encoded = encoder.encode(task.inputs(rows, where=str(path)))
    gold = np.array(task.gold(rows, where=str(path)))
    name, reference = predictor.target, candidates.float_baseline(predictor.target)
    floating = candidates.open_candidate(
        candidates.Candidate(name=reference, path=str(folder / "onnx" / "model.onnx"), head=task.head), 0
    )
    outputs = {name: predictor.outputs(encoded), reference: run_rows(floating, encoded, encoder.pad_id)}
    scores = {
        one: tuple(measure.score(n, m, task.items(outputs[one]), gold, seed=seed) for n, m in task.metrics.items() if len(gold))
        for one in outputs
    }
    return Judgement(scores=scores, comparison=compare(task, name, reference, outputs, gold, seed=seed))
