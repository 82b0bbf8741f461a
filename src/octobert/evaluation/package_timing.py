"""Time finished packages on this machine: a benchmark of packages and their float models, and the search for fast settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octobert import targets
from octobert.config.loading import checked
from octobert.config.recipe import Benchmark
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.measurements import Footprint, Latency, Load, Speedup
from octobert.core.model_config import read_config
from octobert.core.results import PACKAGE_FILE, PackageManifest
from octobert.core.session import SessionEntries
from octobert.core.settings import GOALS, Goal, Tried, Tuned
from octobert.core.tabular import Row, Tabular
from octobert.data import readers
from octobert.data.tokenization import Encoded, Tokenizer, longest
from octobert.evaluation import candidates, latency, tuning
from octobert.evaluation.candidates import Candidate
from octobert.inference import tuned_file
from octobert.inference.package_files import read_manifest
from octobert.tasks import rebuild

# Sequence length of a benchmark, in tokens, where the models allow it.
_DEFAULT_TOKENS = 128
OnProgress = Callable[[str, int, int], None]


class BenchmarkResult(Tabular):
    """Latencies of packages and of their float models, timed in turn.

    Args:
        latencies: One entry for each model and shape.
        footprints: Size, memory and load time of each model.
        speedups: Of each package, compared with its float model in every precision that was timed; the first is its baseline.
        load: What else the machine did meanwhile.
        environment: The machine and the versions of the runtimes.
    """

    latencies: tuple[Latency, ...]
    footprints: tuple[Footprint, ...]
    speedups: tuple[Speedup, ...]
    load: Load
    environment: Environment

    def to_rows(self) -> list[Row]:
        """One row for each model and shape, times in milliseconds."""
        precision = {footprint.candidate: footprint.precision for footprint in self.footprints}
        return [
            {
                "model": timed.candidate,
                "precision": precision[timed.candidate],
                "batch": timed.batch,
                "sequence": timed.sequence,
                **{f"p{percent}_ms": timed.percentile_ms(percent) for percent in (50, 90, 99)},
                "rows_per_second": timed.rows_per_second,
            }
            for timed in self.latencies
        ]


def benchmark_packages(
    folders: Sequence[Path],
    *,
    batch: Sequence[int] = (1, 8),
    sequence: Sequence[int] = (),
    data: Path | None = None,
    repeats: int = 30,
    threads: int = 0,
    on_progress: OnProgress | None = None,
) -> BenchmarkResult:
    """Time packages and the float models in them, each in a process of its own.

    Args:
        folders: Packages.
        batch: Batch sizes.
        sequence: Sequence lengths in tokens. Default: 128, or the shortest limit of the models.
        data: File of rows that are also timed, at their own lengths.
        repeats: Rounds of each shape.
        threads: Threads of one inference. 0: the runtime's default.
        on_progress: Called with what is timed, the rounds done, and all rounds.

    Raises:
        OctobertError: A folder is not a package, a length is too long for a model, or a runtime fails.
    """
    models, rivals = _with_float_models(folders)
    limit = min(longest(folder) for folder in folders)
    lengths: list[int | str] = [*(sequence or (min(_DEFAULT_TOKENS, limit),)), *(("data",) if data else ())]
    plain = {"batch": tuple(batch), "sequence": lengths, "repeats": repeats, "threads": threads}
    settings = checked(Benchmark, plain, where="benchmark")
    latency.check_lengths(settings, limit)
    rows, tokenizer = _rows_of(folders[0], data)
    vocabulary = read_config(folders[0]).get("vocab_size") or 1000
    shapes = latency.workloads_of(settings, rows, tokenizer.pad_id, vocabulary, seed=0)
    timed = latency.measure(models, shapes, repeats=repeats, threads=threads, on_progress=on_progress)
    return BenchmarkResult(
        latencies=timed.latencies,
        footprints=timed.footprints,
        speedups=latency.speedups(timed.latencies, rivals),
        load=timed.load,
        environment=environment.current(),
    )


def _with_float_models(folders: Sequence[Path]) -> tuple[list[Candidate], dict[str, tuple[str, ...]]]:
    """(each package and, once each, the float models in them; package → the float models that it is compared with)."""
    models: dict[str, Candidate] = {}
    rivals: dict[str, tuple[str, ...]] = {}
    for folder in folders:
        manifest = read_manifest(folder)
        floats = [_float_model(name, folder, manifest, models) for name in candidates.float_forms(manifest.target)]
        models |= {model.title: model for model in floats}
        label = manifest.target if manifest.target not in models else str(folder)
        file = targets.load(manifest.target).model_file(folder)
        models[label] = Candidate(
            name=manifest.target, path=str(file), head=manifest.task.head, label=label, entries=manifest.session
        )
        rivals[label] = tuple(model.title for model in floats)
    return list(models.values()), rivals


def _float_model(name: str, folder: Path, manifest: PackageManifest, models: Mapping[str, Candidate]) -> Candidate:
    """The float model of a package as a candidate: that of an earlier package if it is the same model."""
    content = manifest.files["onnx/model.onnx"]
    baseline = candidates.float_baselines()[name]
    entries = manifest.session if baseline.target == manifest.target else SessionEntries()
    known = (name, content, entries)
    same = next((model for model in models.values() if (model.name, model.content, model.entries) == known), None)
    label = name if name not in models else f"{folder}: {name}"
    path = str(folder / "onnx" / "model.onnx")
    return same or Candidate(name=name, path=path, head=manifest.task.head, label=label, content=content, entries=entries)


def tune_package(
    folder: Path,
    data: Path,
    *,
    goals: Sequence[Goal] = GOALS,
    trials: int = 20,
    minutes: float = 5,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> tuple[Tuned, ...]:
    """Search for the fastest settings of a package on this machine, and store them in the package.

    Args:
        folder: A package.
        data: File of rows; the search times their lengths.
        goals: What to tune for; one search each.
        trials: Settings that each search tries.
        minutes: Time limit of each search, without its final comparison.
        seed: Seed of the sampled rows and of the search.
        on_progress: Called with what is tuned, the trials done, and all trials.

    Raises:
        OctobertError: The folder is not a package, the rows cannot be read, or optuna is not installed.
    """
    manifest = read_manifest(folder)
    target = targets.load(manifest.target)
    path = str(target.model_file(folder))
    model = Candidate(name=manifest.target, path=path, head=manifest.task.head, entries=manifest.session)
    rows, tokenizer = _rows_of(folder, data)
    # What prevents storing the results is an error before the search, not after it.
    tuned_file.read_tuned(folder, target.RUNTIME_OPTIONS)
    tuned_file.check_writable(folder)
    results = []
    for goal in sorted(set(goals)):

        def on_trial(number: int, _: Tried, what: str = f"tuning for {goal}") -> None:
            if on_progress:
                on_progress(what, number, trials)

        search: dict[str, Any] = {"trials": trials, "minutes": minutes, "seed": seed, "on_trial": on_trial}
        results.append(tuning.tune(model, rows, tokenizer.pad_id, goal=goal, longest=tokenizer.max_length, **search))
        tuned_file.write_tuned(folder, results[-1])
    return tuple(results)


def _rows_of(folder: Path, data: Path | None) -> tuple[list[Encoded], Tokenizer]:
    """(the rows of a file, tokenized as a package takes them, the package's tokenizer)."""
    task = rebuild(read_manifest(folder).task, where=str(folder / PACKAGE_FILE))
    tokenizer = Tokenizer(folder, task.max_length)
    texts = task.inputs(readers.read_file(data), where=str(data)) if data else []
    return list(task.encode(tokenizer, texts).flat), tokenizer
