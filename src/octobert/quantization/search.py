"""Accuracy-aware search: the fastest plan that meets a criterion on the task's metric, within a time limit.

A plan is divided into units, such as the Q, K and V projections of one layer. Units fall back to float (or 16 bits) in order of
output error per time saved. The search tries 1, 2, 4, … units until the criterion is met, bisects between the last two counts,
and then returns single units to 8 bits, those that save most time first, as long as the criterion is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from octobert.core.family import NORM_PARTS
from octobert.core.plan import Decision, DType, QuantPlan, Site
from octobert.core.results import Sensitivity, Trial

# Parts of a layer that form one unit, because a runtime fuses them or feeds them from one value. Other parts are units alone.
_UNITS = {
    **dict.fromkeys(("query", "key", "value"), "qkv"),
    **dict.fromkeys((*NORM_PARTS, "final_norm"), "residuals"),
}
_OUT_OF_TIME = "time limit reached"


@dataclass(frozen=True)
class Unit:
    """Sites that fall back together.

    Args:
        name: such as `layer 3 ffn_down`.
        kind: such as `ffn_down`; units of one kind take the same time.
        sites: the quantized sites of the unit.
    """

    name: str
    kind: str
    sites: tuple[Site, ...]


class Trials:
    """The plans that were tried, each once, by the units that fall back in them.

    Args:
        attempt: tries a plan, given the names of its units.
        seconds: time limit of all trials. One begins only if the longest so far would end within it; the first always begins.
        earlier: trials of an interrupted search, whose time counts.

    Attributes:
        results: names of units → trial, in the order of the trials.
        out_of_time: whether the time limit has kept a trial from beginning.
    """

    def __init__(
        self,
        attempt: Callable[[frozenset[str]], Trial],
        *,
        seconds: float,
        earlier: Iterable[Trial] = (),
    ) -> None:
        self.results = {frozenset(trial.fallback): trial for trial in earlier}
        self.out_of_time = False
        self._attempt, self._limit = attempt, seconds

    @property
    def seconds(self) -> float:
        """Seconds of all trials."""
        return sum(trial.seconds for trial in self.results.values())

    def result(self, names: frozenset[str]) -> Trial | None:
        """Return the trial of a plan, which is tried if it is new; None where there is no time for it."""
        if names in self.results:
            return self.results[names]
        longest = max((trial.seconds for trial in self.results.values()), default=None)
        if longest is not None and self.seconds + longest > self._limit:
            self.out_of_time = True
            return None
        self.results[names] = self._attempt(names)
        return self.results[names]


@dataclass(frozen=True)
class SearchOutcome:
    """The result of a search.

    Args:
        taken: the trial whose plan is used.
        met: whether it meets the criterion.
        ended: why the search ended.
    """

    taken: Trial
    met: bool
    ended: str


def units_of(plan: QuantPlan) -> list[Unit]:
    """Return the units of a plan."""
    groups: dict[tuple[int | None, str], list[Site]] = {}
    for site, _ in plan.quantized:
        groups.setdefault((site.layer, _UNITS.get(site.part, site.part)), []).append(site)
    return [
        Unit(kind if layer is None else f"layer {layer} {kind}", kind, tuple(sites))
        for (layer, kind), sites in groups.items()
    ]


def unit_errors(units: Sequence[Unit], sensitivity: Sensitivity) -> dict[str, float]:
    """Return unit → sum of the output errors of its values. The error of a value is divided among the units that read it."""
    errors = {value.value: value.output_error for value in sensitivity.values}
    readers: dict[str, int] = {}
    for unit in units:
        for value in {site.value for site in unit.sites}:
            readers[value] = readers.get(value, 0) + 1
    return {
        u.name: sum(errors.get(v, 0.0) / readers[v] for v in {s.value for s in u.sites})
        for u in units
    }


def fallback_order(
    units: Sequence[Unit], errors: Mapping[str, float], saving: Mapping[str, float]
) -> list[Unit]:
    """Return units by output error per time saved, in decreasing order. Units that save no time come first.

    Args:
        errors: name of a unit → output error.
        saving: kind of unit → time that 8 bits save on one unit.
    """
    floor = 1e-6 * max([*saving.values(), 1e-9])
    return sorted(units, key=lambda u: -errors[u.name] / max(saving.get(u.kind, 0.0), floor))


def with_fallback(
    plan: QuantPlan,
    units: Iterable[Unit],
    dtype: DType | None,
    because: str = "by the accuracy search",
) -> QuantPlan:
    """Return a plan whose `units` are in float.

    Args:
        dtype: a 16-bit type for the activations of the units instead, whose weights stay in 8 bits; None for float.
        because: why, for the report.
    """
    names = {site: f"{because} ({unit.name})" for unit in units for site in unit.sites}
    decisions = tuple(_decision_with_fallback(d, names.get(d.site), dtype) for d in plan.decisions)
    return plan.replaced(decisions=decisions)


def _decision_with_fallback(decision: Decision, why: str | None, dtype: DType | None) -> Decision:
    quantizer = decision.quantizer
    if why is None or quantizer is None:
        return decision
    if dtype is None:
        return decision.replaced(quantizer=None, reason=f"fallback to float {why}")
    if decision.site.is_weight:
        return decision
    wide = quantizer.replaced(dtype=dtype, symmetric=dtype == "int16")
    return decision.replaced(quantizer=wide, reason=f"fallback to 16 bits {why}")


def search(
    units: Sequence[Unit],
    saving: Mapping[str, float],
    trials: Trials,
    *,
    most: int,
) -> SearchOutcome:
    """Search for the fastest plan that meets the criterion.

    Args:
        units: in the order of `fallback_order`.
        saving: kind of unit → time that 8 bits save on one unit.
        trials: of the plans in which the units of these names fall back.
        most: largest number of units that may fall back.
    """
    names = [unit.name for unit in units]
    # The criterion is missed with the first `low` units in float, and met with the first `high`.
    low, high = -1, None
    count = 0
    while high is None and (trial := trials.result(frozenset(names[:count]))) is not None:
        if trial.met:
            high = count
        elif count >= most:
            break
        else:
            low, count = count, min(max(1, 2 * count), most)
    while high is not None and high - low > 1:
        count = (low + high) // 2
        trial = trials.result(frozenset(names[:count]))
        if trial is None:
            break
        low, high = (low, count) if trial.met else (count, high)
    if high:
        _return_to_8_bits(units[:high], saving, trials)
    return _outcome(trials)


def _return_to_8_bits(units: Sequence[Unit], saving: Mapping[str, float], trials: Trials) -> None:
    """Try to return single units to 8 bits, those that save most time first. One unit always stays in float."""
    fallback = frozenset(unit.name for unit in units)
    for unit in sorted(units, key=lambda u: -saving.get(u.kind, 0.0)):
        if saving.get(unit.kind, 0.0) <= 0 or len(fallback) == 1:
            continue
        trial = trials.result(fallback - {unit.name})
        if trial is None:
            break
        if trial.met:
            fallback -= {unit.name}


def _outcome(trials: Trials) -> SearchOutcome:
    """The fastest trial that meets the criterion, or the trial with the smallest drop if none does."""
    results = list(trials.results.values())
    met = [trial for trial in results if trial.met]
    if met:
        fastest = max(met, key=lambda trial: (trial.saved_ms, -trial.drop))
        ended = "no faster plan meets the criterion"
        return SearchOutcome(fastest, True, _OUT_OF_TIME if trials.out_of_time else ended)
    rows = max(trial.rows for trial in results)
    best = min(
        (trial for trial in results if trial.rows == rows),
        key=lambda trial: (trial.drop, -trial.saved_ms),
    )
    ended = "no plan meets the criterion"
    return SearchOutcome(best, False, _OUT_OF_TIME if trials.out_of_time else ended)
