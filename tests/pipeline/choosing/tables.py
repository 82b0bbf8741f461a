"""Trials on tables of known times and drops, measured with noise, for tests of searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octobert.config.choosing import Limit
from octobert.core.estimate import Estimate
from octobert.core.selection import Variant, VariantResult
from octobert.evaluation.statistics import percentile
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

    def __init__(
        self,
        truths: dict[str, Truth],
        wanted: Sequence[Limit],
        seed: int,
        targets: set[str] | None = None,
    ) -> None:
        self.truths = {REFERENCE.name: Truth(1.0, 0.0), **truths}
        self.reference, self.metric, self.limits, self.rows = REFERENCE, METRIC, tuple(wanted), 500
        self.about_time, self.at_once = True, 1
        self.seconds, self._random = 0.0, np.random.default_rng(seed)
        # What the final run takes, and trials before the first one of their kind.
        self.final_seconds, self.expected = 0.0, {"judge": 8.0, "race": 0.04}
        self.races: list[dict[str, np.ndarray]] = []
        self._judged: dict[str, Estimate] = {REFERENCE.name: Estimate(value=0.0, low=0.0, high=0.0)}
        self._made: set[str] = set()
        named = targets or {name.split()[0] for name in self.truths}
        self.run = type("Run", (), {"recipe": type("Recipe", (), {"targets": named})})

    def make(self, variants: Sequence[Variant], *, draft: bool = False) -> list[Variant]:
        self.seconds += 4.0 * len({v.name for v in variants} - self._made)
        self._made |= {v.name for v in variants}
        return list(variants)

    def race(self, variants: Sequence[Variant], rounds: int) -> None:
        names = [REFERENCE.name, *(v.name for v in variants if v != REFERENCE)]
        # Texts have different lengths, and all models of a round are equally disturbed by other programs.
        common = self._random.lognormal(0, 0.5, rounds)
        own = {
            n: self.truths[n].time * common * self._random.lognormal(0, TIME_NOISE, rounds)
            for n in names
        }
        self.races.append(own)
        self.seconds += 1.5 * len(names) + sum(float(times.sum()) for times in own.values()) * 0.02

    def judge(self, variants: Sequence[Variant]) -> None:
        for variant in variants:
            if variant.name not in self._judged:
                value = self.truths[variant.name].drop + self._random.normal(0, DROP_NOISE)
                self._judged[variant.name] = Estimate(
                    value=value, low=value - 2 * DROP_NOISE, high=value + 2 * DROP_NOISE
                )
                self.seconds += 8.0

    def known(self, variants: Sequence[Variant]) -> int:
        return sum(
            v.name in self._judged or any(v.name in race for race in self.races) for v in variants
        )

    def ratio(self, variant: Variant, other: Variant) -> Estimate:
        both = [race for race in self.races if variant.name in race and other.name in race]
        if not both:
            own, theirs = self.ratio(variant, REFERENCE), self.ratio(other, REFERENCE)
            return own.over(theirs)
        times = both[-1]
        return percentile(times[variant.name] / times[other.name], 50, seed=0)

    def found(self, variant: Variant) -> VariantResult:
        drop, timed = (
            self._judged.get(variant.name),
            any(variant.name in race for race in self.races),
        )
        ratio = self.ratio(variant, REFERENCE) if timed else None
        size = Estimate(
            value=self.truths[variant.name].size,
            low=self.truths[variant.name].size,
            high=self.truths[variant.name].size,
        )
        figures = {"size": size} | ({"latency": ratio} if ratio else {})
        found = VariantResult(
            variant=variant, state="not tried", ratio=ratio, time_ms=ratio, figures=figures, rows=self.rows,
            drops={METRIC: drop} if drop else {}, values={METRIC: 0.85 - drop.value} if drop else {},
        )  # fmt: skip
        reference = found if variant == REFERENCE else self.found(REFERENCE)
        problems = limits.missed(self.limits, found, reference, METRIC)
        if problems:
            return found.model_copy(update={"state": "excluded", "checks": problems})
        return found.model_copy(update={"state": "admissible" if drop and timed else "not tried"})


def variant(name: str) -> Variant:
    return Variant(name=name, target=name.split()[0], precision="f32" if "f32" in name else "int8")
