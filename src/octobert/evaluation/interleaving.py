"""Candidates take turns in rounds, so that changes of the machine hit all alike, and samples of a round can be compared.

What a turn does is the caller's, pauses and untimed runs included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import numpy as np

from octobert.core.estimate import quantile

Taker = TypeVar("Taker")
Sample = TypeVar("Sample")
# Who goes on: called with the samples so far and the candidates that take turns, after each round.
Stays = Callable[[list[list[Sample]], list[int]], Iterable[int]]
# Rounds before the number of rounds is fitted to a time limit, and the smallest number for a useful median.
_FIRST_ROUNDS = 3
_MIN_ROUNDS = 5
# Rounds that show that a candidate is hopelessly slow: fewer give no interval of 95 % for a median of ratios.
_TELLING_ROUNDS = 6
# Rounds after which intervals are looked at, each a quarter more than the one before. An interval that is narrow by chance ends
# a measurement, which costs confidence: one of 97.5 % has to be narrow for one of 95 % to be told (docs/evidence/verdicts.md).
_LOOKS = frozenset(math.ceil(8 * 1.25**look) for look in range(40))
_STRICT = 2.24


def interleave(
    candidates: Sequence[Taker],
    work: Callable[[Taker, int], Sample],
    rounds: int,
    *,
    shuffled: bool = False,
    seconds: float = math.inf,
    stays: Stays[Sample] | None = None,
    on_round: Callable[[int, int], None] = lambda *_: None,
) -> list[list[Sample]]:
    """Let each candidate take one turn per round.

    Args:
        candidates: that take turns.
        work: (candidate, number of the round from 0) → sample: one turn.
        rounds: of turns.
        shuffled: a random order in each round, for many rounds: no candidate always follows the same one. Otherwise the order
            is turned round (A B, B A, …): also in a few rounds, a machine that becomes slower or faster hits all alike.
        seconds: time limit. If `rounds` would take longer, judged by the first three, fewer, but at least five.
        stays: says which candidates take more turns; None for all. The rounds end with the last of them.
        on_round: called after each round with the rounds done and all rounds.

    Returns:
        the samples of each candidate, round by round.

    Example:
        >>> interleave("AB", lambda name, number: f"{name}{number}", 2)
        [['A0', 'A1'], ['B0', 'B1']]
    """
    generator, started = np.random.default_rng(0), time.perf_counter()
    samples: list[list[Sample]] = [[] for _ in candidates]
    running, done = list(range(len(candidates))), 0
    while running and done < rounds:
        turned = running[::-1] if done % 2 else running
        for index in generator.permutation(running) if shuffled else turned:
            samples[index].append(work(candidates[index], done))
        done += 1
        if stays is not None:
            running = list(stays(samples, running))
        if done == _FIRST_ROUNDS:
            per_round = (time.perf_counter() - started) / done
            rounds = int(min(rounds, max(_MIN_ROUNDS, seconds / per_round)))
        on_round(done, rounds)
    return samples


def unless_hopeless(factor: float) -> Stays[float]:
    """Return who goes on: not who takes more than this factor of the fastest one's time in each of the first six rounds."""

    def stays(samples: list[list[float]], running: list[int]) -> list[int]:
        if len(samples[running[0]]) != _TELLING_ROUNDS:
            return running
        times = np.array([samples[index] for index in running])
        # One candidate: the fastest of each round would be the one that other programs disturbed least.
        fastest = times[np.median(times, axis=1).argmin()]
        slow = (times > factor * fastest).all(axis=1)
        return [index for index, is_slow in zip(running, slow, strict=True) if not is_slow]

    return stays


def until_narrow(pairs: Collection[tuple[int, int]], within: float) -> Stays[float]:
    """Return who goes on: all, until the ratios of their times are known, and then nobody.

    Rounds may have rows of their own, so that those who take part in other rounds are not comparable.

    Args:
        pairs: of candidates that are compared.
        within: a ratio is known when its interval reaches no further than this share of it.
    """

    def stays(samples: list[list[float]], running: list[int]) -> list[int]:
        is_look = len(samples[0]) in _LOOKS
        known = is_look and bool(pairs) and all(is_known(samples, *pair) for pair in pairs)
        return [] if known else running

    def is_known(samples: list[list[float]], one: int, other: int) -> bool:
        ratio = quantile((np.array(samples[one]) / samples[other]).tolist(), reach=_STRICT)
        return max(ratio.high - ratio.value, ratio.value - ratio.low) <= within * ratio.value

    return stays
