"""The automatic search on tables of known times and drops, measured with noise: no model runs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from octobert.config.choosing import Choose, Limit
from octobert.core.selection import Figure, Found, Variant
from octobert.evaluation.statistics import percentile
from octobert.pipeline.choosing import choose as module
from octobert.pipeline.choosing import limits

# Standard deviation of the logarithm of one time on a busy machine, and of a drop on a few hundred rows.
TIME_NOISE, DROP_NOISE = 0.1, 0.002
REFERENCE = Variant(name="ort-cpu f32", target="ort-cpu", precision="f32")
METRIC = "accuracy"


@dataclass
class Truth:
    """What is true of one variant: its time relative to the reference, and its drop."""

    time: float
    drop: float
    size: float = 1.0


class Table:
    """Trials on a table. Seconds pass as they would: making, timing and judging cost what they cost for a small encoder."""

    def __init__(self, truths: dict[str, Truth], wanted: Sequence[Limit], seed: int) -> None:
        self.truths = {REFERENCE.name: Truth(1.0, 0.0), **truths}
        self.reference, self.metric, self.limits, self.rows = REFERENCE, METRIC, tuple(wanted), 500
        self.about_time = True
        self.seconds, self._random = 0.0, np.random.default_rng(seed)
        self._races: list[dict[str, np.ndarray]] = []
        self._judged: dict[str, Figure] = {REFERENCE.name: Figure(value=0.0, low=0.0, high=0.0)}
        self._made: set[str] = set()
        self.facts = type("Facts", (), {"recipe": None})

    def make(self, variants: Sequence[Variant], *, draft: bool = False) -> list[Variant]:
        self.seconds += 4.0 * len({v.name for v in variants} - self._made)
        self._made |= {v.name for v in variants}
        return list(variants)

    def race(self, variants: Sequence[Variant], rounds: int) -> None:
        names = [REFERENCE.name, *(v.name for v in variants if v != REFERENCE)]
        # Texts have different lengths, and all models of a round are equally disturbed by other programs.
        common = self._random.lognormal(0, 0.5, rounds)
        own = {n: self.truths[n].time * common * self._random.lognormal(0, TIME_NOISE, rounds) for n in names}
        self._races.append(own)
        self.seconds += 1.5 * len(names) + sum(float(times.sum()) for times in own.values()) * 0.02

    def judge(self, variants: Sequence[Variant]) -> None:
        for variant in variants:
            if variant.name not in self._judged:
                value = self.truths[variant.name].drop + self._random.normal(0, DROP_NOISE)
                self._judged[variant.name] = Figure(value=value, low=value - 2 * DROP_NOISE, high=value + 2 * DROP_NOISE)
                self.seconds += 8.0

    def known(self, variants: Sequence[Variant]) -> int:
        return sum(v.name in self._judged or any(v.name in race for race in self._races) for v in variants)

    def ratio(self, variant: Variant, other: Variant) -> Figure:
        both = [race for race in self._races if variant.name in race and other.name in race]
        if not both:
            own, theirs = self.ratio(variant, REFERENCE), self.ratio(other, REFERENCE)
            return Figure(value=own.value / theirs.value, low=own.low / theirs.high, high=own.high / theirs.low)
        times = both[-1]
        value, low, high = percentile(times[variant.name] / times[other.name], 50, seed=0)
        return Figure(value=value, low=low, high=high)

    def found(self, variant: Variant) -> Found:
        drop, timed = self._judged.get(variant.name), any(variant.name in race for race in self._races)
        ratio = self.ratio(variant, REFERENCE) if timed else None
        size = Figure(
            value=self.truths[variant.name].size, low=self.truths[variant.name].size, high=self.truths[variant.name].size
        )
        figures = {"size": size} | ({"latency": ratio} if ratio else {})
        found = Found(
            variant=variant, state="not tried", reason="", ratio=ratio, time_ms=ratio, figures=figures, rows=self.rows,
            drops={METRIC: drop} if drop else {}, values={METRIC: 0.85 - drop.value} if drop else {},
        )  # fmt: skip
        reference = found if variant == REFERENCE else self.found(REFERENCE)
        problems = limits.missed(self.limits, found, reference, METRIC)
        if problems:
            return found.model_copy(update={"state": "excluded", "reason": problems[0][0]})
        return found.model_copy(update={"state": "admissible" if drop and timed else "not tried"})


def variant(name: str) -> Variant:
    return Variant(name=name, target=name.split()[0], precision="f32" if "f32" in name else "int8")


@pytest.fixture
def search(monkeypatch):
    """Run a search over a table: first variants, what is faster than each, what is nearer to float than each."""

    def run(truths, first, faster=None, nearer=None, seed=0, **settings):
        faster, nearer = faster or {}, nearer or {}
        monkeypatch.setattr(module.space, "first", lambda _: [REFERENCE, *map(variant, first)])
        monkeypatch.setattr(module.space, "faster", lambda _, v: [variant(n) for n in faster.get(v.name, ())])
        monkeypatch.setattr(module.space, "nearer", lambda _, v, minutes: [variant(n) for n in nearer.get(v.name, ())])
        monkeypatch.setattr(module.space, "reach", lambda _, v: 1.3 if faster.get(v.name) else 1.0)
        chosen = Choose(**settings)
        table = Table(truths, chosen.limits, seed)
        found, ended = module.choose(table, chosen, lambda *_: None)
        return found, ended, table

    return run


@pytest.mark.parametrize("seed", range(6))
def test_the_winner_is_within_five_percent_of_the_best_that_keeps_the_limits(search, seed) -> None:
    """Random spaces of 30 variants, of which about half keep the limit; the time is a quarter of that for all of them."""
    random = np.random.default_rng(seed)
    first = [f"t{n} int8" for n in range(6)]
    faster = {name: [f"{name} p{k}" for k in range(4)] for name in first}
    nearer = {name: [f"{name} n{k}" for k in range(2)] for name in (*first, *(f for each in faster.values() for f in each))}
    truths = {name: Truth(float(random.uniform(0.25, 1.2)), float(random.choice([0.0, 0.004, 0.02, 0.05]))) for name in first}
    for name, others in faster.items():
        truths |= {
            n: Truth(truths[name].time * float(random.uniform(0.8, 1.1)), float(random.choice([0.002, 0.03]))) for n in others
        }
    for name, others in nearer.items():
        truths |= {n: Truth(truths[name].time, truths[name].drop * float(random.uniform(0.1, 1.0))) for n in others}
    found, _, table = search(truths, first, faster, nearer, seed, minutes=30)
    # Drops within the noise of the limit may be taken for either.
    able = [t.time for t in table.truths.values() if t.drop <= 0.01 - 2 * DROP_NOISE]
    assert found[0].state == "chosen"
    assert table.truths[found[0].variant.name].time <= 1.05 * min(able)
    assert table.truths[found[0].variant.name].drop <= 0.01 + 3 * DROP_NOISE
    every = 12.0 * len(table.truths) + sum(t.time for t in table.truths.values()) * 150 * 0.02
    assert table.seconds < every / 2


def test_float_wins_where_eight_bits_are_slower(search) -> None:
    truths = {"a f32": Truth(0.9, 0.0), "a int8": Truth(1.3, 0.0), "b int8": Truth(1.1, 0.0)}
    found, _, _ = search(truths, list(truths))
    assert (found[0].variant.name, found[0].state) == ("a f32", "chosen")


def test_between_equals_the_more_accurate_one_wins(search) -> None:
    found, _, _ = search(
        {"a int8": Truth(0.4, 0.008), "a bf16": Truth(0.402, 0.0)}, ["a int8", "a bf16"], limits={"max_drop": 0.02}
    )
    assert found[0].variant.name == "a bf16"


def test_a_model_that_loses_too_much_is_repaired_before_it_is_given_up(search) -> None:
    truths = {
        "a int8": Truth(0.3, 0.2),
        "a f32": Truth(0.8, 0.0),
        "a int8 mse": Truth(0.3, 0.1),
        "a int8 layers": Truth(0.4, 0.0),
    }
    found, _, _ = search(truths, ["a int8", "a f32"], nearer={"a int8": ["a int8 mse", "a int8 layers"]})
    assert found[0].variant.name == "a int8 layers"
    states = {each.variant.name: each.state for each in found}
    assert states["a int8"] == states["a int8 mse"] == "excluded"


def test_nothing_keeps_the_limits_so_the_nearest_is_taken(search) -> None:
    wanted = ({"max_drop": 0.01}, {"of": "latency", "at_most": 0.1})
    found, _, _ = search({"a int8": Truth(0.2, 0.0), "b int8": Truth(0.15, 0.0)}, ["a int8", "b int8"], limits=wanted)
    assert (found[0].variant.name, found[0].state) == ("b int8", "excluded")
    assert "latency" in found[0].reason


def test_a_search_without_time_still_gives_the_first_model_that_keeps_the_limits(search) -> None:
    truths = {"a int8": Truth(0.3, 0.0), "b int8": Truth(0.5, 0.0)}
    found, _, _ = search(truths, list(truths), minutes=0.01)
    assert found[0].state == "chosen"


def test_size_is_a_goal(search) -> None:
    truths = {"a int8": Truth(0.3, 0.0, 0.25), "a weights": Truth(1.0, 0.0, 0.2), "a f32": Truth(0.9, 0.0, 1.0)}
    found, _, _ = search(truths, list(truths), goal="size")
    assert found[0].variant.name == "a weights"


def test_a_metric_is_a_goal_within_a_limit_on_time(search) -> None:
    wanted = ({"of": "latency", "at_most": 0.5},)
    truths = {"a int8": Truth(0.3, 0.02), "b int8": Truth(0.42, 0.004), "a f32": Truth(0.9, 0.0)}
    found, _, _ = search(truths, list(truths), goal="metric", limits=wanted)
    assert found[0].variant.name == "b int8"
