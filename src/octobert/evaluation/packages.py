"""What is done with finished models: evaluate them on other data, write their answers, time them, tune them. Needs no torch.

Models are evaluated and timed together with their float models, and timed each in a process of its own.

Answers to questions are written in the form of the official SQuAD scripts, all others as one line of JSON for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from octobert import targets, tasks
from octobert.config.measuring import Benchmark, EvaluateMetric
from octobert.config.rows import AUTO, Data
from octobert.core.errors import DataError, RecipeError
from octobert.core.files import atomic_write, storage_errors
from octobert.core.frozen import Row as TableRow
from octobert.core.frozen import Tabular
from octobert.core.heads import head_of
from octobert.core.measurements import Comparison, Score
from octobert.core.plain import as_json
from octobert.core.session import GOALS, Goal, Tried, Tuned
from octobert.core.user_code import names_code
from octobert.data import beir, readers, sampling, sources
from octobert.data.encoded import Encoded
from octobert.data.sampling import ROW_NUMBER, Row
from octobert.evaluation import benchmarking, candidates, latency, scoring, tuning
from octobert.evaluation.benchmarking import BenchmarkResult
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.worker import OnProgress
from octobert.inference import package_files
from octobert.inference.batching import run_rows
from octobert.inference.opened import FinishedModel
from octobert.inference.predictor import Predictor
from octobert.targets import runtimes
from octobert.tasks import (
    Result,
    Table,
    Task,
    check_columns,
    measured,
    metric_specs,
    need_search,
)

# Sequence length of a benchmark, in tokens, where the models allow it.
_DEFAULT_TOKENS = 128
# Of a file that does not say its limit, and without a config: token ids stay below the second.
_UNKNOWN_LIMIT, _FEW_IDS = 2**20, 100


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
    model: FinishedModel,
    source: str,
    *,
    split: str = AUTO,
    corpus: str | None = AUTO,
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
    on_progress: OnProgress = lambda *_: None,
) -> Judgement:
    """Evaluate a finished model, and its float model on the same rows if there is one.

    Args:
        model: the model.
        source: a file, a folder that contains `split`, a function of the user, or a hub id.
        split: name of the split, or a slice of it. Default: validation, or test if the data has no validation split.
        corpus: as `data.corpus` of a recipe.
        config, revision: of a data set on the hub.
        columns: column names, for a file without a header.
        samples: maximum number of rows, sampled at random.
        seed: of the sample and of the bootstrap.
        metrics: as a recipe names them; those of the task by default.
        cache, runtime_log, device: see `Predictor`.
        predictions, nbest: files for what the model predicts; see `write`.
        allow_code: the source may be a function of the user.
        on_progress: called after each batch with what is evaluated, the rows done, and all rows.

    Raises:
        DataError: the rows cannot be read, or do not fit the task.
        ModelError: the model cannot be opened for its task.
    """
    _check_files(model, predictions, nbest)
    predictor = Predictor(model, cache=cache, runtime_log=runtime_log, device=device, measure=False)
    task = measured(predictor.task, metric_specs(metrics, None, predictor.task))
    data = {"source": source, "evaluate": split, "config": config, "revision": revision}

    def read(part: Mapping[str, Any]) -> tuple[str, list[Row]]:
        where, rows = rows_of(
            part, columns, tasks.load(model.facts().name).files, allow_code=allow_code
        )
        check_columns(model.facts().name, task, rows, where=where)
        return where, task.grouped(Table(rows, where))

    where, rows = read(data)
    if samples:
        rows = [rows[i] for i in sampling.sample(len(rows), samples, seed)]
    if corpus not in (None, AUTO):
        need_search(task)
        rows += task.searched(read({**data, "source": corpus, "evaluate": AUTO})[1])
    elif corpus == AUTO and task.searches and beir.splits_of(Path(source)):
        rows += task.searched(read({**data, "evaluate": "corpus"})[1])
    gold, tokenizer = task.gold(rows, where=where), model.tokenizer(task)
    task.check_tokens(tokenizer, rows, where=where)
    encoded = task.encode(tokenizer, task.inputs(rows, where=where))
    count = len(encoded.flat)
    outputs = predictor.outputs(
        encoded.flat, lambda done: on_progress(f"evaluating {model.name}", done, count)
    )
    results = {model.name: Result(outputs, encoded, gold)}
    write(task, rows, results[model.name], predictions=predictions, nbest=nbest)
    reference = candidates.float_of(model, device=device)
    if reference is not None:
        session = model.with_vectors(candidates.open_candidate(reference, 0, heads=model.heads))
        name = reference.title
        outputs = run_rows(
            session,
            encoded.flat,
            tokenizer.pad_id,
            lambda done: on_progress(f"evaluating {name}", done, count),
            per_token=task.per_token,
        )
        results[name] = Result(outputs, encoded, gold)
    comparison = None
    if len(results) > 1:
        ours, theirs = results
        comparison = scoring.compare(
            task, (ours, theirs), (results[ours], results[theirs]), seed=seed
        )
    return Judgement(
        scores={name: scoring.scores(task, result, seed=seed) for name, result in results.items()},
        comparison=comparison,
        device=predictor.device,
        precision=predictor.precision,
    )


def rows_of(
    data: Mapping[str, Any],
    columns: Sequence[str],
    prefer: Sequence[str],
    *,
    allow_code: bool = False,
) -> tuple[str, list[Row]]:
    """Return where the rows are, for error messages, and the rows.

    Args:
        data: keys of the recipe's `data`: source, evaluate, config, revision.
        columns: column names, for a file without a header.
        prefer: words in the names of files that the task prefers.
        allow_code: the source may be a function of the user.

    Raises:
        RecipeError: the source is a function, and code is not allowed.
        DataError: the rows cannot be found or read.
    """
    split = data["evaluate"]
    if names_code(data["source"]) and not allow_code:
        raise RecipeError(
            "the rows come from code, which is not run here",
            where="data",
            got=data["source"],
            fix="give a file of rows; octobert evaluate takes functions, with --allow-code (in Python: allow_code=True)",
        )
    if sources.is_one(Path(data["source"])):
        # All rows of a file, whatever the split is called.
        place = data["source"] + sampling.split_of(split)[1]
        return readers.read(place, hub=None, revision=None, columns=columns)
    places = sources.places(Data.model_validate({**data, "calibrate": split}), prefer=prefer)
    place = str(places.evaluate)
    if place in places.functions:
        return places.functions[place].read()
    return readers.read(place, hub=places.hub, revision=data["revision"], columns=columns)


def _check_files(model: FinishedModel, predictions: Path | None, nbest: Path | None) -> None:
    """Check that a model's predictions can be written, before they are made.

    Raises:
        RecipeError: n-best answers of a model that answers no questions, or both in one file.
        StorageError: there is no folder for a file.
    """
    if nbest is not None and head_of(model.head).input != "question":
        raise RecipeError(
            "only answers to questions have n-best lists",
            where="--nbest",
            got=f"a model for {model.facts().name}",
            fix="use --predictions",
        )
    if nbest is not None and nbest == predictions:
        raise RecipeError(
            "both files have the same name", where="--nbest", got=str(nbest), fix="give two names"
        )
    for path in (predictions, nbest):
        if path is not None and not path.parent.is_dir():
            raise RecipeError(
                "there is no such folder",
                where=str(path.parent),
                fix="make it, or choose another file",
            )


def write(
    task: Task,
    rows: Sequence[Row],
    result: Result,
    *,
    predictions: Path | None,
    nbest: Path | None,
) -> None:
    """Write what a model predicts for rows.

    Args:
        task: of the model.
        rows: of the data set.
        result: of the model.
        predictions: the file. Questions: id → answer, and for data with unanswerable questions also FILE.null_odds.json.
        nbest: for questions: id → the best answers with probability, score and place.

    Raises:
        StorageError: a file cannot be written.
    """
    if head_of(task.head).input != "question":
        if predictions is not None:
            lines = (as_json(line) for line in answered(task, rows, result))
            _write(predictions, "".join(f"{line}\n" for line in lines))
        return
    ids = [
        str(row["id"]) if row.get("id") not in (None, "") else str(row.get(ROW_NUMBER, i + 1))
        for i, row in enumerate(rows)
    ]
    answers, odds, best = cast(Any, task).official(result)
    if predictions is not None:
        _write_json(predictions, dict(zip(ids, answers, strict=True)))
        if odds is not None:
            _write_json(
                predictions.with_name(f"{predictions.stem}.null_odds.json"),
                dict(zip(ids, odds, strict=True)),
            )
    if nbest is not None:
        _write_json(nbest, dict(zip(ids, best, strict=True)))


def answered(task: Task, rows: Sequence[Row], result: Result) -> Iterable[dict[str, Any]]:
    """What a model predicts for rows, as plain data, with their numbers and what is expected of them.

    Raises:
        DataError: the task reads the rows of a data set together, as retrieval does.
    """
    texts = result.texts
    per_row = len(texts) // max(len(rows), 1)
    if task.together or per_row * len(rows) != len(texts):
        raise DataError(
            "the task reads its rows together, so there is no prediction for each",
            got=f"{len(texts)} texts of {len(rows)} rows",
            fix="give texts",
        )
    for index, row in enumerate(rows):
        # Texts of pairs stand column by column.
        places = range(index, len(texts), len(rows))
        answers = [task.answer(result, place, texts[place]) for place in places]
        joined = [" ⇄ ".join(texts[place]) for place in places]
        gold = result.expected(index)
        yield {
            "row": row.get(ROW_NUMBER, index + 1),
            "input": joined if per_row > 1 else list(texts[index]),
            "gold": None if gold is None else task.expected(gold),
            **({"answers": answers} if per_row > 1 else answers[0]),
        }


def of_rows(
    model: Predictor, where: str, rows: Sequence[Row], numbers: Sequence[int]
) -> list[dict[str, Any]]:
    """What a model predicts for some rows of a data set.

    Args:
        where: the data set, for errors.
        rows: all its rows.
        numbers: of the rows, from 1.

    Raises:
        DataError: there is no such row, or it does not fit the task.
    """
    for number in numbers:
        if not 1 <= number <= len(rows):
            raise DataError(
                "there is no such row",
                where=where,
                got=str(number),
                expected=f"1 to {len(rows)}",
                fix="rows are counted from 1, without the header",
            )
    task, chosen = model.task, [rows[number - 1] for number in numbers]
    try:
        gold = task.gold(chosen, where=where)
    except DataError:
        # Test sets often have no labels.
        gold = []
    tokenizer = model.opened.tokenizer(task)
    task.check_tokens(tokenizer, chosen, where=where)
    encoded = task.encode(tokenizer, task.inputs(chosen, where=where))
    return list(answered(task, chosen, Result(model.outputs(encoded.flat), encoded, gold)))


def _write_json(path: Path, content: Any) -> None:
    _write(path, as_json(content, indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    with storage_errors(path.parent), atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def benchmark_models(
    finished_models: Sequence[FinishedModel],
    settings: Benchmark,
    *,
    devices: Sequence[str] = (),
    cache: str | None = None,
    data: Mapping[str, Any] | None = None,
    on_progress: OnProgress = lambda *_: None,
) -> BenchmarkResult:
    """Time finished models and their float models, each in a process of its own.

    Args:
        finished_models: The models.
        settings: What is timed, and how. Default length: 128, or the shortest limit of the models.
        devices: Devices to open the models on, one after another, for OpenVINO. Default: that of each target.
        cache: Folder where runtimes keep compiled models.
        data: Rows that are also timed, at their own lengths: see `rows_of`.
        on_progress: Called with what is timed, the rounds done, and all rounds.

    Raises:
        OctobertError: A length is too long for a model, rows cannot be read, or a runtime fails.
    """
    models, rivals, sources = _with_float_models(finished_models, devices)
    models = [model.replaced(cache=cache) for model in models]
    limit = min(
        (model.longest for model in finished_models if model.longest is not None),
        default=_UNKNOWN_LIMIT,
    )
    chosen = (
        settings.sequence
        if "sequence" in settings.model_fields_set
        else (min(_DEFAULT_TOKENS, limit),)
    )
    settings = settings.replaced(sequence=(*chosen, "data") if data else chosen)
    if not all(model.reads_texts for model in finished_models):
        if data is None:
            raise RecipeError(
                "a graph is timed on rows of its own",
                where="data",
                got="no rows",
                fix="give them: --data FEEDS",
            )
        settings = settings.replaced(batch=(1,), sequence=("data",))
    latency.check_lengths(settings, limit)
    rows, pad_id = ([], 0) if data is None else _rows_of(finished_models[0], data)[:2]
    vocabulary = min(model.vocabulary or _FEW_IDS for model in finished_models)
    shapes = latency.workloads_of(settings, rows, pad_id, vocabulary, seed=0)
    result = benchmarking.benchmark(models, shapes, settings, rivals, on_progress=on_progress)
    reported = {footprint.candidate: footprint.precision for footprint in result.footprints}
    precisions = {label: model.precision(reported[label]) for label, model in sources.items()}
    return result.replaced(precisions=precisions)


def _with_float_models(
    finished_models: Sequence[FinishedModel], devices: Sequence[str]
) -> tuple[list[Candidate], dict[str, tuple[str, ...]], dict[str, FinishedModel]]:
    """(each model and, once each, their float models; name → the float models that a model is compared with; name → model).

    Each is there once for each device.
    """
    models: dict[str, Candidate] = {}
    rivals: dict[str, tuple[str, ...]] = {}
    sources: dict[str, FinishedModel] = {}
    for device in devices or (None,):
        on = f" on {device}" if device else ""
        for model in finished_models:
            if device:
                runtimes.load(targets.load(model.target).capabilities.runtime).check_device(device)
            floats = []
            for form in candidates.float_forms(model.target) if model.floating else ():
                title = (
                    f"{form}{on}" if f"{form}{on}" not in models else f"{model.path}: {form}{on}"
                )
                floating = candidates.float_of(model, form, title, device)
                assert floating is not None
                # That of an earlier model if it is the same.
                floating = next((c for c in models.values() if _same(c, floating)), floating)
                models[floating.title] = floating
                floats.append(floating.title)
            label = (
                f"{model.name}{on}" if f"{model.name}{on}" not in models else f"{model.path}{on}"
            )
            models[label] = candidates.candidate_of(model, label, device)
            rivals[label], sources[label] = tuple(floats), model
    return list(models.values()), rivals, sources


def _same(one: Candidate, other: Candidate) -> bool:
    """Return whether two candidates are one float model, opened in one way."""
    if (one.name, one.entries, one.chosen) != (other.name, other.entries, other.chosen):
        return False
    return one.path == other.path or one.content == other.content is not None


def tune_model(
    model: FinishedModel,
    data: Mapping[str, Any],
    *,
    goals: Sequence[Goal] = GOALS,
    trials: int = 20,
    minutes: float = 5,
    seed: int = 0,
    on_progress: OnProgress = lambda *_: None,
) -> tuple[Tuned, ...]:
    """Search for the fastest settings of a model on this machine, and store them in its package, or beside its file.

    Args:
        model: The model.
        data: Rows; the search times their lengths. See `rows_of`.
        goals: What to tune for; one search each.
        trials: Settings that each search tries.
        minutes: Time limit of each search, without its final comparison.
        seed: Seed of the sampled rows and of the search.
        on_progress: Called with what is tuned, the trials done, and all trials.

    Raises:
        OctobertError: The rows cannot be read, the results cannot be stored, or optuna is not installed.
    """
    candidate = candidates.candidate_of(model)
    rows, pad_id, longest = _rows_of(model, data)
    # What prevents storing the results is an error before the search, not after it.
    package_files.read_tuned(model.path, targets.load(model.target).runtime_options)
    package_files.check_writable(model.path)
    results = []
    for goal in sorted(set(goals)):

        def on_trial(number: int, _: Tried, what: str = f"tuning for {goal}") -> None:
            on_progress(what, number, trials)

        search: dict[str, Any] = {
            "trials": trials,
            "minutes": minutes,
            "seed": seed,
            "on_trial": on_trial,
        }
        results.append(tuning.tune(candidate, rows, pad_id, goal=goal, longest=longest, **search))
        package_files.write_tuned(model.path, results[-1])
    return tuple(results)


def _rows_of(model: FinishedModel, data: Mapping[str, Any]) -> tuple[list[Encoded], int, int]:
    """(rows, tokenized as a model takes them; the id of its padding token; its limit in tokens)."""
    task = model.rebuilt()
    tokenizer = model.tokenizer(task)
    where, rows = rows_of(data, (), tasks.load(model.facts().name).files)
    texts = task.inputs(rows, where=where)
    return list(task.encode(tokenizer, texts).flat), tokenizer.pad_id, tokenizer.max_length
