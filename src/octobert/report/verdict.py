"""The answer to "should I ship this?": one sentence on the figures of a run, and how certain it is.

"Ship" and "no" are claims. Each bound behind them is wrong in at most 2.5 % of runs, at any number of rows and rounds
(`benchmarks/verdicts.py`); of several targets each is a claim of its own. What no bound decides is "not clear yet", which says
what would decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from octobert.core.limits import COSTS, UNITS, Check
from octobert.core.measurements import (
    Figures,
    Speedup,
    at_first_shape,
    paired_speedup,
    score_named,
)
from octobert.core.results import Report
from octobert.core.wording import metric_text, rows_text, speed_text, times_text
from octobert.report import choices, judged, summary
from octobert.report.judged import DEFAULT_DROP
from octobert.report.words import Phrasing, loss, words_of

State = Literal["ship", "unclear", "no", "unmeasured"]
# What a reader is told who asks whether to ship the model, and a sign, so that nothing depends on the colour.
STATES: dict[State, tuple[str, str]] = {
    "ship": ("✓", "yes"),
    "unclear": ("≈", "not clear yet"),
    "no": ("✕", "no"),
    "unmeasured": ("?", "not measured"),
}
# A gain in speed that is certainly smaller is none.
_GAIN = 1.05


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
    """

    state: State
    sentence: str
    reason: str = ""
    use: str = ""
    numbers: tuple[Number, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """A model that may be shipped.

    Args:
        name: as reports name it.
        figures: of its target.
        gain: its speed, compared with a float model; None where it was not measured.
        checks: of the limits.
    """

    name: str
    figures: Figures
    gain: Speedup | None
    checks: tuple[Check, ...] = ()

    @property
    def worst(self) -> Check | None:
        """The check that decides; None where nothing is limited."""
        return judged.worst(self.checks)

    @property
    def state(self) -> str:
        """The worst state among its checks."""
        return "kept" if self.worst is None else self.worst.state


def verdict(report: Report) -> Verdict:
    """Return the answer of a report."""
    if report.choice is not None:
        return _of_choice(report)
    if not any(figures.model in report.plans for figures, _ in report.timed):
        return _of_simulations(report)
    return _of_targets(report)


def _of_simulations(report: Report) -> Verdict:
    """The answer of a run none of whose models could run here: what their files answer on the CPU, where that is known."""
    found = [figures for figures in report.models if summary.is_simulated(report, figures)]
    if not found:
        return Verdict("unmeasured", _not_measured(report))
    words, sentences = words_of(report), []
    for figures in found:
        lost = loss(words, figures.against_float, report.data.evaluation_rows)
        checks = judged.checks_of(report, figures.model)
        # Times are not simulated.
        checked = [check for check in checks if check.limit.objective.name not in UNITS]
        doubt = (
            "" if all(check.state == "kept" for check in checked) else " (the limit is not certain)"
        )
        if any(check.is_clear for check in checked):
            doubt = " (beyond the limit)"
        sentences.append(f"{figures.model} {', '.join(lost)}{doubt}")
    first = _Candidate(found[0].model, found[0], None)
    return Verdict(
        "unmeasured",
        f"Accuracy is {summary.SIMULATED}: {'; '.join(sentences)}.",
        "How fast it is, and whether the device rounds alike, its device has to say: octobert benchmark and octobert evaluate "
        "with the package there.",
        numbers=_numbers(report, first, "", words),
    )


def fastest_float(report: Report) -> str | None:
    """The fastest float form of the model that was timed; None where none was."""
    timed = at_first_shape(report.times)
    floats = [latency for latency in timed if latency.candidate not in report.plans]
    fastest = min(floats, key=lambda latency: latency.percentile_ms(50), default=None)
    return None if fastest is None else fastest.candidate


def paired(report: Report, name: str, reference: str) -> Speedup | None:
    """The speed of a model compared with any other one at the first shape; None where one of them was not timed."""
    timed = {latency.candidate: latency for latency in reversed(at_first_shape(report.times))}
    return (
        paired_speedup(timed[name], timed[reference]) if {name, reference} <= timed.keys() else None
    )


def _of_targets(report: Report) -> Verdict:
    """The answer of a run that writes a model for each of its targets."""
    words, reference = words_of(report), fastest_float(report) or ""
    candidates = [
        _Candidate(
            figures.model,
            figures,
            paired(report, figures.model, reference),
            judged.checks_of(report, figures.model),
        )
        for figures, _ in report.timed
        if figures.model in report.plans
    ]
    passing, unclear = (
        [candidate for candidate in candidates if candidate.state in states]
        for states in (("kept",), ("unclear", "unmeasured"))
    )
    best = _fastest(report, passing or unclear or candidates, reference)
    answer = partial(Verdict, numbers=_numbers(report, best, reference, words))
    if not reference or best.gain is None:
        return answer("unmeasured", f"No float model was timed beside {best.name}.")
    speed = speed_text(best.gain.reference, best.gain.ratio)
    lost = loss(words, best.figures.against_float, report.data.evaluation_rows)
    figures = ", ".join([speed, *_size(report, best, reference), *lost])
    if _hopeless(report, best):
        why = "the float model is no better than one that reads no input"
        advice = "Fine-tune it first, or check the data."
        return answer("no", f"Do not ship {best.name}: {why}. {advice}", f"It is {figures}.")
    float_form = f"Use {reference}, the fastest float form here."
    lost_by = [candidate.worst for candidate in candidates]
    if all(check is not None and check.is_clear for check in lost_by):
        missed = [check for check in best.checks if check.state == "missed"]
        why = f"{best.name} {'; '.join(map(words.missed, missed))}: it is {figures}."
        return answer("no", f"{float_form} {why}", use=reference)
    if best.gain.ratio.high < _GAIN:
        little = f"8 bits gain less than {100 * (_GAIN - 1):.0f} % of speed"
        gain = "8 bits gain no speed" if best.gain.ratio.high <= 1 else little
        why = f"{gain} on this machine: {best.name} is {figures}."
        return answer("no", f"{float_form} {why}", use=reference)
    state, reason = _held(report, best)
    return answer(
        state,
        f"{_start(state, best.name)} {figures}.",
        f"{reason}{_as_fast(report, best, passing or unclear)}",
        best.name,
    )


def _start(state: State, name: str) -> str:
    """The beginning of the sentence on a model that may be shipped."""
    return f"Ship {name}:" if state == "ship" else f"Not clear yet: {name} is"


def _fastest(report: Report, candidates: Sequence[_Candidate], reference: str) -> _Candidate:
    """The fastest of some models of several runtimes, all compared in the same way."""

    def gain(candidate: _Candidate) -> float:
        speed = paired(report, candidate.name, reference)
        return speed.ratio.value if speed is not None else 0.0

    return max(candidates, key=gain)


def _as_fast(report: Report, best: _Candidate, candidates: Sequence[_Candidate]) -> str:
    """A sentence on the other models that are as fast as the best one within the noise."""
    names = [
        candidate.name
        for candidate in candidates
        if candidate is not best
        and (speed := paired(report, candidate.name, best.name)) is not None
        and speed.ratio.low <= 1 <= speed.ratio.high
    ]
    are = "is" if len(names) == 1 else "are"
    return f" {' and '.join(names)} {are} as fast within the noise." if names else ""


def _of_choice(report: Report) -> Verdict:
    """The answer of a search: its sentence, and whether the final run confirms it."""
    choice = report.choice
    assert choice is not None
    best, words = choice.best, words_of(report)
    measured = report.of(best.variant.target)
    over = choices.speeds(choice, report)
    speedups = over[:1] if best.variant.precision in ("bf16", "f16") else over[-1:]
    reference = speedups[0].reference if speedups else ""
    candidate = _Candidate(
        best.variant.name,
        measured,
        speedups[0] if speedups else None,
        judged.checks_of(report, best.variant.target),
    )
    answer = partial(
        Verdict,
        use=best.variant.name,
        numbers=_numbers(report, candidate, reference, words),
    )
    if (
        not choice.met
        or best.variant.precision == "f32"
        or candidate.state == "missed"
        or _hopeless(report, candidate)
    ):
        return answer("no", choice.sentence)
    size = [] if choice.goal == "size" else _size(report, candidate, reference)
    lost = loss(words, measured.against_float, report.data.evaluation_rows)
    figures = ", ".join([*choices.gains(choice, report), *size, *lost])
    state, reason = _held(report, candidate, timed=choice.goal not in COSTS)
    return answer(state, f"{_start(state, best.variant.name)} {figures}.", reason)


def _hopeless(report: Report, candidate: _Candidate) -> bool:
    """True where the float model is no better than one that reads no input: its 8-bit form cannot be judged."""
    compared = candidate.figures.against_float
    if compared is None:
        return False
    score = score_named(compared.metric, report.of(compared.reference).scores)
    learned = score is None or score.chance is None or score.value > score.chance
    return not learned or (compared.fidelity_chance or 0.0) >= 1


def _held(report: Report, candidate: _Candidate, *, timed: bool = True) -> tuple[State, str]:
    """The state of a model that seems faster and within the limits, and the doubt about it; empty where there is none.

    Args:
        timed: it should be faster.
    """
    compared, gain = candidate.figures.against_float, candidate.gain
    drop = judged.accepted_drop(report)
    limit = _limit_text(report, drop)
    if report.data.leaked_rows:
        return "unclear", "Calibration rows were evaluated too, so the scores are too good."
    if timed and gain is not None and gain.ratio.low <= 1:
        ratio = gain.ratio
        times_here = f"{times_text(ratio.value)} × the speed of {gain.reference} ({ratio.low:.2f} to {ratio.high:.2f})"
        return (
            "unclear",
            f"It was timed at {times_here}: repeat the run on an idle machine, or with more benchmark.repeats.",
        )
    if compared is None:
        return "unclear", "Its answers were not compared with those of the float model."
    if summary.chance({each.model: each.scores for each in report.models}, compared):
        return (
            "unclear",
            "The float model is not clearly better than one that reads no input, or the rows number its classes otherwise: "
            "equal scores say nothing.",
        )
    if compared.difference is None:
        same = compared.is_share and compared.fidelity >= 1 - DEFAULT_DROP
        why = f"The data has no labels: {compared.fidelity_name} says how closely it follows the float model, not who is right."
        return ("ship", why) if same else ("unclear", why)
    if math.isnan(compared.difference):
        return "unclear", f"{metric_text(compared.metric or '')} is undefined on these rows."
    if compared.low is None:
        return "unclear", "The metric has no confidence interval on these rows."
    doubtful = candidate.worst
    if doubtful is not None and doubtful.state != "kept":
        words = words_of(report)
        is_plain = report.choice is None and doubtful.limit.max_drop is not None
        where = limit if is_plain else f"“{words.limit(doubtful.limit)}”"
        reason = words.reason(doubtful, report.data.evaluation_rows)
        return "unclear", f"It is not certain that it keeps {where}: {reason}."
    if not candidate.checks:
        return "ship", ""
    limits = limit if len(candidate.checks) == 1 and drop is not None else "the limits"
    return "ship", f"It keeps {limits}, with 97.5 % confidence."


def _limit_text(report: Report, drop: float | None) -> str:
    """The accepted drop of the main metric in words: `the limit of 1 point`."""
    words, text = words_of(report), ""
    if drop is not None:
        text = f"{100 * drop:.4g} points" if words.in_points(words.metric or "") else f"{drop:.3g}"
    text = "1 point" if text == "1 points" else text
    return f"the limit of {text}{'' if judged.is_limited(report) else ' that octobert assumes'}"


def _size(report: Report, candidate: _Candidate, reference: str) -> list[str]:
    ours, theirs, _ = _sizes(report, candidate.figures, reference)
    ratio = theirs / ours if ours and theirs else 1.0
    if 0.99 < ratio < 1.01:
        return []
    return [f"{times_text(ratio)} × smaller" if ratio > 1 else f"{times_text(1 / ratio)} × larger"]


def _sizes(report: Report, figures: Figures, reference: str) -> tuple[int, int, str]:
    """Bytes of a model's files, and of the weights that the user has, in their type; of float32 where these are not known."""
    prints = (figures.footprint, report.of(reference).footprint)
    ours, theirs = (0 if footprint is None else footprint.size_bytes for footprint in prints)
    if report.model.source_bytes:
        return ours, report.model.source_bytes, "your model"
    return ours, theirs, "float"


def _numbers(
    report: Report, candidate: _Candidate, reference: str, words: Phrasing
) -> tuple[Number, ...]:
    """The large figures: speed, size and quality."""
    numbers, gain, compared = [], candidate.gain, candidate.figures.against_float
    if gain is not None:
        interval = f"{gain.ratio.low:.2f} to {gain.ratio.high:.2f}, over {gain.reference}"
        numbers.append(Number("speed", times_text(gain.ratio.value), "×", interval))
    ours, theirs, whose = _sizes(report, candidate.figures, reference)
    if ours and theirs:
        numbers.append(
            Number(
                "smaller",
                times_text(theirs / ours),
                "×",
                f"{ours / 1e6:.3g} MB, {whose} {theirs / 1e6:.3g} MB",
            )
        )
    if compared is None:
        return tuple(numbers)
    how = ", simulated" if compared.simulated else ""
    rows = f"on {rows_text(report.data.evaluation_rows)}{how}"
    if compared.difference is None or math.isnan(compared.difference) or compared.metric is None:
        value, unit = f"{compared.fidelity:.4f}", ""
        if compared.is_share:
            value, unit = f"{100 * compared.fidelity:.1f}", "%"
        name = f"{compared.fidelity_name} with float"
        detail = rows if report.task.primary else f"{rows}, without labels"
    else:
        metric = compared.metric
        value, unit = words.signed(metric, compared.difference), words.unit(metric).strip()
        name, detail = words.name(metric), f"no interval, {rows}"
        if compared.low is not None and compared.high is not None:
            low, high = (words.signed(metric, end) for end in (compared.low, compared.high))
            detail = f"{low} to {high}, {rows}"
    return (*numbers, Number(name, value, unit, detail))


def _not_measured(report: Report) -> str:
    """Why there are no figures."""
    if not report.recipe.get("measure", True):
        return (
            "Nothing was measured (measure: false), so no figures say whether to ship the models."
        )
    for name in report.plans:
        if absent := report.of(name).absent:
            return f"{name} was exported but not measured: {absent}."
    return "No 8-bit model was measured, so no figures say whether to ship one."
