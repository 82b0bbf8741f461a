"""How a finished model is best opened on this machine: threads, streams, tokens of a run, settings of its runtime.

Candidates are drawn by Optuna. Each is opened in a process of its own beside one that has the defaults, and both do the same
work in turn, on rows of the user's own lengths; what counts is the ratio of each pair of times, so that drift of the machine
hits both alike. The best few meet the defaults again, over many rounds, and the best takes their place only if the whole
95 % interval of its ratio says that it is faster by more than `MARGIN`. Otherwise the defaults stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from octobert.core import environment, plugins
from octobert.core.errors import OctobertError, TargetError
from octobert.core.measurements import Score
from octobert.core.session import Feeds, RuntimeOption
from octobert.core.settings import MAX_RUN_TOKENS, Goal, Setting, Tried, Tuned, default_setting
from octobert.data.tokenization import Encoded
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.latency import Worker
from octobert.evaluation.statistics import score
from octobert.inference.batching import Batch, make_batches

# Faster by less is not worth settings that nobody else uses.
MARGIN = 0.01
# Rows that are worked on: one by one in a round for latency, all together for throughput.
ROWS = {"latency": 8, "throughput": 96}
_FIRST_ROUNDS, _ROUNDS, _FINAL_ROUNDS, _FINALISTS = 3, 7, 25, 3
_RATIO = "ratio to the defaults"
# A candidate that is slower by more in each of the first rounds is left.
_HOPELESS = 1.1


def tune(
    candidate: Candidate,
    rows: Sequence[Encoded],
    pad_id: int,
    *,
    goal: Goal,
    longest: int,
    trials: int = 20,
    minutes: float = 5.0,
    seed: int = 0,
    on_trial: Callable[[int, Tried], None] | None = None,
) -> Tuned:
    """Search for what is faster than the defaults.

    Args:
        candidate: the finished model.
        rows: of the user's own lengths.
        longest: row that the model takes.
        trials, minutes: whichever ends first; the last comparison comes on top.

    Raises:
        TargetError: Optuna is not installed, or the model cannot be opened with the defaults.
    """
    try:
        import optuna
    except ImportError as error:
        raise TargetError("tuning needs the package optuna", fix="pip install 'octobert[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chosen = np.random.default_rng(seed).permutation(len(rows))[: ROWS[goal]]
    work = _Work([rows[i] for i in chosen], pad_id, goal, longest)
    started, tried = time.monotonic(), dict[str, Tried]()
    default = default_setting(goal)
    space = space_of(candidate.name, goal)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    with _Open(candidate, default, work) as base:
        for number in range(trials):
            if time.monotonic() - started > 60 * minutes:
                break
            trial = study.ask()
            setting = _drawn(trial, space, default)
            key = setting.model_dump_json()
            if setting == default:
                tried[key] = Tried(setting=setting, ratio=1.0)
            elif key not in tried:
                tried[key] = _tried(candidate, setting, work, base)
                if on_trial:
                    on_trial(number + 1, tried[key])
            one = tried[key]
            if one.ratio is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, one.ratio)
        ranked = sorted((t for t in tried.values() if t.ratio is not None), key=lambda t: t.ratio or 0.0)
        finalists = [t.setting for t in ranked if t.setting != default and t.ratio < 1.0][:_FINALISTS]  # type: ignore[operator]
        found = [(setting, _final(candidate, setting, work, base)) for setting in finalists]
        base_ms = float(np.median(base.times))
    same = Score(metric=_RATIO, value=1.0, low=1.0, high=1.0, rows=0)
    setting, ratio = min(found, key=lambda one: one[1].value, default=(default, same))
    if ratio.high >= 1 - MARGIN:
        setting, ratio = default, same
    return Tuned(
        goal=goal,
        setting=setting,
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        default_ms=base_ms,
        rows=len(chosen),
        tried=tuple(tried.values()),
    )


def space_of(target: str, goal: Goal) -> dict[str, tuple[RuntimeOption, ...]]:
    """What may be set otherwise, the default first."""
    cores = environment.cores()
    halves = {cores >> shift for shift in range(cores.bit_length())} - {0}
    space: dict[str, tuple[RuntimeOption, ...]] = dict(getattr(plugins.load("targets", target), "RUNTIME_OPTIONS", {}))
    if goal == "latency":
        return {"threads": (0, *sorted(halves, reverse=True)), **space}
    # Streams share the cores evenly.
    return {"streams": tuple(sorted(halves, reverse=True)), "tokens": (MAX_RUN_TOKENS, 512, 1024, 4096), **space}


def _drawn(trial: Any, space: Mapping[str, tuple[RuntimeOption, ...]], default: Setting) -> Setting:
    """A setting as Optuna draws it; what is as by default is not named."""
    drawn = {name: values[trial.suggest_int(name, 0, len(values) - 1)] for name, values in space.items()}
    runtime_options = {n: v for n, v in drawn.items() if n not in Setting.model_fields and v != space[n][0]}
    streams = int(drawn.get("streams", default.streams))
    threads = int(drawn.get("threads", default.threads))
    return Setting(
        streams=streams, threads=threads, tokens=int(drawn.get("tokens", default.tokens)), runtime_options=runtime_options
    )


class _Work:
    """What every candidate does in a round."""

    def __init__(self, rows: Sequence[Encoded], pad_id: int, goal: Goal, longest: int) -> None:
        self._rows, self._pad_id, self._goal, self.longest = rows, pad_id, goal, longest

    def of(self, setting: Setting, worker: Worker) -> list[Feeds]:
        """The runs of one candidate."""
        lengths = [len(row) for row in self._rows]
        if self._goal == "latency":
            batches = [Batch([index], length) for index, length in enumerate(lengths)]
        else:
            cost = worker.ask("cost", self.longest)
            batches = make_batches(lengths, cost, max_length=self.longest, streams=setting.streams, tokens=setting.tokens)
        return [batch.feeds(self._rows, self._pad_id) for batch in batches]


class _Open:
    """A candidate's process with its work, warmed up.

    Attributes:
        times: ms of every round so far.
    """

    def __init__(self, candidate: Candidate, setting: Setting, work: _Work) -> None:
        self._worker = Worker(candidate.model_copy(update={"options": setting.options()}))
        self.times: list[float] = []
        try:
            self._worker.opened()
            self._feeds = work.of(setting, self._worker)
            # Shapes that a runtime has not seen cost extra, once.
            self._worker.ask("work", self._feeds)
        except BaseException:
            self._worker.stop()
            raise

    def __enter__(self) -> _Open:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.stop()

    def ms(self) -> float:
        """One round."""
        self.times.append(self._worker.ask("work", self._feeds))
        return self.times[-1]


def _ratios(one: _Open, base: _Open, rounds: int) -> list[float]:
    """Times of one over times of the other, in turn, the order changing every round."""
    found: list[float] = []
    for index in range(rounds):
        if index % 2:
            other, own = base.ms(), one.ms()
        else:
            own, other = one.ms(), base.ms()
        found.append(own / other)
        if index + 1 == _FIRST_ROUNDS and min(found) > _HOPELESS:
            break
    return found


def _tried(candidate: Candidate, setting: Setting, work: _Work, base: _Open) -> Tried:
    try:
        with _Open(candidate, setting, work) as one:
            return Tried(setting=setting, ratio=float(np.median(_ratios(one, base, _ROUNDS))))
    except OctobertError as error:
        return Tried(setting=setting, ratio=None, problem=str(error))


def _final(candidate: Candidate, setting: Setting, work: _Work, base: _Open) -> Score:
    """The median ratio to the defaults over many rounds, with its interval."""
    with _Open(candidate, setting, work) as one:
        found = score(_RATIO, lambda ratios: float(np.median(ratios)), np.array(_ratios(one, base, _FINAL_ROUNDS)), seed=0)
    assert found is not None
    return found
