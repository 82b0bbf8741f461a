"""Time finished packages on this machine: a benchmark of packages and their float models, and the search for fast settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octobert import targets
from octobert.config.recipe import Benchmark
from octobert.core.model_config import read_config
from octobert.core.results import PACKAGE_FILE, PackageManifest
from octobert.core.session import SessionEntries
from octobert.core.settings import GOALS, Goal, Tried, Tuned
from octobert.data import readers
from octobert.data.tokenization import Encoded, Tokenizer, longest
from octobert.evaluation import benchmarking, candidates, latency, tuning
from octobert.evaluation.benchmarking import BenchmarkResult
from octobert.evaluation.candidates import Candidate
from octobert.inference import tuned_file
from octobert.inference.package_files import read_manifest
from octobert.targets import runtimes
from octobert.tasks import rebuild

# Sequence length of a benchmark, in tokens, where the models allow it.
_DEFAULT_TOKENS = 128
OnProgress = Callable[[str, int, int], None]


def benchmark_packages(
    folders: Sequence[Path],
    settings: Benchmark,
    *,
    devices: Sequence[str] = (),
    data: Path | None = None,
    on_progress: OnProgress | None = None,
) -> BenchmarkResult:
    """Time packages and the float models in them, each in a process of its own.

    Args:
        folders: Packages.
        settings: What is timed, and how. Default length: 128, or the shortest limit of the models.
        devices: Devices to open the models on, one after another, for OpenVINO. Default: that of each target.
        data: File of rows that are also timed, at their own lengths.
        on_progress: Called with what is timed, the rounds done, and all rounds.

    Raises:
        OctobertError: A folder is not a package, a length is too long for a model, or a runtime fails.
    """
    models, rivals = _with_float_models(folders, devices)
    limit = min(longest(folder) for folder in folders)
    chosen = settings.sequence if "sequence" in settings.model_fields_set else (min(_DEFAULT_TOKENS, limit),)
    settings = settings.model_copy(update={"sequence": (*chosen, "data") if data else chosen})
    latency.check_lengths(settings, limit)
    rows, tokenizer = _rows_of(folders[0], data)
    vocabulary = read_config(folders[0]).get("vocab_size") or 1000
    shapes = latency.workloads_of(settings, rows, tokenizer.pad_id, vocabulary, seed=0)
    return benchmarking.benchmark(models, shapes, settings, rivals, on_progress=on_progress)


def _with_float_models(folders: Sequence[Path], devices: Sequence[str]) -> tuple[list[Candidate], dict[str, tuple[str, ...]]]:
    """(each package and, once each, the float models in them; package → the float models that it is compared with).

    Each is there once for each device.
    """
    models: dict[str, Candidate] = {}
    rivals: dict[str, tuple[str, ...]] = {}
    for device in devices or (None,):
        on = f" on {device}" if device else ""
        for folder in folders:
            manifest = read_manifest(folder)
            if device:
                runtimes.load(targets.load(manifest.target).CAPABILITIES.runtime).check_device(device)
            floats = [_float_model(name, folder, manifest, models, device) for name in candidates.float_forms(manifest.target)]
            models |= {model.title: model for model in floats}
            label = f"{manifest.target}{on}" if f"{manifest.target}{on}" not in models else f"{folder}{on}"
            models[label] = Candidate(
                name=manifest.target,
                path=str(targets.load(manifest.target).model_file(folder)),
                head=manifest.task.head,
                label=label,
                entries=manifest.session,
                chosen=device,
            )
            rivals[label] = tuple(model.title for model in floats)
    return list(models.values()), rivals


def _float_model(
    name: str, folder: Path, manifest: PackageManifest, models: Mapping[str, Candidate], device: str | None
) -> Candidate:
    """The float model of a package as a candidate: that of an earlier package if it is the same model."""
    content = manifest.files["onnx/model.onnx"]
    baseline = candidates.float_baselines()[name]
    entries = manifest.session if baseline.target == manifest.target else SessionEntries()
    known = (name, content, entries, device)
    same = next((each for each in models.values() if (each.name, each.content, each.entries, each.chosen) == known), None)
    title = f"{name} on {device}" if device else name
    return same or Candidate(
        name=name,
        path=str(folder / "onnx" / "model.onnx"),
        head=manifest.task.head,
        label=title if title not in models else f"{folder}: {title}",
        content=content,
        entries=entries,
        chosen=device,
    )


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
