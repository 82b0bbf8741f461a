"""Finished packages and model files: predict, evaluate, time, tune and inspect them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from octobert.api._arguments import names_of, numbers_of, path_of
from octobert.core.errors import RecipeError
from octobert.report.progress import ProgressCallback, progress_step

if TYPE_CHECKING:
    from octobert.core.profile import Inspection
    from octobert.core.results import PackageManifest
    from octobert.core.settings import Goal, Tuned
    from octobert.evaluation.benchmarking import BenchmarkResult
    from octobert.evaluation.packages import Judgement
    from octobert.inference.opened import Opened
    from octobert.inference.package_files import Verified
    from octobert.inference.predictor import Predictor

PathLike: TypeAlias = "str | Path"
TaskLike: TypeAlias = "str | Mapping[str, Any]"
MetricLike: TypeAlias = "str | Mapping[str, Any]"


def _opened(
    model: PathLike,
    name: str,
    task: TaskLike | None,
    target: str | None,
    tokenizer: PathLike | None,
    reference: PathLike | None = None,
) -> Opened:
    """A package or a model file; `name` is that of the argument."""
    from octobert.inference.opened import opened

    paths = {"tokenizer": tokenizer, "reference": reference}
    beside = {key: path_of(path, key) for key, path in paths.items() if path is not None}
    return opened(path_of(model, name), task=task, target=target, **beside)


def load(
    package: PathLike,
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    goal: Goal = "latency",
    streams: int = 0,
    threads: int = 0,
    cache: PathLike | None = None,
    runtime_log: bool = False,
    allow_fallback: bool = False,
    verify: bool = False,
    device: str | None = None,
    static_up_to: int = 0,
    measure: bool = True,
) -> Predictor:
    """Open a package or a model file for prediction. A package needs the target's runtime and `tokenizers` only.

    Args:
        package: A package, `OUT/<target>`, its zip file, which is unpacked into the cache folder, or an `.onnx` or `.xml` file.
        task: Of a model file: the name of the task, or one name with its options. A package has its own.
        target: That opens a model file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a model file's tokenizer and config. Default: the folder of the file, or the one above.
        goal: `latency`: one inference uses all cores. `throughput`: each core runs its own inference.
        streams: Inferences at the same time. 0: depends on the goal.
        threads: Threads of one inference. 0: depends on the goal.
        cache: Folder where the runtime stores compiled models, to open them faster.
        runtime_log: Print the runtime's log on stderr.
        allow_fallback: Run operators on the CPU that the target's device does not support. By default they are an error.
        verify: Compare the content of all files with the manifest first. By default only the sizes of the model files are.
        device: For OpenVINO targets: the device to open the model on, as OpenVINO names it, such as `AUTO`. Default: the
            target's.
        static_up_to: Tokens, for OpenVINO targets: compile the model once more for each of the lengths 16, 32, … up to it, and
            answer single texts with these, which is faster. Each takes time when it is opened, and memory. 0: none.
        measure: Measure the time by length, which batches and padding follow, where that was not yet done on this machine: up
            to five seconds. False: the first answer comes sooner.

    Returns:
        The model: call it with texts, or with an iterable via `stream`.

    Raises:
        ModelError: The path is neither, or the files are not the ones that were packaged, or not those of the task.
        TargetError: The target's runtime is not installed.
        RecipeError: The target has no models of static lengths.
    """
    from octobert.core.settings import goal_named
    from octobert.inference.predictor import Predictor

    options: dict[str, Any] = {"cache": cache, "runtime_log": runtime_log, "allow_fallback": allow_fallback}
    options |= {"verify": verify, "device": device, "static_up_to": static_up_to, "measure": measure}
    numbers_of((streams, threads), "streams, threads", least=0)
    numbers_of((static_up_to,), "static_up_to", least=0)
    found = _opened(package, "package", task, target, tokenizer)
    return Predictor(found, goal=goal_named(goal), streams=streams, threads=threads, **options)


def evaluate(
    package: PathLike,
    data: PathLike,
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    reference: PathLike | None = None,
    split: str = "auto",
    config: str | None = None,
    revision: str | None = None,
    columns: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
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
        package: A package, `OUT/<target>`, or an `.onnx` or `.xml` file.
        data: File, folder, Hub id, or `file.py:function` that gives the rows of a split.
        task: Of a model file: the name of the task, or one name with its options. A package has its own.
        target: That opens a model file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a model file's tokenizer and config. Default: the folder of the file, or the one above.
        reference: The float model of a model file, to compare it with.
        split: Split of a folder or of a Hub data set, or a slice of it: `test[:100]`. `auto`: validation, otherwise test.
        config: Configuration of a Hub data set, such as `mrpc` of GLUE.
        revision: Branch, tag or commit of a Hub data set.
        columns: Column names, for a file without a header.
        samples: Number of rows to sample. Default: all.
        seed: Seed of the sample and of the confidence intervals.
        metric: Metrics as in a recipe: `"auroc"`, `{"evaluate": "f1"}`, `"file.py:function"`. Default: those of the task.
        allow_code: Run the Python functions that `data` and `metric` name.
        cache: Folder where the runtime stores compiled models, to open them faster.
        runtime_log: Print the runtime's log on stderr.
        device: For OpenVINO targets: the device to open both models on, as OpenVINO names it, such as `AUTO`.
        predictions: File for what the model predicts: JSON of id → answer for questions, otherwise a line of JSON per row.
        nbest: File for the best answers to each question, with their probabilities and places.
        progress: Called after each batch.

    Raises:
        DataError: The rows cannot be used.
        ModelError: The path is neither, or the file is not that of the task.
        RecipeError: A metric does not exist, or code is not allowed or cannot be loaded.
    """
    from octobert.config.loading import metrics_of
    from octobert.evaluation.packages import judge

    source = str(path_of(data, "data"))
    numbers_of(() if samples is None else samples, "samples")
    columns = names_of(columns, "columns")
    found = _opened(package, "package", task, target, tokenizer, reference)
    metrics = metrics_of(metric, source, allow_code=allow_code)
    chosen: dict[str, Any] = {"split": split, "columns": columns, "samples": samples, "seed": seed, "metrics": metrics}
    chosen |= {"config": config, "revision": revision, "allow_code": allow_code}
    files = (("predictions", predictions), ("nbest", nbest))
    chosen |= {name: path_of(path, name) for name, path in files if path is not None}
    with progress_step(progress, "evaluate") as on_progress:
        return judge(found, source, cache=cache, runtime_log=runtime_log, device=device, on_progress=on_progress, **chosen)


def predict_rows(
    model: Predictor,
    data: PathLike,
    rows: Sequence[int],
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
        config: Configuration of a Hub data set.
        revision: Branch, tag or commit of a Hub data set.

    Returns:
        The answers, each with `row`, `input` and `gold`, what the data set expects; None where it has no labels.

    Raises:
        DataError: There is no such row, or it does not fit the task.
    """
    from octobert.evaluation.packages import rows_of
    from octobert.evaluation.predictions import of_rows
    from octobert.tasks import files_of

    numbers = numbers_of(rows, "rows")
    given = {"source": str(path_of(data, "data")), "evaluate": split, "config": config, "revision": revision}
    where, found = rows_of(given, names_of(columns, "columns"), files_of(model.opened.facts().name))
    return of_rows(model, where, found, numbers)


def benchmark(
    packages: PathLike | Sequence[PathLike],
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    reference: PathLike | None = None,
    batch: Sequence[int] = (1, 8),
    sequence: Sequence[int] = (),
    data: PathLike | None = None,
    config: str | None = None,
    revision: str | None = None,
    goal: Goal = "latency",
    repeats: int = 30,
    seconds: float | None = None,
    streams: int | Literal["auto"] = "auto",
    requests: int | Literal["auto"] = "auto",
    warmup: int = 0,
    pause_ms: float = 10,
    threads: int = 0,
    device: str | Sequence[str] = (),
    progress: ProgressCallback | None = None,
) -> BenchmarkResult:
    """Time packages and model files, and their float models, in turn, each in a process of its own.

    Args:
        packages: One package or model file, or several.
        task: Of model files: the name of the task, or one name with its options. A package has its own.
        target: That opens model files. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of the tokenizer and config of model files. Default: the folder of each file, or the one above.
        reference: The float model of model files, to compare them with.
        batch: Batch sizes.
        sequence: Sequence lengths in tokens. Default: 128, or the shortest limit of the models.
        data: File, folder or Hub id of rows that are also timed, at their own lengths; of several splits, the validation rows.
        config: Configuration of a Hub data set, such as `mrpc` of GLUE.
        revision: Branch, tag or commit of a Hub data set.
        goal: `latency`: one inference after another. `throughput`: also inferences at the same time.
        repeats: Timed runs of each model at each shape, one after another.
        seconds: Time for each model at each shape: with `latency`, instead of `repeats`; with `throughput`, for inferences at
            the same time (default 20).
        streams: Inferences that run at the same time. `auto`: the runtime's choice, otherwise one for each core.
        requests: Inferences in flight; those above the streams wait. `auto`: as many as there are streams.
        warmup: Untimed runs of each model at each shape before its first timed one, beside those that there always are.
        pause_ms: Pause before each turn of a model.
        threads: Threads of one inference. 0: the runtime's default.
        device: OpenVINO's name of a device, such as `AUTO`, or several, one after another. Default: the target's.
        progress: Called after each round.

    Raises:
        OctobertError: A path is neither, a length is too long for a model, or a runtime fails.
    """
    from octobert.config.loading import checked
    from octobert.config.measuring import Benchmark
    from octobert.core.settings import goal_named
    from octobert.evaluation.package_timing import benchmark_models

    given = [packages] if isinstance(packages, str | Path) else list(packages)
    if not given:
        raise RecipeError("there is nothing to time", where="packages", expected="at least one package or model file")
    paths = [path_of(package, "packages") for package in given]
    numbers_of(repeats, "repeats", least=3)
    plain: dict[str, Any] = {"batch": numbers_of(batch, "batch"), "goal": goal_named(goal), "repeats": repeats}
    plain |= {"sequence": numbers_of(sequence, "sequence")} if sequence else {}
    plain |= {"seconds": seconds, "streams": streams, "requests": requests}
    plain |= {"warmup": warmup, "pause_ms": pause_ms, "threads": threads}
    options: dict[str, Any] = {
        "devices": names_of([device] if isinstance(device, str) else device, "device"),
        "data": _rows(data, config, revision) if data is not None else None,
    }
    # What is said about model files is not about packages among them.
    said = (task, target, tokenizer, reference)
    models = [_opened(path, "packages", *((None,) * 4 if path.is_dir() else said)) for path in paths]
    with progress_step(progress, "benchmark") as on_progress:
        chosen = checked(Benchmark, plain, where="benchmark")
        return benchmark_models(models, chosen, on_progress=on_progress, **options)


def tune(
    package: PathLike,
    data: PathLike,
    *,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    config: str | None = None,
    revision: str | None = None,
    goals: Sequence[Goal] = ("latency", "throughput"),
    trials: int = 20,
    minutes: float = 5,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> tuple[Tuned, ...]:
    """Search for threads, streams and runtime options that are faster than the defaults, and store them.

    Args:
        package: A package, `OUT/<target>`, or an `.onnx` or `.xml` file. Settings are stored in it, or beside the file.
        data: File, folder or Hub id; the search times the lengths of its (validation) rows.
        task: Of a model file: the name of the task, or one name with its options. A package has its own.
        target: That opens a model file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a model file's tokenizer and config. Default: the folder of the file, or the one above.
        config: Configuration of a Hub data set, such as `mrpc` of GLUE.
        revision: Branch, tag or commit of a Hub data set.
        goals: What to tune for; one search each.
        trials: Settings that each search tries.
        minutes: Time limit of each search, without its final comparison.
        seed: Seed of the sampled rows and of the search.
        progress: Called after each trial.

    Raises:
        OctobertError: The path is neither, the rows cannot be read, or optuna is not installed.
    """
    from octobert.core.settings import goal_named
    from octobert.evaluation.package_timing import tune_model

    search: dict[str, Any] = {"trials": trials, "minutes": minutes, "seed": seed}
    named = [goal_named(goal) for goal in names_of(goals, "goals")]
    numbers_of(trials, "trials")
    rows, found = _rows(data, config, revision), _opened(package, "package", task, target, tokenizer)
    with progress_step(progress, "tune") as on_progress:
        return tune_model(found, rows, goals=named, on_progress=on_progress, **search)


def _rows(data: PathLike, config: str | None, revision: str | None) -> dict[str, Any]:
    return {"source": str(path_of(data, "data")), "evaluate": "auto", "config": config, "revision": revision}


def packages(folder: PathLike) -> list[Path]:
    """The packages in an output directory; a package itself gives a list of one."""
    from octobert.core.results import PACKAGE_FILE

    root = path_of(folder, "folder")
    inside = sorted(path.parent for path in root.glob(f"*/{PACKAGE_FILE}"))
    return inside if inside and not (root / PACKAGE_FILE).is_file() else [root]


def manifest(package: PathLike) -> PackageManifest:
    """The manifest of a package: the recipe, the plan, the ranges, the scores.

    Args:
        package: A package, `OUT/<target>`. Of a merged folder the package for this machine.

    Raises:
        ModelError: The folder is not a package.
    """
    from octobert.inference.machines import for_this_machine
    from octobert.inference.package_files import read_manifest

    return read_manifest(for_this_machine(path_of(package, "package")))


def verify(package: PathLike) -> Verified:
    """Compare the content of every file of a package with the sha256 in its manifest.

    Args:
        package: A package, `OUT/<target>`, or its zip file.

    Returns:
        The files, and those that were added after it was packaged.

    Raises:
        ModelError: Files are missing or have another content, all named; or the folder is not a package.
    """
    from octobert.core import archives
    from octobert.inference import package_files, package_zip

    path = path_of(package, "package")
    return package_zip.verify(path) if path.suffix == archives.SUFFIX and path.is_file() else package_files.verify(path)


def inspect(
    model: PathLike,
    *,
    target: str | None = None,
    reference: PathLike | None = None,
    batch: int = 1,
    sequence: int | None = None,
    threads: int = 0,
    repeats: int = 20,
    progress: ProgressCallback | None = None,
) -> Inspection:
    """Run a model under its runtime's profiler: which operators run in 8 bits, where the time goes, and why.

    Args:
        model: A package, or an .onnx or .xml file.
        target: Target that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`. A package has its own.
        reference: The float model of a model file, to compare it with.
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
    shape: dict[str, Any] = {"batch": batch, "sequence": sequence, "threads": threads, "repeats": repeats}
    found = _opened(model, "model", None, target, None, reference)
    with progress_step(progress, "inspect") as on_progress:
        return inspector.inspect(found, on_progress=on_progress, **shape)


def read_text(path: PathLike) -> str:
    """The text of a UTF-8 file.

    Raises:
        DataError: The file is missing, cannot be read, or is not UTF-8.
    """
    from octobert.core.errors import DataError
    from octobert.data.formats import decoded

    if not Path(path).is_file():
        raise DataError("the file does not exist", where=str(path), fix="check the path")
    return decoded(Path(path))
