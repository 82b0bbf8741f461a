"""How long heads and neurons take on a target: models in which all layers have one kind of sublayer at a level, timed in turn
with the whole model.

The last layer is timed apart, and stays whole otherwise: where a head reads the first token only, it computes less, and without
its attention so would all layers before it. The others change together, so that a difference is the sum over them and stands
out of the noise. A model is written, timed and deleted in a group of a few, each group together with the whole model. A time is
the median over the rounds of its ratio to the whole model in the same round. Smallest times kept the luck of single rounds: in
80 rounds on two cores they did not fall with the heads everywhere, and these ratios did.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from octobert.core.estimate import Estimate
from octobert.core.pruning import LevelTimes, SublayerKind
from octobert.core.session import Feeds, Session
from octobert.evaluation import statistics
from octobert.evaluation.latency import Workload
from octobert.evaluation.worker import OnProgress

# Levels of each kind that are timed, the whole one not counted; times between them are interpolated.
TIMED = 12
# Seconds of timing, and the fewest rounds of each group.
SECONDS, ROUNDS = 40.0, 10
# Seconds of timing of one model against the whole one; as many again, up to so many times, until the interval of the speedup
# is so narrow, as a share of it.
SECONDS_AGAINST, TIMES_AGAINST, NARROW = 8.0, 4, 0.03
# Bytes of the float models of a group. A group is in memory together, in 8 bits and as the runtime keeps it.
_GROUP_BYTES = 2.5e9
# Runs of the whole model in a round: all others are compared with it.
_TIMES_WHOLE = 3
# A rise of the time towards fewer units that is within so many standard errors is noise.
_ERRORS = 2.0
# Seconds before a model runs: threads of the model before it spin for some milliseconds.
_PAUSE = 0.01


class Cut(NamedTuple):
    """A model that is timed.

    Args:
        kind: of the sublayers that are cut.
        units: that are left.
        last: only those of the last layer are cut; otherwise all others.
    """

    kind: SublayerKind
    units: int
    last: bool = False


# Writes a model into a folder, and opens it; None for the whole model.
Open = Callable[[Cut | None, Path], Session]


def timed_levels(levels: Sequence[int], most: int = TIMED) -> list[int]:
    """The levels to time: all, or so many with equal distances. The last one is the whole sublayer, which needs no timing.

    Args:
        levels: ascending, with 0 and the whole sublayer.

    Example:
        >>> timed_levels([0, 64, 128, 192, 256], most=2)
        [0, 128]
    """
    below = list(levels[:-1])
    if len(below) <= most:
        return below
    return [below[round(i * len(below) / most)] for i in range(most)]


def measure(
    opened: Open,
    levels: Mapping[SublayerKind, Sequence[int]],
    sublayers: Mapping[SublayerKind, tuple[int, int]],
    workloads: Sequence[Workload],
    *,
    size_bytes: int,
    seconds: float,
    seed: int = 0,
    on_progress: OnProgress = lambda *_: None,
) -> tuple[float, tuple[LevelTimes, ...]]:
    """Time the levels of all kinds.

    Args:
        opened: makes and opens the models that are timed.
        levels: kind → its levels, ascending, from 0 to the whole sublayer.
        sublayers: kind → how many sublayers of it there are before the last layer, and in it.
        workloads: what is timed; of several lengths the mean counts.
        size_bytes: of the float model, by which groups are formed.
        seconds: of timing; beside it, the models are written and opened.
        seed: of the order in each round.
        on_progress: called with what is done, the models done, and all models.

    Returns:
        (milliseconds of the whole model, mean over the workloads; times of one sublayer of each kind).

    Raises:
        TargetError: the target cannot open a model.
    """
    cuts = [
        Cut(kind, units)
        for kind, kind_levels in levels.items()
        for units in timed_levels(kind_levels)
    ]
    # Some units have to stay: without attention in the last layer, those before it would compute less too.
    cuts += [
        Cut(kind, kind_levels[1], last=True)
        for kind, kind_levels in levels.items()
        if all(sublayers[kind]) and len(kind_levels) > 2
    ]
    # Model → [halves of the rounds and all, workloads] time relative to the whole model of the same group.
    ratios: dict[Cut, np.ndarray] = {}
    feeds = [workload.rounds[0] for workload in workloads]
    most = max(2, int(_GROUP_BYTES / size_bytes))
    everywhere: list[np.ndarray] = []
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        whole = opened(None, Path(folder) / "whole")
        for start in range(0, len(cuts), most):
            on_progress("timing levels", start, len(cuts))
            group = cuts[start : start + most]
            with tempfile.TemporaryDirectory(dir=folder) as place:
                sessions = [
                    *[whole] * _TIMES_WHOLE,
                    *(opened(level, Path(place) / str(i)) for i, level in enumerate(group)),
                ]
                samples = interleaved(
                    sessions, feeds, seconds * len(group) / len(cuts), seed + start
                )
                del sessions
            # Of each half of the rounds and of all: what differs between halves is noise.
            parts = [
                samples[:, rounds] for rounds in (slice(0, None, 2), slice(1, None, 2), slice(None))
            ]
            medians = np.stack(
                [np.median(part / np.median(part[:_TIMES_WHOLE], axis=0), axis=1) for part in parts]
            )
            everywhere.append(np.median(samples[:_TIMES_WHOLE], axis=(0, 1)))
            ratios |= {cut: medians[:, place] for place, cut in enumerate(group, _TIMES_WHOLE)}
    by_workload = np.median(everywhere, axis=0)
    whole_ms = float(by_workload.mean())
    ms_of = {cut: (parts * by_workload).mean(axis=1) for cut, parts in ratios.items()}
    times = []
    for kind, every in levels.items():
        units, (before, last) = timed_levels(every), sublayers[kind]
        ms = np.array([*(ms_of[Cut(kind, count)] for count in units), [whole_ms] * 3])
        smooth = smoothed(ms[:, -1], np.abs(ms[:, 0] - ms[:, 1]) / 2)
        own_ms = np.maximum(smooth - smooth[0], 0.0) / (before or last)
        share = 1.0
        if (cut := Cut(kind, every[1], last=True)) in ms_of:
            saved = (whole_ms - ms_of[cut][-1]) / last
            expected = own_ms[-1] - np.interp(every[1], units, own_ms[:-1])
            share = float(np.clip(saved / max(expected, 1e-9), 0.0, 1.0))
        times.append(
            LevelTimes(kind=kind, units=(*units, every[-1]), ms=tuple(own_ms.tolist()), last=share)
        )
    return whole_ms, tuple(times)


def against(
    whole: Session, cut: Session, workloads: Sequence[Workload], *, seed: int = 0
) -> Estimate:
    """Return how many times as fast as the whole model a model is, timed in turn; of several workloads the mean counts."""
    feeds = [workload.rounds[0] for workload in workloads]
    times = np.empty((2, 0))
    for part in range(TIMES_AGAINST):
        more = interleaved([whole, cut], feeds, SECONDS_AGAINST, seed + part).mean(axis=2)
        times = np.concatenate([times, more], axis=1)
        speedup = statistics.speedup(times[1], times[0])
        if speedup.high - speedup.low <= NARROW * speedup.value:
            break
    return speedup


def interleaved(
    sessions: Sequence[Session], feeds: Sequence[Feeds], seconds: float, seed: int
) -> np.ndarray:
    """Time sessions in turn, in another order each round; before each timed run is an untimed one.

    Args:
        seconds: after which no other round begins, but for the fewest rounds that there are.

    Returns:
        [sessions, rounds, feeds] milliseconds.
    """
    chance, started = np.random.default_rng(seed), time.perf_counter()
    rounds: list[np.ndarray] = []
    while len(rounds) < ROUNDS or time.perf_counter() - started < seconds:
        round_ms = np.zeros((len(sessions), len(feeds)))
        for number, batch in enumerate(feeds):
            for place in chance.permutation(len(sessions)):
                time.sleep(_PAUSE)
                sessions[place].run(batch)
                began = time.perf_counter()
                sessions[place].run(batch)
                round_ms[place, number] = 1000 * (time.perf_counter() - began)
        rounds.append(round_ms)
    return np.stack(rounds, axis=1)


def smoothed(ms: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Times of ascending levels, in which neighbours that fall by no more than their noise are averaged. Steps stay.

    Args:
        ms: [levels] times.
        errors: [levels] their standard errors.

    Example:
        >>> smoothed(np.array([1.0, 3.0, 2.9, 5.0, 4.0]), np.array([0.1, 0.1, 0.1, 0.1, 0.1])).tolist()
        [1.0, 2.95, 2.95, 5.0, 4.0]
    """
    # Pools of neighbours: (sum of times, number, variance of the mean).
    pools: list[tuple[float, int, float]] = []
    for value, error in zip(ms.tolist(), errors.tolist(), strict=True):
        pools.append((value, 1, error**2))
        while len(pools) > 1:
            (left, n, a), (right, m, b) = pools[-2:]
            fall = left / n - right / m
            if not 0 < fall <= _ERRORS * math.sqrt(a + b):
                break
            pools[-2:] = [(left + right, n + m, (n * n * a + m * m * b) / (n + m) ** 2)]
    return np.concatenate([np.full(count, total / count) for total, count, _ in pools])
