"""The answer to "should I ship this?": one sentence on the figures of a run, and whether it holds beyond the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octobert.config.recipe import Accuracy
from octobert.core.measurements import Comparison, Latency, Speedup, score_named
from octobert.core.results import Report
from octobert.core.selection import Found, Variant
from octobert.report import choices, summary, times
from octobert.report.reasons import COSTS, Words, loss, rows_text, speed_text, times_text

State = Literal["ship", "likely", "no", "unmeasured"]
# What a reader is told who asks whether to ship the model, and a sign, so that nothing depends on the colour.
STATES: dict[State, tuple[str, str]] = {
    "ship": ("✓", "yes"),
    "likely": ("≈", "probably"),
    "no": ("✕", "no"),
    "unmeasured": ("?", "not measured"),
}
# The drop of a metric that is accepted where the recipe does not say: one point.
DEFAULT_DROP = 0.01
# A smaller gain in speed that is within the noise is none.
_GAIN = 1.1


@dataclass(frozen=True)
class Accepted:
    """The drop of the main metric that is accepted.

    Args:
        drop: in the unit of the metric; None where the recipe limits other figures only.
        words: `1 point`.
        stated: whether the recipe says so.
    """

    drop: float | None
    words: str
    stated: bool


@dataclass(frozen=True)
class Number:
    """One of the large figures.

    Args:
        name: such as `speed`.
        value: `2.8`.
        unit: `×`; empty where it has none.
        detail: the interval, and what it is compared with.
    """

    name: str
    value: str
    unit: str
    detail: str


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Args:
        state: what it comes to.
        sentence: what to use, and what that gains and loses.
        reason: what else the state depends on; empty where the sentence says all.
        use: the model to use, as reports name it: a target, a float baseline, or the variant of a search; empty where nothing
            was measured.
        numbers: the large figures of the best 8-bit model, or of the chosen one.
        accepted: the limit that it is judged by.
    """

    state: State
    sentence: str
    reason: str = ""
    use: str = ""
    numbers: tuple[Number, ...] = ()
    accepted: Accepted = Accepted(DEFAULT_DROP, "1 point", stated=False)


@dataclass(frozen=True)
class _Candidate:
    """A model that may be shipped.

    Args:
        name: as reports name it.
        target: whose package it is.
        gain: its speed, compared with a float model; None where it was not measured.
        compared: with its float baseline.
    """

    name: str
    target: str
    gain: Speedup | None
    compared: Comparison | None


def verdict(report: Report) -> Verdict:
    """Return the answer of a report."""
    if report.choice is not None:
        return _of_choice(report)
    measured = [each.name for each in summary.model_results(report)]
    if not measured or not any(name in report.plans for name in measured):
        return Verdict("unmeasured", _not_measured(report))
    return _of_targets(report)


def words_of(report: Report) -> Words:
    """The words of a report: those of its search, or of its task and the float model."""
    if report.choice is not None:
        return Words.of(report.choice)
    name = next((each.reference for each in report.comparisons), "")
    score = score_named(report.task.primary, report.scores.get(name, ()))
    metric = next((each.metric for each in report.comparisons if each.metric is not None), report.task.primary)
    values = {} if score is None or metric is None else {metric: score.value}
    reference = Found(variant=Variant(name=name, target=name, precision="f32"), state="admissible", reason="", values=values)
    return Words("latency", metric, reference)


def accepted_of(report: Report) -> Accepted:
    """The limit of the recipe on the main metric, or one point (one percent of a metric that is not between 0 and 1)."""
    words, choice = words_of(report), report.choice
    metric = words.metric or ""
    value = abs(words.reference.values.get(metric, 0.0))
    if choice is not None:
        drop = choice.accepted_drop
        return Accepted(drop, "" if drop is None else _amount(words, drop), stated=True)
    given = report.recipe.get("accuracy")
    criterion = Accuracy.model_validate(given) if given is not None else None
    if criterion is not None and criterion.metric in (None, metric):
        drops = [] if criterion.at_least is None else [value - criterion.at_least]
        if criterion.max_drop is not None:
            drops.append(criterion.max_drop * (value if criterion.relative else 1.0))
        return Accepted(min(drops), _amount(words, min(drops)), stated=True)
    drop = DEFAULT_DROP * (1.0 if words.in_points(metric) else value)
    return Accepted(drop, _amount(words, drop), stated=False)


def median(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median of samples, and its 95 % confidence interval.

    The interval reaches from one order statistic to another, by how many samples are below the median: a binomial distribution,
    here by its normal approximation with correction for continuity (Conover, Practical Nonparametric Statistics, 3.2). It
    assumes nothing of the distribution of the samples. Fewer than six give less than 95 %: from the smallest to the largest.
    """
    ordered = sorted(samples)
    count = len(ordered)
    value = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    out = max(math.floor((count + 1 - 1.96 * math.sqrt(count)) / 2) - 1, 0)
    return value, ordered[out], ordered[-1 - out]


def fastest_float(report: Report) -> str | None:
    """The fastest float form of the model that was timed; None where none was."""
    times_of = {each.candidate: each for each in _first_shape(report) if each.candidate not in report.plans}
    return min(times_of, key=lambda name: times_of[name].percentile_ms(50), default=None)


def speed_over(report: Report, name: str, reference: str) -> Speedup | None:
    """How fast a model is compared with another one, on rows of the data or at the first shape.

    Models of one runtime were compared when they were timed; for others see `paired`.
    """
    shape = next(iter(in_order(report)), None)
    for known in report.speedups:
        if (known.candidate, known.reference) == (name, reference) and times.TimedShape(known.batch, known.sequence) == shape:
            return known
    return paired(report, name, reference)


def paired(report: Report, name: str, reference: str) -> Speedup | None:
    """How fast a model is compared with any other one: the median of the ratios of the rounds, with the interval of `median`.

    All models were timed on the same rows in a round, so that the ratios do not vary with the lengths of the rows.
    """
    shapes = _first_shape(report)
    ours, theirs = (next((each for each in shapes if each.candidate == wanted), None) for wanted in (name, reference))
    if ours is None or theirs is None:
        return None
    shape = (ours.batch, ours.sequence)
    pairs = [b / a for a, b in zip(ours.samples_ms, theirs.samples_ms, strict=False) if a > 0]
    if not pairs:
        return None
    value, low, high = median(pairs)
    ends = {"ratio": value, "low": low, "high": high}
    return Speedup(candidate=name, reference=reference, batch=shape[0], sequence=shape[1], **ends)


def _first_shape(report: Report) -> list[Latency]:
    """The times on rows of the data, one at a time where that was measured; else at the first shape."""
    shape = next(iter(in_order(report)), None)
    return [each for each in report.latencies if times.TimedShape(each.batch, each.sequence) == shape]


def in_order(report: Report) -> list[times.TimedShape]:
    """The timed shapes, rows of the data and small batches first."""
    return sorted(times.shapes(report.latencies), key=lambda each: (each.sequence != "data", each.batch))


def _of_targets(report: Report) -> Verdict:
    """The answer of a run that writes a model for each of its targets."""
    accepted, words = accepted_of(report), words_of(report)
    reference = fastest_float(report) or ""
    compared = {each.candidate: each for each in report.comparisons}
    targets = [each.name for each in summary.model_results(report) if each.name in report.plans]
    found = [_Candidate(name, name, speed_over(report, name, reference), compared.get(name)) for name in targets]
    fitting = [each for each in found if _keeps(each.compared, accepted)]
    best = _fastest(report, fitting or found, reference)
    figures = _figures(report, best, reference, words)
    numbers = _numbers(report, best, reference, words)
    if fitting and best.gain is not None and (best.gain.low > 1 or best.gain.ratio > _GAIN):
        state, reason = _held(report, best, accepted)
        start = "Ship" if state == "ship" else "Probably ship"
        reason = f"{reason}{_as_fast(report, best, fitting)}"
        return Verdict(state, f"{start} {best.name}: {', '.join(figures)}.", reason, best.name, numbers, accepted)
    if not reference or best.gain is None:
        return Verdict("unmeasured", f"No float model was timed beside {best.name}.", numbers=numbers, accepted=accepted)
    if fitting:
        why = f"8 bits gain no speed on this machine: {best.name} is {', '.join(figures)}."
    else:
        why = f"{best.name} loses more than {accepted.words}: it is {', '.join(figures)}."
    return Verdict("no", f"Use {reference}, the fastest float form here. {why}", "", reference, numbers, accepted)


def _fastest(report: Report, found: Sequence[_Candidate], reference: str) -> _Candidate:
    """The fastest of some models of several runtimes, all compared in the same way."""

    def gain(each: _Candidate) -> float:
        speed = paired(report, each.name, reference)
        return speed.ratio if speed is not None else 0.0

    return max(found, key=gain)


def _as_fast(report: Report, best: _Candidate, found: Sequence[_Candidate]) -> str:
    """Which other models are as fast as the best one within the noise, as a sentence."""
    speeds = [(each.name, paired(report, each.name, best.name)) for each in found if each is not best]
    names = [name for name, speed in speeds if speed is not None and speed.low <= 1 <= speed.high]
    return f" {' and '.join(names)} {'is' if len(names) == 1 else 'are'} as fast within the noise." if names else ""


def _of_choice(report: Report) -> Verdict:
    """The answer of a search: its sentence, and whether the final run confirms it."""
    choice = report.choice
    assert choice is not None
    best, accepted, words = choice.best, accepted_of(report), words_of(report)
    compared = next((each for each in report.comparisons if each.candidate == best.variant.target), None)
    over = choices.speeds(choice, report)
    own = over[:1] if best.variant.precision in ("bf16", "f16") else over[-1:]
    reference = own[0].reference if own else ""
    candidate = _Candidate(best.variant.name, best.variant.target, own[0] if own else None, compared)
    numbers = _numbers(report, candidate, reference, words)
    if not choice.met or best.variant.precision == "f32" or not _keeps(compared, accepted):
        return Verdict("no", choice.sentence, "", best.variant.name, numbers, accepted)
    size = [] if choice.goal == "size" else _size(report, candidate, reference)
    figures = [*choices.gains(choice, report), *size, *loss(words, compared, report.data.evaluation_rows)]
    state, reason = _held(report, candidate, accepted, timed=choice.goal not in COSTS)
    start = "Ship" if state == "ship" else "Probably ship"
    return Verdict(state, f"{start} {best.variant.name}: {', '.join(figures)}.", reason, best.variant.name, numbers, accepted)


def _keeps(compared: Comparison | None, accepted: Accepted) -> bool:
    """Whether a model keeps the limit, noise aside; one whose metric is undefined is not known to miss it."""
    if compared is None or compared.difference is None or accepted.drop is None:
        return True
    return not compared.difference < -accepted.drop


def _held(report: Report, found: _Candidate, accepted: Accepted, *, timed: bool = True) -> tuple[State, str]:
    """Whether a model that keeps the limit is faster and as accurate beyond the noise, and what is in doubt.

    Args:
        timed: it should be faster.
    """
    compared, gain = found.compared, found.gain
    limit = f"the limit of {accepted.words}{'' if accepted.stated else ' that octobert assumes'}"
    if report.data.leaked_rows:
        return "likely", "Calibration rows were evaluated too, so the scores are too good."
    if timed and gain is not None and gain.low <= 1:
        times_here = f"{times_text(gain.ratio)} × the speed of {gain.reference}"
        return "likely", f"It was timed at {times_here}, but the noise includes 1 ×: repeat the run on an idle machine."
    if compared is None:
        return "likely", "Its answers were not compared with those of the float model."
    if summary.chance(report.scores, compared):
        return "likely", "The float model is not clearly better than one that reads no input, so equal scores say nothing."
    if compared.difference is None:
        same = compared.fidelity_name == "agreement" and compared.fidelity >= 1 - DEFAULT_DROP
        why = f"The data has no labels: {compared.fidelity_name} says how closely it follows the float model, not who is right."
        return ("ship", why) if same else ("likely", why)
    if math.isnan(compared.difference):
        return "likely", f"{compared.metric} is undefined on these rows."
    if accepted.drop is None:
        return "ship", ""
    if compared.low is None:
        return "likely", "The metric has no confidence interval on these rows."
    if compared.low < -accepted.drop:
        return "likely", f"The interval of the loss reaches beyond {limit}; more evaluation rows would decide."
    return "ship", f"It keeps {limit}, beyond the noise."


def _figures(report: Report, found: _Candidate, reference: str, words: Words) -> list[str]:
    """What a model gains over a float model, and what it loses."""
    gain = found.gain
    speed = [speed_text(gain.reference, gain.ratio, gain.low, gain.high)] if gain is not None else []
    return [*speed, *_size(report, found, reference), *loss(words, found.compared, report.data.evaluation_rows)]


def _size(report: Report, found: _Candidate, reference: str) -> list[str]:
    ratio = _size_ratio(report, found.target, reference)
    if ratio is None or 0.99 < ratio < 1.01:
        return []
    return [f"{times_text(ratio)} × smaller" if ratio > 1 else f"{times_text(1 / ratio)} × larger"]


def _size_ratio(report: Report, target: str, reference: str) -> float | None:
    sizes = {each.candidate: each.size_bytes for each in report.footprints}
    ours, theirs = sizes.get(target), sizes.get(reference)
    return theirs / ours if ours and theirs else None


def _numbers(report: Report, found: _Candidate, reference: str, words: Words) -> tuple[Number, ...]:
    """The large figures: speed, size and quality."""
    numbers, gain, compared = [], found.gain, found.compared
    if gain is not None:
        interval = f"{gain.low:.2f} to {gain.high:.2f}, over {gain.reference}"
        numbers.append(Number("speed", times_text(gain.ratio), "×", interval))
    sizes = {each.candidate: each.size_bytes / 1e6 for each in report.footprints}
    ratio = _size_ratio(report, found.target, reference)
    if ratio is not None:
        numbers.append(
            Number("smaller", times_text(ratio), "×", f"{sizes[found.target]:.3g} MB, float {sizes[reference]:.3g} MB")
        )
    if compared is None:
        return tuple(numbers)
    rows = f"on {rows_text(report.data.evaluation_rows)}"
    if compared.difference is None or math.isnan(compared.difference) or compared.metric is None:
        share = compared.fidelity_name == "agreement"
        value, unit = (f"{100 * compared.fidelity:.1f}", "%") if share else (f"{compared.fidelity:.4f}", "")
        return (
            *numbers,
            Number(
                f"{compared.fidelity_name} with float",
                value,
                unit,
                f"{rows}{'' if report.task.primary else ', without labels'}",
            ),
        )
    metric = compared.metric
    value, unit = words.signed(metric, compared.difference), words.unit(metric).strip()
    if compared.low is None or compared.high is None:
        return (*numbers, Number(words.name(metric), value, unit, f"no interval, {rows}"))
    ends = f"{words.signed(metric, compared.low)} to {words.signed(metric, compared.high)}, {rows}"
    return (*numbers, Number(words.name(metric), value, unit, ends))


def _amount(words: Words, drop: float) -> str:
    """A limit in words: `1 point`."""
    text = f"{100 * drop:.4g} points" if words.in_points(words.metric or "") else f"{drop:.3g}"
    return "1 point" if text == "1 points" else text


def _not_measured(report: Report) -> str:
    """Why there are no figures."""
    if not report.recipe.get("measure", True):
        return "Nothing was measured (measure: false), so no figures say whether to ship the models."
    for name in report.plans:
        if name in report.absent:
            return f"{name} was exported but not measured: {report.absent[name]}."
    return "No 8-bit model was measured, so no figures say whether to ship one."
