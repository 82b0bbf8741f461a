"""Finished packages and model files: predict, evaluate, time, tune, inspect and check them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from octobert.api._arguments import names_of, numbers_of, path_of
from octobert.core.errors import RecipeError
from octobert.report.progress import ProgressCallback, progress_step

if TYPE_CHECKING:
    from octobert.core.profile import Inspection, Lint
    from octobert.core.ranges import Interval
    from octobert.core.results import PackageManifest
    from octobert.core.settings import Goal, Tuned
    from octobert.evaluation.benchmarking import BenchmarkResult
    from octobert.evaluation.packages import Judgement
    from octobert.graph.passes.fusion import Fused
    from octobert.inference.package_files import Verified
    from octobert.inference.predictor import Predictor

PathLike: TypeAlias = "str | Path"


def load(
    package: PathLike,
    *,
    goal: Goal = "latency",
    streams: int = 0,
    threads: int = 0,
    cache: PathLike | None = None,
    runtime_log: bool = False,
    allow_fallback: bool = False,
    verify: bool = False,
    device: str | None = None,
) -> Predictor:
    """Open a package for prediction. It needs the target's runtime and `tokenizers` only.

    Args:
        package: A package, `OUT/<target>`, or its zip file, which is unpacked into the cache folder.
        goal: `latency`: one inference uses all cores. `throughput`: each core runs its own inference.
        streams: Inferences at the same time. 0: depends on the goal.
        threads: Threads of one inference. 0: depends on the goal.
        cache: Folder where the runtime stores compiled models, to open them faster.
        runtime_log: Print the runtime's log on stderr.
        allow_fallback: Run operators on the CPU that the target's device does not support. By default they are an error.
        verify: Compare the content of all files with the manifest first. By default only the sizes of the model files are.
        device: For OpenVINO targets: the device to open the model on, as OpenVINO names it, such as `AUTO`. Default: the
            target's.

    Returns:
        The model: call it with texts, or with an iterable via `stream`.

    Raises:
        ModelError: The folder is not a package, or its files are not the ones that were packaged.
        TargetError: The target's runtime is not installed.
    """
    from octobert.core.settings import goal_named
    from octobert.inference.predictor import Predictor

    options: dict[str, Any] = {"cache": cache, "runtime_log": runtime_log, "allow_fallback": allow_fallback}
    options |= {"verify": verify, "device": device}
    numbers_of((streams, threads), "streams, threads", least=0)
    return Predictor(path_of(package, "package"), goal=goal_named(goal), streams=streams, threads=threads, **options)


def evaluate(
    package: PathLike,
    data: PathLike,
    *,
    split: str = "auto",
    columns: Sequence[str] = (),
    samples: int | None = None,
    seed: int = 0,
    cache: PathLike | None = None,
    runtime_log: bool = False,
    device: str | None = None,
    progress: ProgressCallback | None = None,
) -> Judgement:
    """Score a package and its float model on the same rows.

    Args:
        package: A package, `OUT/<target>`.
        data: File, folder or Hub id.
        split: Split of a folder or of a Hub data set. `auto`: validation, otherwise test.
        columns: Column names, for a file without a header.
        samples: Number of rows to sample. Default: all.
        seed: Seed of the sample and of the confidence intervals.
        cache: Folder where the runtime stores compiled models, to open them faster.
        runtime_log: Print the runtime's log on stderr.
        device: For OpenVINO targets: the device to open both models on, as OpenVINO names it, such as `AUTO`.
        progress: Called after each batch.

    Raises:
        DataError: The rows cannot be used.
        ModelError: The folder is not a package.
    """
    from octobert.evaluation.packages import judge

    folder, source = path_of(package, "package"), str(path_of(data, "data"))
    numbers_of(() if samples is None else samples, "samples")
    columns = names_of(columns, "columns")
    chosen: dict[str, Any] = {"split": split, "columns": columns, "samples": samples, "seed": seed}
    with progress_step(progress, "evaluate") as on_progress:
        return judge(folder, source, cache=cache, runtime_log=runtime_log, device=device, on_progress=on_progress, **chosen)


def benchmark(
    packages: PathLike | Sequence[PathLike],
    *,
    batch: Sequence[int] = (1, 8),
    sequence: Sequence[int] = (),
    data: PathLike | None = None,
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
    """Time packages and their float models in turn, each in a process of its own.

    Args:
        packages: One package, or several.
        batch: Batch sizes.
        sequence: Sequence lengths in tokens. Default: 128, or the shortest limit of the models.
        data: File of rows that are also timed, at their own lengths.
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
        OctobertError: A folder is not a package, a length is too long for a model, or a runtime fails.
    """
    from octobert.config.loading import checked
    from octobert.config.recipe import Benchmark
    from octobert.core.settings import goal_named
    from octobert.evaluation.package_timing import benchmark_packages

    given = [packages] if isinstance(packages, str | Path) else list(packages)
    if not given:
        raise RecipeError("there is nothing to time", where="packages", expected="at least one package")
    folders = [path_of(package, "packages") for package in given]
    numbers_of(repeats, "repeats", least=3)
    plain: dict[str, Any] = {"batch": numbers_of(batch, "batch"), "goal": goal_named(goal), "repeats": repeats}
    plain |= {"sequence": numbers_of(sequence, "sequence")} if sequence else {}
    plain |= {"seconds": seconds, "streams": streams, "requests": requests}
    plain |= {"warmup": warmup, "pause_ms": pause_ms, "threads": threads}
    options: dict[str, Any] = {
        "devices": names_of([device] if isinstance(device, str) else device, "device"),
        "data": path_of(data, "data") if data is not None else None,
    }
    with progress_step(progress, "benchmark") as on_progress:
        chosen = checked(Benchmark, plain, where="benchmark")
        return benchmark_packages(folders, chosen, on_progress=on_progress, **options)


def tune(
    package: PathLike,
    data: PathLike,
    *,
    goals: Sequence[Goal] = ("latency", "throughput"),
    trials: int = 20,
    minutes: float = 5,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> tuple[Tuned, ...]:
    """Search for threads, streams and runtime options that are faster than the defaults, and store them in the package.

    Args:
        package: A package, `OUT/<target>`.
        data: File of rows; the search times their lengths.
        goals: What to tune for; one search each.
        trials: Settings that each search tries.
        minutes: Time limit of each search, without its final comparison.
        seed: Seed of the sampled rows and of the search.
        progress: Called after each trial.

    Raises:
        OctobertError: The folder is not a package, the rows cannot be read, or optuna is not installed.
    """
    from octobert.core.settings import goal_named
    from octobert.evaluation.package_timing import tune_package

    search: dict[str, Any] = {"trials": trials, "minutes": minutes, "seed": seed}
    named = [goal_named(goal) for goal in names_of(goals, "goals")]
    numbers_of(trials, "trials")
    folder, rows = path_of(package, "package"), path_of(data, "data")
    with progress_step(progress, "tune") as on_progress:
        return tune_package(folder, rows, goals=named, on_progress=on_progress, **search)


def packages(folder: PathLike) -> list[Path]:
    """The packages in an output directory; a package itself gives a list of one."""
    from octobert.core.results import PACKAGE_FILE

    root = path_of(folder, "folder")
    inside = sorted(path.parent for path in root.glob(f"*/{PACKAGE_FILE}"))
    return inside if inside and not (root / PACKAGE_FILE).is_file() else [root]


def manifest(package: PathLike) -> PackageManifest:
    """The manifest of a package: the recipe, the plan, the ranges, the scores.

    Raises:
        ModelError: The folder is not a package.
    """
    from octobert.inference.package_files import read_manifest

    return read_manifest(path_of(package, "package"))


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
    batch: int = 1,
    sequence: int | None = None,
    threads: int = 0,
    repeats: int = 20,
    progress: ProgressCallback | None = None,
) -> Inspection:
    """Run a model under its runtime's profiler: which operators run in 8 bits, where the time goes, and why.

    Args:
        model: A package, or an .onnx or .xml file.
        target: Target that opens a file. A package has its own.
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

    opened = inspector.opened(path_of(model, "model"), target)
    numbers_of(batch, "batch")
    numbers_of(() if sequence is None else sequence, "sequence")
    numbers_of(repeats, "repeats", least=3)
    shape: dict[str, Any] = {"batch": batch, "sequence": sequence, "threads": threads, "repeats": repeats}
    with progress_step(progress, "inspect") as on_progress:
        return inspector.inspect(opened, on_progress=on_progress, **shape)


def check(model: PathLike, targets: str | Sequence[str] = ()) -> list[Lint]:
    """Check an ONNX file against targets: what each refuses, what it runs in float and why, and how to fix it.

    Args:
        model: An ONNX file, or a package.
        targets: Names of targets. Default for a package: its own.

    Raises:
        RecipeError: No target is given for a file, or there is no target of that name.
        ModelError: The file cannot be read.
    """
    from octobert import targets as plugins
    from octobert.inspection import linter

    path = path_of(model, "model")
    names = [targets] if isinstance(targets, str) else list(targets)
    if path.is_dir() and not names:
        names = [manifest(path).target]
    if not names:
        fix = f"name one: {', '.join(plugins.names())}"
        raise RecipeError("a file is checked against a target", where="--target", fix=fix)
    capabilities = [plugins.load(name, where="--target").CAPABILITIES for name in names]
    return [linter.lint(path / target.file if path.is_dir() else path, target) for target in capabilities]


def fuse(model: PathLike, out: PathLike) -> Fused:
    """Write a copy of a graph with ONNX Runtime's fused operators.

    Args:
        model: A graph that octobert wrote: `onnx/model.onnx` or `onnx/model_quantized.onnx` of a package.
        out: The file to write.

    Returns:
        The number of each fused operator, and the comparison with the original.

    Raises:
        ModelError: The file is missing, or octobert did not write it.
    """
    from octobert.core.errors import ModelError
    from octobert.core.files import atomic_write, storage_errors
    from octobert.core.onnx_files import read_onnx
    from octobert.graph import operators
    from octobert.graph.passes import fusion

    path, target = path_of(model, "model"), path_of(out, "out")
    graph = read_onnx(path)
    if graph.metadata_props.get("producer") != "octobert":
        fix = (
            "quantize the model first (--method float keeps it in float), then use onnx/model.onnx or onnx/model_quantized.onnx"
        )
        raise ModelError("octobert fuses only graphs that it wrote", where=str(path), fix=fix)
    fused = fusion.fuse(graph)
    target.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(target), atomic_write(target) as partial:
        operators.save(fused.model, partial)
    return fused


def calibration_tables(package: PathLike, out: PathLike | None = None, *, tensorrt: int | None = None) -> list[Path]:
    """Write the ranges of a package as calibration tables for ONNX Runtime's TensorRT and MIGraphX providers.

    Args:
        package: A package that was made without graph transforms.
        out: Folder for the tables. Default: `calibration` in the package.
        tensorrt: TensorRT version whose own cache is also written: 101401 is 10.14.1.

    Returns:
        The files.

    Raises:
        ModelError: The ranges belong to a transformed graph.
    """
    from octobert.core.errors import ModelError
    from octobert.quantization import tables

    folder = path_of(package, "package")
    facts = manifest(folder)
    transforms = facts.recipe.get("transforms", facts.recipe.get("prepare"))
    if transforms:
        # A transformed graph computes the same outputs from other values; the package holds the graph without transforms.
        raise ModelError(
            "the ranges are those of a transformed graph, not of the float model in the package",
            where=str(folder),
            got=f"transforms: {', '.join(choice['name'] for choice in transforms)}",
            fix="quantize the model without them: transforms: [] in the recipe, --transforms none on the command line",
        )
    return tables.write(
        facts.ranges.intervals, path_of(out, "out") if out is not None else folder / "calibration", tensorrt=tensorrt
    )


def read_calibration_table(path: PathLike) -> dict[str, Interval]:
    """The ranges in a calibration table.

    Raises:
        OctobertError: The file is not a calibration table.
    """
    from octobert.quantization import tables

    return tables.read(path_of(path, "path"))


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
