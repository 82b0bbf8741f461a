"""Finished packages and model files: predict, evaluate, time, tune and inspect them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from octobert.api._arguments import (
    DataLike,
    Duration,
    MetricLike,
    Natural,
    NotNegative,
    PathLike,
    Positive,
    Repeats,
    TaskLike,
    column_options,
    names_of,
    numbers_of,
    optional_path,
    path_of,
    paths_of,
    progress_step,
)
from octobert.core import environment
from octobert.core.errors import RecipeError
from octobert.core.progress import ProgressCallback

if TYPE_CHECKING:
    from octobert.core.profile import Inspection
    from octobert.core.session import Goal, Tuned
    from octobert.evaluation.benchmarking import BenchmarkResult
    from octobert.evaluation.packages import Judgement
    from octobert.inference.opened import FinishedModel
    from octobert.inference.predictor import Predictor


def opened_model(
    model: PathLike,
    name: str,
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    reference: PathLike | None = None,
) -> FinishedModel:
    """Open a package, or a model file; `name` is the name of the argument.

    Raises:
        TargetError: the file does not run within limits of time and memory.
    """
    from octobert.inference.opened import open_model

    opened = open_model(
        path_of(model, name),
        task=task,
        target=target,
        tokenizer=optional_path(tokenizer, "tokenizer"),
        reference=optional_path(reference, "reference"),
    )
    if opened.manifest is None:
        from octobert.evaluation.latency import try_out

        opened.check_runs()
        try_out(opened)
    return opened


def load(
    package: PathLike,
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    goal: Goal = "latency",
    streams: Natural = 0,
    threads: Natural = 0,
    cache: PathLike | None = None,
    runtime_log: bool = False,
    allow_fallback: bool = False,
    verify: bool = False,
    device: str | None = None,
    static_up_to: Natural | None = None,
    measure: bool = True,
    alone: bool = False,
) -> Predictor:
    """Open a package or a model file for prediction. A package needs the target's runtime and `tokenizers` only.

    Args:
        package: A package, `OUT/TARGET`, or an `.onnx` or `.xml` file.
        task: What a file is for: the name of a task, or one name with its options. A package has its own.
        target: Target that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a file's tokenizer and config. Default: the folder of the file, or the one above.
        goal: `latency`: one inference uses all cores. `throughput`: each core runs its own inference.
        streams: Inferences at the same time. 0: depends on the goal.
        threads: Threads of one inference. 0: depends on the goal.
        cache: Folder where the runtime stores compiled models, to open them faster the next time.
        runtime_log: Print the runtime's log on stderr.
        allow_fallback: Run operators on the CPU that the target's device does not support, instead of failing.
        verify: Compare the content of all files with the manifest first. By default only the sizes of the model files are.
        device: For OpenVINO targets: `CPU`, `GPU`, `NPU`, `AUTO`, `MULTI:…` or `HETERO:…`. Default: the target's.
        static_up_to: Tokens, for OpenVINO targets: answer single texts of up to so many with models of the lengths 16, 32, …,
            which is faster. Each takes time at the first text of its length, and memory. 0: none. Default: 128 for small
            models on the CPU with the goal `latency`, unless `measure` is false.
        measure: Measure the time by length, which batches and padding follow, where that was not yet done on this machine: up
            to five seconds. False: the first answer comes sooner.
        alone: Answer every text in an inference of its own: its answer is the same to the last bit, whatever other texts a call
            or a stream has. Slower for many texts. Packages of ort-cpu with static quantization need it not.

    Returns:
        The model: call it with texts, or with an iterable via `stream`.

    Raises:
        ModelError: The path is neither, or the files are not the ones that were packaged, or not those of the task.
        TargetError: The target's runtime is not installed.
        RecipeError: The target has no models of static lengths.
    """
    from octobert.core.session import goal_named
    from octobert.inference.predictor import Predictor

    numbers_of((streams, threads), "streams, threads", least=0)
    numbers_of(() if static_up_to is None else static_up_to, "static_up_to", least=0)
    return Predictor(
        opened_model(package, "package", task=task, target=target, tokenizer=tokenizer),
        goal=goal_named(goal),
        streams=streams,
        threads=threads,
        cache=cache,
        runtime_log=runtime_log,
        allow_fallback=allow_fallback,
        verify=verify,
        device=device,
        static_up_to=static_up_to,
        measure=measure,
        alone=alone,
    )


def evaluate(
    package: PathLike,
    data: DataLike,
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    reference: PathLike | None = None,
    split: str = "auto",
    corpus: str | None = "auto",
    config: str | None = None,
    revision: str | None = None,
    columns: Sequence[str] = (),
    text_column: str | Sequence[str] = (),
    label_column: str | None = None,
    samples: Positive | None = None,
    seed: Natural = 0,
    metric: MetricLike | Sequence[MetricLike] = (),
    allow_code: bool = False,
    cache: PathLike | None = None,
    runtime_log: bool = False,
    device: str | None = None,
    predictions: PathLike | None = None,
    nbest: PathLike | None = None,
    progress: ProgressCallback | None = None,
) -> Judgement:
    """Score a package or a model file, and its float model on the same rows.

    Args:
        package: A package, `OUT/TARGET`, or an `.onnx` or `.xml` file.
        data: File, folder, Hub id, or `file.py:function` that gives the rows of a split.
        task: What a file is for: the name of a task, or one name with its options. A package has its own.
        target: Target that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a file's tokenizer and config. Default: the folder of the file, or the one above.
        reference: The float model of a file, to compare it with.
        split: Split of a folder or of a Hub data set, or a slice of it: `test[:100]`. `auto`: validation, otherwise test.
        corpus: Documents that are searched beside those of the queries: a file or Hub id. `auto`: the corpus of a BEIR folder.
        config: Configuration of a Hub data set, such as `mrpc` of GLUE.
        revision: Branch, tag or commit of a Hub data set.
        columns: Column names, for a file without a header.
        text_column: Column with the texts, or two of a pair, where the data has other columns than the task names.
        label_column: Column with the labels or scores.
        samples: Number of rows, sampled at random. Default: all.
        seed: Seed of the sample and of the confidence intervals.
        metric: Metrics as in a recipe: `"auroc"`, `{"evaluate": "f1"}`, `"file.py:function"`. Default: those of the task.
        allow_code: Run the Python functions that `data` and `metric` name.
        cache: Folder where the runtime stores compiled models, to open them faster the next time.
        runtime_log: Print the runtime's log on stderr.
        device: For OpenVINO targets: `CPU`, `GPU`, `NPU`, `AUTO`, `MULTI:…` or `HETERO:…`. Default: the target's.
        predictions: File for the predictions: SQuAD's JSON, id → answer, for questions, otherwise a line of JSON for each row.
        nbest: File for the best answers to each question, with their probabilities and places, as JSON.
        progress: Called after each batch.

    Raises:
        DataError: The rows cannot be used.
        ModelError: The path is neither, or the file is not that of the task.
        RecipeError: A metric does not exist, or code is not allowed or cannot be loaded.
    """
    environment.require("quantize")
    from octobert.config.loading import metrics_of
    from octobert.evaluation.packages import judge

    source = str(path_of(data, "data"))
    numbers_of(() if samples is None else samples, "samples")
    names, texts = names_of(columns, "columns"), names_of(text_column, "text_column")
    opened = opened_model(
        package, "package", task=task, target=target, tokenizer=tokenizer, reference=reference
    )
    if texts or label_column is not None:
        facts = opened.facts()
        options = {**facts.options, **column_options(facts.name, texts, label_column)}
        opened = replace(opened, task=facts.replaced(options=options))
    metrics = metrics_of(metric, source, allow_code=allow_code)
    with progress_step(progress, "evaluate") as on_progress:
        return judge(
            opened,
            source,
            split=split,
            corpus=corpus,
            config=config,
            revision=revision,
            columns=names,
            samples=samples,
            seed=seed,
            metrics=metrics,
            cache=cache,
            runtime_log=runtime_log,
            device=device,
            predictions=optional_path(predictions, "predictions"),
            nbest=optional_path(nbest, "nbest"),
            allow_code=allow_code,
            on_progress=on_progress,
        )


def predict_rows(
    model: Predictor,
    data: DataLike,
    rows: Sequence[Positive],
    *,
    split: str = "auto",
    columns: Sequence[str] = (),
    config: str | None = None,
    revision: str | None = None,
) -> list[dict[str, Any]]:
    """Predict rows of a data set.

    Args:
        model: From `load`.
        data: File, folder or Hub id.
        rows: Numbers of the rows, from 1, without the header.
        split: Split of a folder or of a Hub data set. `auto`: validation, otherwise test.
        columns: Column names, for a file without a header.
        config: Configuration of a Hub data set, such as `mrpc` of GLUE.
        revision: Branch, tag or commit of a Hub data set.

    Returns:
        The answers, each with `row`, `input` and `gold`, what the data set expects; None where it has no labels.

    Raises:
        DataError: There is no such row, or it does not fit the task.
    """
    environment.require("quantize")
    from octobert import tasks
    from octobert.evaluation.packages import of_rows, rows_of

    numbers = numbers_of(rows, "rows")
    source = _rows(data, config, revision, split)
    where, data_rows = rows_of(
        source, names_of(columns, "columns"), tasks.load(model.opened.facts().name).files
    )
    return of_rows(model, where, data_rows, numbers)


def benchmark(
    packages: PathLike | Sequence[PathLike],
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    reference: PathLike | None = None,
    batch: Sequence[Positive] = (1, 8),
    sequence: Sequence[Positive] = (),
    data: DataLike | None = None,
    config: str | None = None,
    revision: str | None = None,
    goal: Goal = "latency",
    repeats: Repeats = 30,
    seconds: Duration | None = None,
    streams: int | Literal["auto"] = "auto",
    requests: int | Literal["auto"] = "auto",
    warmup: Natural = 0,
    pause_ms: NotNegative = 10,
    threads: Natural = 0,
    device: str | Sequence[str] = (),
    cache: PathLike | None = None,
    progress: ProgressCallback | None = None,
) -> BenchmarkResult:
    """Time packages and model files, and their float models, in turn, each in a process of its own.

    Args:
        packages: Packages, `OUT/TARGET`, and `.onnx` and `.xml` files: one or several.
        task: What a file is for: the name of a task, or one name with its options. A package has its own.
        target: Target that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a file's tokenizer and config. Default: the folder of the file, or the one above.
        reference: The float model of a file, to compare it with.
        batch: Batch sizes. Default: 1 and 8. (benchmark_app: -b)
        sequence: Sequence lengths in tokens. Default: 128, or the shortest limit of the models. (-data_shape)
        data: File, folder, or Hub id of rows that are also timed, at their own lengths; of several splits, the validation rows.
            (benchmark_app: -i)
        config: Configuration of a Hub data set, such as `mrpc` of GLUE.
        revision: Branch, tag or commit of a Hub data set.
        goal: `latency`: one inference after another (benchmark_app: -hint latency -api sync). `throughput`: also inferences at
            the same time (-hint throughput -api async).
        repeats: Rounds of each shape, one inference of each model in each. (benchmark_app: -niter)
        seconds: Time for each model at each shape. `latency`: instead of `repeats`. `throughput`: for inferences at the same
            time, 20 by default. (benchmark_app: -t)
        streams: Inferences that run at the same time. `auto`: what the runtime recommends, which OpenVINO does, otherwise one
            for each core. (benchmark_app: -nstreams)
        requests: Inferences in flight; those above the streams wait. `auto`: as many as there are streams. (benchmark_app:
            -nireq)
        warmup: Untimed runs of each model at each shape before its first timed one, beside those that there always are.
        pause_ms: Pause before each turn of a model.
        threads: Threads of one inference. 0: the runtime's default. (benchmark_app: -nthreads)
        device: OpenVINO's name of a device: `CPU`, `GPU`, `NPU`, `AUTO`, `MULTI:…` or `HETERO:…`, or several, one after
            another. Default: the target's. (benchmark_app: -d)
        cache: Folder where the runtime stores compiled models, to open them faster the next time. (benchmark_app: -cdir)
        progress: Called after each round.

    Raises:
        OctobertError: A path is neither, a length is too long for a model, or a runtime fails.
    """
    environment.require("quantize")
    from octobert.config.loading import checked
    from octobert.config.measuring import Benchmark
    from octobert.core.session import goal_named
    from octobert.evaluation.packages import benchmark_models

    paths = paths_of(packages, "packages")
    if not paths:
        raise RecipeError(
            "there is nothing to time",
            where="packages",
            expected="at least one package or model file",
        )
    numbers_of(repeats, "repeats", least=3)
    settings = {
        "batch": numbers_of(batch, "batch"),
        "goal": goal_named(goal),
        "repeats": repeats,
        "within": 0,
        "seconds": seconds,
        "streams": streams,
        "requests": requests,
        "warmup": warmup,
        "pause_ms": pause_ms,
        "threads": threads,
    }
    if sequence:
        settings["sequence"] = numbers_of(sequence, "sequence")
    devices = names_of(device, "device")
    rows = None if data is None else _rows(data, config, revision)
    # What is said about model files is not about packages among them.
    file: dict[str, Any] = {
        "task": task,
        "target": target,
        "tokenizer": tokenizer,
        "reference": reference,
    }
    models = [opened_model(path, "packages", **({} if path.is_dir() else file)) for path in paths]
    with progress_step(progress, "benchmark") as on_progress:
        timed = checked(Benchmark, settings, where="benchmark")
        return benchmark_models(
            models,
            timed,
            devices=devices,
            cache=None if cache is None else str(path_of(cache, "cache")),
            data=rows,
            on_progress=on_progress,
        )


def tune(
    package: PathLike,
    data: DataLike,
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    config: str | None = None,
    revision: str | None = None,
    goals: Sequence[Goal] = ("latency", "throughput"),
    trials: Positive = 20,
    minutes: Duration = 5,
    seed: Natural = 0,
    progress: ProgressCallback | None = None,
) -> tuple[Tuned, ...]:
    """Search for threads, streams and runtime options that are faster than the defaults, and store them.

    Args:
        package: A package, `OUT/TARGET`, or an `.onnx` or `.xml` file. Settings are stored in it, or beside the file.
        data: File, folder, or Hub id. The search times rows of these lengths, the validation rows of several splits.
        task: What a file is for: the name of a task, or one name with its options. A package has its own.
        target: Target that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a file's tokenizer and config. Default: the folder of the file, or the one above.
        config: Configuration of a Hub data set, such as `mrpc` of GLUE.
        revision: Branch, tag or commit of a Hub data set.
        goals: `latency` or `throughput`. Default: both, one search each.
        trials: Settings that each search tries.
        minutes: Time limit of each search, without its final comparison.
        seed: Seed of the sampled rows and of the search.
        progress: Called after each trial.

    Raises:
        OctobertError: The path is neither, the rows cannot be read, or optuna is not installed.
    """
    environment.require("quantize")
    from octobert.core.session import goal_named
    from octobert.evaluation.packages import tune_model

    names = [goal_named(goal) for goal in names_of(goals, "goals")]
    numbers_of(trials, "trials")
    rows = _rows(data, config, revision)
    opened = opened_model(package, "package", task=task, target=target, tokenizer=tokenizer)
    with progress_step(progress, "tune") as on_progress:
        return tune_model(
            opened,
            rows,
            goals=names,
            trials=trials,
            minutes=minutes,
            seed=seed,
            on_progress=on_progress,
        )


def _rows(
    data: DataLike, config: str | None, revision: str | None, split: str = "auto"
) -> dict[str, Any]:
    return {
        "source": str(path_of(data, "data")),
        "evaluate": split,
        "config": config,
        "revision": revision,
    }


def inspect(
    model: PathLike,
    *,
    target: str | None = None,
    reference: PathLike | None = None,
    batch: Positive = 1,
    sequence: Positive | None = None,
    threads: Natural = 0,
    repeats: Repeats = 20,
    progress: ProgressCallback | None = None,
) -> Inspection:
    """Run a model under its runtime's profiler: which operators run in 8 bits, where the time goes, and why.

    Args:
        model: A package, or an .onnx or .xml file.
        target: Target that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`. A package has its own.
        reference: The float model of a file, to compare it with.
        batch: Batch size.
        sequence: Sequence length in tokens. Default: 128, or the model's limit.
        threads: Threads of one inference. 0: the runtime's default.
        repeats: Profiled runs, and rounds of timing.
        progress: Called after each round.

    Raises:
        TargetError: The target cannot run here, or its runtime has no profiler that octobert reads.
        ModelError: The model does not take such inputs.
    """
    from octobert.inspection import inspector

    numbers_of(batch, "batch")
    numbers_of(() if sequence is None else sequence, "sequence")
    numbers_of(repeats, "repeats", least=3)
    opened = opened_model(model, "model", target=target, reference=reference)
    with progress_step(progress, "inspect") as on_progress:
        return inspector.inspect(
            opened,
            batch=batch,
            sequence=sequence,
            threads=threads,
            repeats=repeats,
            on_progress=on_progress,
        )
