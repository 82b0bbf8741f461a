"""Search for the fastest way to open a package on this machine: threads, streams, tokens per batch, runtime options.

Optuna proposes settings. Each is opened in its own process, next to a process with the defaults. Both do the same work in
turn, on rows of the user's own lengths. The score is the ratio of each pair of times, so changes of the machine hit both
alike. The best few are compared with the defaults again, over many rounds. The best one replaces the defaults only if the
whole 95 % interval of its ratio says that it is faster by more than `MARGIN`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octobert import targets
from octobert.core import environment
from octobert.core.errors import OctobertError, TargetError
from octobert.core.estimate import Estimate, quantile
from octobert.core.session import (
    MAX_RUN_TOKENS,
    Feeds,
    Goal,
    RuntimeOption,
    Setting,
    Tried,
    Tuned,
    default_setting,
)
from octobert.data.encoded import Encoded
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.interleaving import interleave
from octobert.evaluation.worker import Worker, working
from octobert.inference.batching import Batch, make_batches

# The batches of a round for a setting, whose process says what they cost.
_Work = Callable[[Setting, Worker], list[Feeds]]
# Smallest relative gain that is worth settings other than the defaults.
MARGIN = 0.01
# Rows of a round: run one by one for latency, all together for throughput.
ROWS = {"latency": 8, "throughput": 96}
_FIRST_ROUNDS, _MORE_ROUNDS, _FINAL_ROUNDS, _FINALISTS = 3, 4, 25, 3
# A setting that is slower by this factor in each of the first rounds is dropped.
_HOPELESS = 1.1


def optuna_for(what: str) -> Any:
    """Import Optuna, which says only errors from here on.

    Args:
        what: needs it, for the error.

    Raises:
        TargetError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise TargetError(
            f"{what} needs the package optuna", fix=environment.install("tune")
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


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
    """Search for settings that are faster than the defaults.

    Args:
        candidate: the quantized model.
        rows: tokenized rows of the user's own lengths.
        pad_id: id of the padding token.
        goal: `latency` or `throughput`.
        longest: the model's limit in tokens.
        trials, minutes: limits of the search; no trial begins after them. The final comparison comes on top.
        seed: of the sampled rows and of the search.
        on_trial: called after each trial with its number and result.

    Raises:
        TargetError: Optuna is not installed, or the model cannot be opened with the defaults.
    """
    optuna = optuna_for("tuning")
    chosen = np.random.default_rng(seed).permutation(len(rows))[: ROWS[goal]]
    work = functools.partial(_feeds, [rows[i] for i in chosen], pad_id, goal, longest)
    default = default_setting(goal)
    space = space_of(candidate.name, goal)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    # By their JSON, as mappings are no keys.
    tried: dict[str, Tried] = {}
    with _opened(candidate, default, work) as base:

        def objective(trial: Any) -> float | None:
            setting = _drawn(trial, space, default)
            config = setting.model_dump_json()
            if setting == default:
                tried[config] = Tried(setting=setting, ratio=1.0)
            if config not in tried:
                tried[config] = _tried(candidate, setting, work, base)
                if on_trial:
                    on_trial(trial.number + 1, tried[config])
            # Without a ratio the trial has failed.
            return tried[config].ratio

        study.optimize(objective, n_trials=trials, timeout=60 * minutes)
        results = tuple(tried.values())
        faster = [t for t in results if t.ratio is not None and t.ratio < 1.0]
        faster.sort(key=lambda t: t.ratio or 0.0)
        finalists = [t.setting for t in faster[:_FINALISTS]]
        finals = [(setting, _final(candidate, setting, work, base)) for setting in finalists]
        # Where every trial drew the default, nothing was timed yet.
        base_ms = float(np.median(base.times or [base.ms()]))
    same = Estimate.exactly(1.0)
    setting, ratio = min(finals, key=lambda result: result[1].value, default=(default, same))
    if ratio.high >= 1 - MARGIN:
        setting, ratio = default, same
    return Tuned(
        goal=goal,
        setting=setting,
        ratio=ratio,
        default_ms=base_ms,
        rows=len(chosen),
        tried=results,
    )


def space_of(target: str, goal: Goal) -> dict[str, tuple[RuntimeOption, ...]]:
    """Return the settings of the search: name → values, the default first.

    Args:
        target: plugin name.
        goal: `latency` or `throughput`.
    """
    cores = environment.cores()
    halves = {cores >> shift for shift in range(cores.bit_length())} - {0}
    space: dict[str, tuple[RuntimeOption, ...]] = dict(targets.load(target).runtime_options)
    if goal == "latency":
        return {"threads": (0, *sorted(halves, reverse=True)), **space}
    # Streams share the cores evenly.
    return {
        "streams": tuple(sorted(halves, reverse=True)),
        "tokens": (MAX_RUN_TOKENS, 512, 1024, 4096),
        **space,
    }


def _drawn(trial: Any, space: Mapping[str, tuple[RuntimeOption, ...]], default: Setting) -> Setting:
    """Return the setting that Optuna proposes. Options with their default value are left out."""
    drawn = {
        name: values[trial.suggest_int(name, 0, len(values) - 1)] for name, values in space.items()
    }
    return Setting(
        streams=int(drawn.get("streams", default.streams)),
        threads=int(drawn.get("threads", default.threads)),
        tokens=int(drawn.get("tokens", default.tokens)),
        runtime_options={
            n: v for n, v in drawn.items() if n not in Setting.model_fields and v != space[n][0]
        },
    )


def _feeds(
    rows: Sequence[Encoded],
    pad_id: int,
    goal: Goal,
    longest: int,
    setting: Setting,
    worker: Worker,
) -> list[Feeds]:
    """Return the batches of one round: single rows for latency, batched rows for throughput."""
    lengths = [len(row) for row in rows]
    if goal == "latency":
        batches = [Batch([index], length) for index, length in enumerate(lengths)]
    else:
        batches = make_batches(
            lengths,
            worker.ask("cost", longest),
            max_length=longest,
            streams=setting.streams,
            tokens=setting.tokens,
        )
    return [batch.feeds(rows, pad_id) for batch in batches]


@dataclass
class _Open:
    """A process with one setting and its work, warmed up.

    Args:
        times: ms of every round so far.
    """

    worker: Worker
    feeds: list[Feeds]
    times: list[float] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        """True if the process still runs."""
        return self.worker.runs

    def ms(self) -> float:
        """Run one round; return its time in milliseconds."""
        self.times.append(self.worker.ask("work", self.feeds))
        return self.times[-1]


@contextmanager
def _opened(candidate: Candidate, setting: Setting, work: _Work) -> Iterator[_Open]:
    """Open a candidate with a setting."""
    with working([candidate.replaced(options=setting.options())], threads=0, pause_ms=10) as (
        worker,
    ):
        feeds = work(setting, worker)
        # The first run of a shape takes longer.
        worker.ask("work", feeds)
        yield _Open(worker, feeds)


def _ratios(opened: _Open, base: _Open, rounds: int) -> list[float]:
    """Return the ratios of the two times in each round."""
    times = interleave((opened, base), lambda one, _: one.ms(), rounds)
    return [setting_ms / base_ms for setting_ms, base_ms in zip(*times, strict=True)]


def _tried(candidate: Candidate, setting: Setting, work: _Work, base: _Open) -> Tried:
    try:
        with _opened(candidate, setting, work) as opened:
            ratios = _ratios(opened, base, _FIRST_ROUNDS)
            if min(ratios) <= _HOPELESS:
                ratios += _ratios(opened, base, _MORE_ROUNDS)
        return Tried(setting=setting, ratio=float(np.median(ratios)))
    except OctobertError as error:
        # Without the defaults there is nothing to compare with, and it was not the setting that failed.
        if not base.runs:
            raise
        return Tried(setting=setting, ratio=None, problem=str(error))


def _final(candidate: Candidate, setting: Setting, work: _Work, base: _Open) -> Estimate:
    """Return the median ratio to the defaults over many rounds, with its interval."""
    with _opened(candidate, setting, work) as opened:
        return quantile(_ratios(opened, base, _FINAL_ROUNDS))
