"""Accuracy-aware search: the fastest plan that meets a criterion on the user's metric, within a time budget.

A plan in 8 bits is divided into units, the Q, K and V projections of one layer, say. Units step back in order of harm per time
saved: first 1, 2, 4, ... until the criterion is met, then between the last two counts, and then single units that save much
are put back into 8 bits as long as it stays met. Every trial is handed over as soon as it is done; given back, it is not made
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from octobert.core.family import NORM_PARTS
from octobert.core.plan import Decision, DType, QuantPlan, Site
from octobert.core.results import Sensitivity, Trial

# How the parts of a layer make units: what a runtime fuses or feeds from one value steps back together.
_UNITS = {
    **dict.fromkeys(("query", "key", "value"), "qkv"),
    **dict.fromkeys((*NORM_PARTS, "final_norm"), "residuals"),
}


@dataclass(frozen=True)
class Unit:
    """Sites that step back together.

    Args:
        name: such as `layer 3 ffn_down`.
        kind: such as `ffn_down`; units of one kind cost the same time.
        sites: the quantized ones.
    """

    name: str
    kind: str
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Outcome:
    """What a search took, and why it ended."""

    taken: Trial
    met: bool
    ended: str


def units_of(plan: QuantPlan) -> list[Unit]:
    """The units of a plan."""
    found: dict[tuple[int | None, str], list[Site]] = {}
    for site, _ in plan.quantized:
        found.setdefault((site.layer, _UNITS.get(site.part, site.part)), []).append(site)
    return [
        Unit(kind if layer is None else f"layer {layer} {kind}", kind, tuple(sites)) for (layer, kind), sites in found.items()
    ]


def unit_errors(units: Sequence[Unit], sensitivity: Sensitivity) -> dict[str, float]:
    """Unit → output error of its values; a value that several units read is shared among them."""
    cost = {one.value: one.output_error for one in sensitivity.values}
    readers: dict[str, int] = {}
    for unit in units:
        for value in {site.value for site in unit.sites}:
            readers[value] = readers.get(value, 0) + 1
    return {u.name: sum(cost.get(v, 0.0) / readers[v] for v in {s.value for s in u.sites}) for u in units}


def ordered(units: Sequence[Unit], harm: Mapping[str, float], saving: Mapping[str, float]) -> list[Unit]:
    """Units by harm per time saved, the first to step back first; what saves nothing goes before all others."""
    floor = 1e-6 * max([*saving.values(), 1e-9])
    return sorted(units, key=lambda u: -harm[u.name] / max(saving.get(u.kind, 0.0), floor))


def with_fallback(plan: QuantPlan, units: Iterable[Unit], dtype: DType | None) -> QuantPlan:
    """The plan with units in float, or with their activations in a 16-bit type."""
    sites = {site: unit.name for unit in units for site in unit.sites}
    return plan.model_copy(update={"decisions": tuple(_back(d, sites.get(d.site), dtype) for d in plan.decisions)})


def _back(decision: Decision, unit: str | None, dtype: DType | None) -> Decision:
    quantizer = decision.quantizer
    if unit is None or quantizer is None:
        return decision
    if dtype is None:
        return decision.model_copy(update={"quantizer": None, "reason": f"stepped back by the accuracy search ({unit})"})
    if decision.site.is_weight:
        return decision
    wide = quantizer.model_copy(update={"dtype": dtype, "symmetric": dtype == "int16"})
    return decision.model_copy(update={"quantizer": wide, "reason": f"16 bits by the accuracy search ({unit})"})


def search(
    units: Sequence[Unit],
    saving: Mapping[str, float],
    attempt: Callable[[tuple[str, ...]], Trial],
    known: Sequence[Trial],
    *,
    most: int,
    seconds: float,
    on_trial: Callable[[Trial], None],
) -> Outcome:
    """Find a plan.

    Args:
        units: in the order in which they step back.
        saving: kind of unit → time that one of them saves in 8 bits.
        attempt: judge the plan with these units stepped back.
        known: trials of an interrupted search; their time counts.
        most: units that may step back together.
        seconds: budget. A trial that would not end within it is not begun.
        on_trial: called with every new trial.
    """
    clock = _Clock(attempt, known, seconds, on_trial)
    names = [unit.name for unit in units]
    low, high = -1, None
    count = 0
    while high is None and (trial := clock.run(tuple(names[:count]))) is not None:
        if trial.met:
            high = count
        elif count >= most:
            break
        else:
            low, count = count, min(max(1, 2 * count), most)
    while high is not None and high - low > 1 and (trial := clock.run(tuple(names[: (low + high) // 2]))) is not None:
        low, high = (low, (low + high) // 2) if trial.met else ((low + high) // 2, high)
    if high:
        kept = names[:high]
        by_saving = sorted(units[:high], key=lambda u: -saving.get(u.kind, 0.0))
        for unit in by_saving:
            if saving.get(unit.kind, 0.0) <= 0 or len(kept) == 1:
                continue
            trial = clock.run(tuple(n for n in kept if n != unit.name))
            if trial is None:
                break
            if trial.met:
                kept.remove(unit.name)
    return clock.outcome()


class _Clock:
    """Trials within a budget; each is made once."""

    def __init__(
        self,
        attempt: Callable[[tuple[str, ...]], Trial],
        known: Sequence[Trial],
        seconds: float,
        on_trial: Callable[[Trial], None],
    ) -> None:
        self._attempt, self._on_trial = attempt, on_trial
        self._trials = {frozenset(t.fallback): t for t in known}
        self._ends = time.monotonic() + seconds - sum(t.seconds for t in known)
        self._out_of_time = False

    def run(self, names: tuple[str, ...]) -> Trial | None:
        """The trial with these units stepped back, or None when there is no time left for it. The first one is always made."""
        key = frozenset(names)
        if key in self._trials:
            return self._trials[key]
        longest = max((t.seconds for t in self._trials.values()), default=0.0)
        if self._trials and time.monotonic() + longest > self._ends:
            self._out_of_time = True
            return None
        trial = self._attempt(names)
        self._trials[key] = trial
        self._on_trial(trial)
        return trial

    def outcome(self) -> Outcome:
        """The fastest trial that met the criterion; the one with the least drop where none did."""
        trials = list(self._trials.values())
        met = [t for t in trials if t.met]
        if met:
            fastest = max(met, key=lambda t: (t.saved_ms, -t.drop))
            return Outcome(fastest, True, "the time was up" if self._out_of_time else "nothing faster was found that meets it")
        rows = max(t.rows for t in trials)
        best = min((t for t in trials if t.rows == rows), key=lambda t: (t.drop, -t.saved_ms))
        return Outcome(best, False, "the time was up" if self._out_of_time else "no plan that was tried meets it")
