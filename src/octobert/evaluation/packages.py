"""Evaluate a package on other data, together with the float model in it. Does not need torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from octobert.config.recipe import AUTO, Data
from octobert.core.measurements import Comparison, Score
from octobert.core.tabular import Row as TableRow
from octobert.core.tabular import Tabular
from octobert.data import readers, sampling, sources, tokenization
from octobert.data.rows import Row
from octobert.evaluation import candidates, scoring
from octobert.inference.batching import run_rows
from octobert.inference.predictor import Predictor
from octobert.tasks import files_of


class Judgement(Tabular):
    """Scores of a quantized model and of its float model, and the comparison of the two.

    Args:
        scores: Model → its metrics.
        comparison: Of the quantized model with the float model.
        device: What ran the quantized model.
        precision: Of its float operators, as the runtime reports it.
    """

    scores: dict[str, tuple[Score, ...]]
    comparison: Comparison
    device: str
    precision: str

    def to_rows(self) -> list[TableRow]:
        """One row per model and metric."""
        return [{"model": name, **score.model_dump()} for name, scores in self.scores.items() for score in scores]


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
    device: str | None = None,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Judgement:
    """Evaluate a package and its float model on the same rows.

    Args:
        folder: the package.
        source: a file, a folder that contains `split`, or a hub id.
        split: name of the split. Default: validation, or test if the data has no validation split.
        columns: column names, for a file without a header.
        samples: maximum number of rows, sampled at random.
        seed: of the sample and of the bootstrap.
        cache, runtime_log, device: see `Predictor`.
        on_progress: called after each batch with what is evaluated, the rows done, and all rows.

    Raises:
        DataError: the rows cannot be read, or do not fit the task.
        ModelError: the folder is not a package.
    """
    predictor = Predictor(folder, cache=cache, runtime_log=runtime_log, device=device)
    task = predictor.task
    where, rows = _rows(source, split, columns, prefer=files_of(predictor.manifest.task.name))
    if samples:
        rows = [rows[i] for i in sampling.sample(len(rows), samples, seed)]
    gold = task.gold(rows, where=where)
    tokenizer = tokenization.Tokenizer(folder, task.max_length)
    encoded = task.encode(tokenizer, task.inputs(rows, where=where))
    name, reference = predictor.target, candidates.baseline_of(predictor.target).name
    float_session = candidates.open_float(
        predictor.target, folder / "onnx" / "model.onnx", task.head, predictor.manifest.session, device
    )
    count = len(encoded.flat)
    ours = predictor.outputs(encoded.flat, lambda done: on_progress(f"evaluating {name}", done, count))
    theirs = run_rows(
        float_session,
        encoded.flat,
        tokenizer.pad_id,
        lambda done: on_progress(f"evaluating {reference}", done, count),
        per_token=task.per_token,
    )
    return Judgement(
        scores={n: scoring.scores(task, o, encoded, gold, seed=seed) for n, o in ((name, ours), (reference, theirs))},
        comparison=scoring.compare(task, (name, reference), (ours, theirs), encoded, gold, seed=seed),
        device=predictor.device,
        precision=predictor.precision,
    )


def _rows(source: str, split: str, columns: Sequence[str], *, prefer: Sequence[str]) -> tuple[str, list[Row]]:
    """Return where the rows are, for error messages, and the rows."""
    if Path(source).is_file():
        return readers.read(source, hub=None, config=None, revision=None, columns=columns)
    places = sources.places(Data.model_validate({"source": source, "calibrate": split, "evaluate": split}), prefer=prefer)
    return readers.read(places.evaluate, hub=places.hub, config=None, revision=None, columns=columns)
