"""Evaluate a finished model on other data, together with its float model. Does not need torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octobert.config.measuring import EvaluateMetric
from octobert.config.recipe import AUTO, Data
from octobert.core.errors import RecipeError
from octobert.core.frozen import Row as TableRow
from octobert.core.frozen import Tabular
from octobert.core.measurements import Comparison, Score
from octobert.core.user_code import names_code
from octobert.data import readers, sampling, sources
from octobert.data.sampling import Row
from octobert.evaluation import candidates, scoring
from octobert.evaluation import predictions as written
from octobert.inference.batching import run_rows
from octobert.inference.opened import Opened
from octobert.inference.predictor import Predictor
from octobert.tasks import Outputs, check_columns, files_of, measured, measures_of


class Judgement(Tabular):
    """Scores of a finished model and of its float model, and the comparison of the two.

    Args:
        scores: Model → its metrics.
        comparison: Of the model with its float model; None where there is none.
        device: What ran the model.
        precision: Of its float operators, as the runtime reports it.
    """

    scores: dict[str, tuple[Score, ...]]
    comparison: Comparison | None = None
    device: str
    precision: str

    def to_rows(self) -> list[TableRow]:
        """One row per model and metric."""
        return [
            {"model": name, **score.model_dump()}
            for name, scores in self.scores.items()
            for score in scores
        ]


def judge(
    model: Opened,
    source: str,
    *,
    split: str = AUTO,
    config: str | None = None,
    revision: str | None = None,
    columns: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
    metrics: Sequence[str | EvaluateMetric] = (),
    cache: str | Path | None = None,
    runtime_log: bool = False,
    device: str | None = None,
    predictions: Path | None = None,
    nbest: Path | None = None,
    allow_code: bool = False,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Judgement:
    """Evaluate a finished model, and its float model on the same rows if there is one.

    Args:
        model: the model.
        source: a file, a folder that contains `split`, a function of the user, or a hub id.
        split: name of the split, or a slice of it. Default: validation, or test if the data has no validation split.
        config, revision: of a data set on the hub.
        columns: column names, for a file without a header.
        samples: maximum number of rows, sampled at random.
        seed: of the sample and of the bootstrap.
        metrics: as a recipe names them; those of the task by default.
        cache, runtime_log, device: see `Predictor`.
        predictions, nbest: files for what the model predicts; see `predictions.write`.
        allow_code: the source may be a function of the user.
        on_progress: called after each batch with what is evaluated, the rows done, and all rows.

    Raises:
        DataError: the rows cannot be read, or do not fit the task.
        ModelError: the model cannot be opened for its task.
    """
    written.check(model, predictions, nbest)
    predictor = Predictor(model, cache=cache, runtime_log=runtime_log, device=device, measure=False)
    task = measured(predictor.task, measures_of(metrics, None, predictor.task))
    given = {"source": source, "evaluate": split, "config": config, "revision": revision}
    where, rows = rows_of(given, columns, files_of(model.facts().name), allow_code=allow_code)
    check_columns(model.facts().name, task, rows, where=where)
    if samples:
        rows = [rows[i] for i in sampling.sample(len(rows), samples, seed)]
    gold, tokenizer = task.gold(rows, where=where), model.tokenizer(task)
    encoded = task.encode(tokenizer, task.inputs(rows, where=where))
    count = len(encoded.flat)
    outputs: dict[str, Outputs] = {
        model.name: predictor.outputs(
            encoded.flat, lambda done: on_progress(f"evaluating {model.name}", done, count)
        )
    }
    written.write(
        task, rows, gold, encoded, outputs[model.name], predictions=predictions, nbest=nbest
    )
    reference = candidates.float_of(model, candidates.baseline_of(model.target).name, device=device)
    if reference is not None:
        session = model.with_vectors(candidates.open_candidate(reference, 0))
        name = reference.title
        outputs[name] = run_rows(
            session,
            encoded.flat,
            tokenizer.pad_id,
            lambda done: on_progress(f"evaluating {name}", done, count),
            per_token=task.per_token,
        )
    comparison = None
    if len(outputs) > 1:
        ours, theirs = outputs
        comparison = scoring.compare(
            task, (ours, theirs), (outputs[ours], outputs[theirs]), encoded, gold, seed=seed
        )
    scores = {
        name: scoring.scores(task, own, encoded, gold, seed=seed) for name, own in outputs.items()
    }
    return Judgement(
        scores=scores, comparison=comparison, device=predictor.device, precision=predictor.precision
    )


def rows_of(
    given: Mapping[str, Any],
    columns: Sequence[str],
    prefer: Sequence[str],
    *,
    allow_code: bool = False,
) -> tuple[str, list[Row]]:
    """Return where the rows are, for error messages, and the rows.

    Args:
        given: keys of the recipe's `data`: source, evaluate, config, revision.
        columns: column names, for a file without a header.
        prefer: words in the names of files that the task prefers.
        allow_code: the source may be a function of the user.

    Raises:
        RecipeError: the source is a function, and code is not allowed.
        DataError: the rows cannot be found or read.
    """
    split = given["evaluate"]
    if names_code(given["source"]) and not allow_code:
        fix = "give a file of rows; octobert evaluate takes functions, with --allow-code (in Python: allow_code=True)"
        raise RecipeError(
            "the rows come from code, which is not run here",
            where="data",
            got=given["source"],
            fix=fix,
        )
    if Path(given["source"]).is_file():
        # All rows of a file, whatever the split is called.
        place = given["source"] + sampling.split_of(split)[1]
        return readers.read(place, hub=None, revision=None, columns=columns)
    places = sources.places(Data.model_validate({**given, "calibrate": split}), prefer=prefer)
    if places.evaluate in places.functions:
        return places.functions[places.evaluate].read()
    return readers.read(
        places.evaluate, hub=places.hub, revision=given["revision"], columns=columns
    )
