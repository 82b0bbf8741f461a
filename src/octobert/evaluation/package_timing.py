"""Time finished models on this machine: a benchmark of models and their float models, and the search for fast settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octobert import targets
from octobert.config.measuring import Benchmark
from octobert.core.session import GOALS, Goal, Tried, Tuned
from octobert.data.tokenization import Encoded
from octobert.evaluation import benchmarking, candidates, latency, tuning
from octobert.evaluation.benchmarking import BenchmarkResult
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.packages import rows_of
from octobert.inference import tuned_file
from octobert.inference.opened import Opened
from octobert.targets import runtimes
from octobert.tasks import files_of

# Sequence length of a benchmark, in tokens, where the models allow it.
_DEFAULT_TOKENS = 128
# Of a file that does not say its limit, and without a config: token ids stay below the second.
_UNKNOWN_LIMIT, _FEW_IDS = 2**20, 100
OnProgress = Callable[[str, int, int], None]


def benchmark_models(
    given: Sequence[Opened],
    settings: Benchmark,
    *,
    devices: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> BenchmarkResult:
    """Time finished models and their float models, each in a process of its own.

    Args:
        given: The models.
        settings: What is timed, and how. Default length: 128, or the shortest limit of the models.
        devices: Devices to open the models on, one after another, for OpenVINO. Default: that of each target.
        data: Rows that are also timed, at their own lengths: see `packages.rows_of`.
        on_progress: Called with what is timed, the rounds done, and all rounds.

    Raises:
        OctobertError: A length is too long for a model, rows cannot be read, or a runtime fails.
    """
    models, rivals, sources = _with_float_models(given, devices)
    limit = min(
        (model.longest for model in given if model.longest is not None), default=_UNKNOWN_LIMIT
    )
    chosen = (
        settings.sequence
        if "sequence" in settings.model_fields_set
        else (min(_DEFAULT_TOKENS, limit),)
    )
    settings = settings.model_copy(update={"sequence": (*chosen, "data") if data else chosen})
    latency.check_lengths(settings, limit)
    rows, pad_id = ([], 0) if data is None else _rows_of(given[0], data)[:2]
    vocabulary = min(model.vocabulary or _FEW_IDS for model in given)
    shapes = latency.workloads_of(settings, rows, pad_id, vocabulary, seed=0)
    result = benchmarking.benchmark(models, shapes, settings, rivals, on_progress=on_progress)
    reported = {footprint.candidate: footprint.precision for footprint in result.footprints}
    precisions = {label: model.precision(reported[label]) for label, model in sources.items()}
    return result.model_copy(update={"precisions": precisions})


def _with_float_models(
    given: Sequence[Opened], devices: Sequence[str]
) -> tuple[list[Candidate], dict[str, tuple[str, ...]], dict[str, Opened]]:
    """(each model and, once each, their float models; name → the float models that a model is compared with; name → model).

    Each is there once for each device.
    """
    models: dict[str, Candidate] = {}
    rivals: dict[str, tuple[str, ...]] = {}
    sources: dict[str, Opened] = {}
    for device in devices or (None,):
        on = f" on {device}" if device else ""
        for model in given:
            if device:
                runtimes.load(targets.load(model.target).CAPABILITIES.runtime).check_device(device)
            forms = candidates.float_forms(model.target) if model.floating is not None else ()
            floats = [_float_model(name, model, models, device) for name in forms]
            models |= {known.title: known for known in floats}
            label = (
                f"{model.name}{on}" if f"{model.name}{on}" not in models else f"{model.path}{on}"
            )
            models[label] = candidates.candidate_of(model, label, device)
            rivals[label], sources[label] = tuple(known.title for known in floats), model
    return list(models.values()), rivals, sources


def _float_model(
    name: str, model: Opened, models: Mapping[str, Candidate], device: str | None
) -> Candidate:
    """The float model of a model as a candidate: that of an earlier one if it is the same."""
    title = f"{name} on {device}" if device else name
    floating = candidates.float_of(
        model, name, title if title not in models else f"{model.path}: {title}", device
    )
    assert floating is not None
    return next((known for known in models.values() if _same(known, floating)), floating)


def _same(one: Candidate, other: Candidate) -> bool:
    """Whether two candidates are one float model, opened in one way."""
    if (one.name, one.entries, one.chosen) != (other.name, other.entries, other.chosen):
        return False
    return one.path == other.path or one.content == other.content is not None


def tune_model(
    given: Opened,
    data: Mapping[str, Any],
    *,
    goals: Sequence[Goal] = GOALS,
    trials: int = 20,
    minutes: float = 5,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> tuple[Tuned, ...]:
    """Search for the fastest settings of a model on this machine, and store them in its package, or beside its file.

    Args:
        given: The model.
        data: Rows; the search times their lengths. See `packages.rows_of`.
        goals: What to tune for; one search each.
        trials: Settings that each search tries.
        minutes: Time limit of each search, without its final comparison.
        seed: Seed of the sampled rows and of the search.
        on_progress: Called with what is tuned, the trials done, and all trials.

    Raises:
        OctobertError: The rows cannot be read, the results cannot be stored, or optuna is not installed.
    """
    model = candidates.candidate_of(given)
    rows, pad_id, longest = _rows_of(given, data)
    # What prevents storing the results is an error before the search, not after it.
    tuned_file.read_tuned(given.path, targets.load(given.target).RUNTIME_OPTIONS)
    tuned_file.check_writable(given.path)
    results = []
    for goal in sorted(set(goals)):

        def on_trial(number: int, _: Tried, what: str = f"tuning for {goal}") -> None:
            if on_progress:
                on_progress(what, number, trials)

        search: dict[str, Any] = {
            "trials": trials,
            "minutes": minutes,
            "seed": seed,
            "on_trial": on_trial,
        }
        results.append(tuning.tune(model, rows, pad_id, goal=goal, longest=longest, **search))
        tuned_file.write_tuned(given.path, results[-1])
    return tuple(results)


def _rows_of(model: Opened, data: Mapping[str, Any]) -> tuple[list[Encoded], int, int]:
    """(rows, tokenized as a model takes them; the id of its padding token; its limit in tokens)."""
    task = model.rebuilt()
    tokenizer = model.tokenizer(task)
    where, rows = rows_of(data, (), files_of(model.facts().name))
    texts = task.inputs(rows, where=where)
    return list(task.encode(tokenizer, texts).flat), tokenizer.pad_id, tokenizer.max_length
