"""Candidates take turns in rounds, so that changes of the machine hit all alike, and samples of a round can be compared.

What a turn does is the caller's, pauses and untimed runs included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

Taker = TypeVar("Taker")
Sample = TypeVar("Sample")
# Rounds before the number of rounds is fitted to a time limit, and the smallest number for a useful median.
_FIRST_ROUNDS = 3
_MIN_ROUNDS = 5
# Rounds that show that a candidate is hopelessly slow: fewer give no interval of 95 % for a median of ratios.
_TELLING_ROUNDS = 6


def interleave(
    candidates: Sequence[Taker],
    work: Callable[[Taker, int], Sample],
    rounds: int,
    *,
    shuffled: bool = False,
    seconds: float = math.inf,
    hopeless: float = math.inf,
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
        hopeless: a candidate whose samples, which are times then, are above this factor of the fastest one's in each of the
            first six rounds takes no more turns.
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
    while done < rounds:
        turned = running[::-1] if done % 2 else running
        for index in generator.permutation(running) if shuffled else turned:
            samples[index].append(work(candidates[index], done))
        done += 1
        if done == _TELLING_ROUNDS and hopeless < math.inf:
            times = np.array(samples)
            # One candidate: the fastest of each round would be the one that other programs disturbed least.
            fastest = times[np.median(times, axis=1).argmin()]
            running = np.flatnonzero((times <= hopeless * fastest).any(axis=1)).tolist()
        if done == _FIRST_ROUNDS:
            per_round = (time.perf_counter() - started) / done
            rounds = int(min(rounds, max(_MIN_ROUNDS, seconds / per_round)))
        on_round(done, rounds)
    return samples
