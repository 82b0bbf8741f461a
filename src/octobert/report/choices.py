"""How a model was chosen, as a sentence on the figures of its final run."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.core.estimate import Estimate
from octobert.core.limits import COSTS, UNITS, Limit, objective_named
from octobert.core.measurements import Speedup, at_first_shape
from octobert.core.results import Report
from octobert.core.selection import Selection, VariantResult
from octobert.core.wording import duration, points, speed_text, times_text
from octobert.report import judged
from octobert.report.times import noise
from octobert.report.words import Phrasing, cost_of, loss, words_of_choice

# The best of several variants, and those that would be better still.
_BEST = {
    "latency": ("the fastest one", "faster"),
    "throughput": ("the one with the highest throughput", "faster"),
    "size": ("the smallest one", "smaller"),
    "memory": ("the one with the least memory", "smaller"),
    "load": ("the quickest one to load", "quicker"),
    "speedup": ("the fastest one", "faster"),
}
# State of a variant → its name in tables.
STATES = {
    "chosen": "chosen",
    "admissible": "meets",
    "excluded": "misses",
    "slower": "not judged",
    "not tried": "not tried",
}


def told(report: Report) -> Report:
    """A report with the sentences of its search: why each variant was taken or not, and what to use."""
    choice = report.choice
    if choice is None:
        return report
    words = words_of_choice(choice)
    found = [reasoned(words, result, choice.best) for result in choice.found]
    choice = choice.replaced(found=tuple(found))
    return report.replaced(choice=choice.replaced(sentence=sentence(choice, report)))


def reasoned(words: Phrasing, result: VariantResult, best: VariantResult) -> VariantResult:
    """A variant with the reason for its state."""
    reason = result.reason or "; ".join(map(words.missed, result.checks))
    if result.state == "chosen":
        reason = "the best that keeps all limits"
    elif result.state == "admissible":
        reason = words.behind(result, best)
    elif result.state == "slower":
        reason = words.dropped(result, best)
    elif result.state == "not tried":
        reason = "the search ended before it was tried"
    return result.replaced(reason=reason)


def sentence(choice: Selection, report: Report) -> str:
    """Return what to use, how much it gains and loses on the evaluation rows, and why.

    Args:
        choice: the search, without its sentence.
        report: of the final run of the winner.
    """
    words, best, limits = words_of_choice(choice), choice.best, choice.limits
    checks = judged.checks_of(report, best.variant.target)
    rows = report.data.evaluation_rows
    compared = report.of(best.variant.target).against_float
    figures = [*gains(choice, report), *loss(words, compared, rows)]
    if choice.met:
        measured = f": {', '.join(figures)}" if figures else ""
        first = f"Use {best.variant.name}{measured}, because {because(choice)}."
        if best.variant.precision == "f32":
            gain = f", {figures[0]}" if best.variant.name != choice.reference else ""
            first = f"Use {best.variant.name}{gain}: {_no_eight_bits(choice, words, limits)}."
        missed = [words.reason(check, rows) for check in checks if check.state == "missed"]
        where = "in the search"
        if choice.rows:
            where = f"on the {choice.rows:,} tuning rows that the search judged by"
        broken = f"{choice.winner} MISSES a limit in the final measurement, which it keeps {where}"
        sentences = [f"{broken}: {'; '.join(missed)}.", first] if missed else [first]
        unclear = (check for check in checks if check.state in ("unclear", "unmeasured"))
        sentences += [
            f"It is not certain that “{words.limit(check.limit)}”: {words.reason(check, rows)}."
            for check in unclear
        ]
    else:
        tried = sum(result.state != "not tried" for result in choice.found)
        sentences = [
            f"No model of {tried} {_keeps(words, limits)}.",
            f"The nearest is {best.variant.name}, which is packaged: {best.reason}.",
            *([f"The final measurement: {', '.join(figures)}."] if figures else []),
        ]
    left = sum(result.state == "not tried" for result in choice.found)
    if left:
        were = "was" if left == 1 else "were"
        sentences.append(
            f"This is the best so far: {left} of {len(choice.found)} variants {were} not tried ({choice.ended})."
        )
    return " ".join(sentences)


def because(choice: Selection) -> str:
    """Return why the winner was chosen, without a full stop."""
    limits, words, best = choice.limits, words_of_choice(choice), choice.best
    if best.variant.precision in ("bf16", "f16"):
        return _no_eight_bits(choice, words, limits)
    results = [result for result in choice.found if result.ratio or result.drops]
    highest = f"the one with the highest {words.name(choice.goal)}"
    name, better = _BEST.get(objective_named(choice.goal).name, (highest, "better"))
    ahead = [
        result
        for result in results
        if result.state == "excluded" and _first(words, [result, best]) is result
    ]
    those = f"{len(ahead)} {better} {'one does' if len(ahead) == 1 else 'ones do'}"
    among = f"among {len(results)} variants{f' ({those} not)' if ahead else ''}"
    others = [result for result in results if result.state in ("admissible", "slower")]
    tied = [result for result in others if words.tied(result, best)]
    first = f"it is {'as fast as any' if tied else name} that {_keeps(words, limits)}, {among}"
    if tied:
        are = f" and {len(tied) - 1} more are" if len(tied) > 1 else " is"
        first += f"; {tied[0].variant.name}{are} as fast within the noise"
    rest = [result for result in others if result not in tied and _kind(result) != _kind(best)]
    rival = _first(words, rest)
    return (
        first
        if rival is None
        else f"{first}; {rival.variant.name} is {words.behind(rival, best, named=False)}"
    )


def state_of(result: VariantResult) -> str:
    """The state of a variant in tables: `meets`, `misses`, `not judged`."""
    is_made = result.ratio is not None or result.drops
    return STATES[result.state] if is_made or result.state != "excluded" else "not made"


def is_admissible(result: VariantResult) -> bool:
    """Whether a variant keeps all limits."""
    return result.state in ("chosen", "admissible")


def in_order(choice: Selection, count: int | None = None) -> list[VariantResult]:
    """Return variants in the order of the table: the winner first, and of many those of the frontier before others.

    Args:
        count: at most so many.
    """
    first = [choice.best, *(result for result in choice.found if result is not choice.best)]
    ranked = sorted(first, key=lambda result: not (result is choice.best or result.on_frontier))
    names = {result.variant.name for result in ranked[:count]}
    return [result for result in first if result.variant.name in names]


def speed_of(choice: Selection, result: VariantResult) -> Estimate | None:
    """The figure of speed that tables show: rows per second for throughput, otherwise milliseconds."""
    return result.figures.get("throughput") if choice.goal == "throughput" else result.time_ms


def facts(choice: Selection) -> list[str]:
    """Return sentences on how the search went, and for which machines its choice holds."""
    here = choice.environment
    judged = f" on {choice.rows:,} tuning rows" if choice.metric is not None else ""
    words = words_of_choice(choice)
    limits = f"; limits: {', '.join(map(words.limit, choice.limits))}" if choice.limits else ""
    versions = [
        f"{name} {here.versions[name]}"
        for name in ("onnxruntime", "openvino", "torch")
        if name in here.versions
    ]
    sentences = [
        f"{len(choice.found)} variants were compared for {choice.goal}{judged} in {duration(choice.seconds)}{limits}.",
        f"The search ended: {choice.ended}.",
        f"The choice holds for machines such as this one: {', '.join([here.cpu, *here.features, *versions])}.",
    ]
    sentences += noise([], choice.load)
    if choice.simulated:
        settings = ", ".join(f"{name}={value}" for name, value in choice.simulated.items())
        sentences.append(
            f"Simulated: {settings} kept runtimes from instructions that this CPU has."
        )
    return sentences


def best_so_far(
    best: VariantResult | None, done: int, total: int, seconds: float, minutes: float | None
) -> str:
    """Return how far a search is: `best so far: openvino-cpu int8, 2.1 ×, drop 0.3 points (12 of 20 variants, 3:10 of 20:00)`.

    Args:
        best: the best variant until now; None before the first one.
        done: variants that were tried.
        total: variants that are known; 0 before the search begins.
        seconds: since the beginning of the search.
        minutes: time limit; None where there is none.
    """
    if not total:
        return "searching for the best model"
    name = "nothing yet" if best is None else best.variant.name
    limit = "" if minutes is None else f" of {duration(60 * minutes)}"
    return f"best so far: {name}{_figures_of(best)} ({done} of {total} variants, {duration(seconds)}{limit})"


def _figures_of(best: VariantResult | None) -> str:
    """The speed and the drop of the best variant until now, where they are known: `, 3.5 ×, drop 0.1 points`."""
    if best is None:
        return ""
    text = "" if best.ratio is None else f", {times_text(1 / best.ratio.value)} ×"
    for metric, drop in list(best.drops.items())[:1]:
        # Differences of a metric between 0 and 1 are points.
        is_share = 0 <= best.values.get(metric, 0.0) <= 1
        text += f", drop {points(drop.value)} points" if is_share else f", drop {drop.value:.3g}"
    return text.replace("-", "−")


def gains(choice: Selection, report: Report) -> list[str]:
    """The gains of the winner: over the float models of the final run, or of the search where the winner is a float model."""
    best = choice.best
    goal = objective_named(choice.goal).name
    texts = []
    if goal in COSTS:
        ours, theirs = cost_of(best, goal), cost_of(choice.float_result, goal)
        if ours and theirs and best.variant.name != choice.reference:
            less = {"size": "smaller", "memory": "less memory", "load": "quicker to load"}[goal]
            than = f"than {choice.reference} ({ours:.0f}, not {theirs:.0f} {UNITS[goal]})"
            texts.append(f"{times_text(theirs / ours)} × {less} {than}")
    if best.variant.precision == "f32":
        ratio = best.ratio
        over = [] if ratio is None else [(choice.reference, ratio.inverse())]
    else:
        over = [(speedup.reference, speedup.ratio) for speedup in speeds(choice, report)]
    return texts + [
        speed_text(name, ratio, throughput=goal == "throughput") for name, ratio in over
    ]


def speeds(choice: Selection, report: Report) -> list[Speedup]:
    """The speed of the winner in the final run, on rows of the data or at the first shape: over its float baseline, and over a
    faster form of it."""
    figures = report.of(choice.best.variant.target)
    speedups = at_first_shape((choice.goal == "throughput" and figures.ratios) or figures.speedups)
    fastest = min(speedups, key=lambda speedup: speedup.ratio.value, default=None)
    return speedups[:1] + ([fastest] if fastest is not None and fastest is not speedups[0] else [])


def _no_eight_bits(choice: Selection, words: Phrasing, limits: Sequence[Limit]) -> str:
    """Why a float model was chosen, without a full stop; and of how many models in 8 bits that is known."""
    eight = [result for result in choice.found if result.variant.precision.startswith("int")]
    # What was not tried, and what is ahead and was not judged.
    left = [
        result
        for result in eight
        if result.state == "not tried"
        or (result.state == "slower" and _first(words, [result, choice.best]) is result)
    ]
    known = f"{len(eight) - len(left)} of {len(eight)} models in 8 bits"
    rest = f"; {len(left)} of {len(eight)} models in 8 bits {'was' if len(left) == 1 else 'were'} not judged"
    rival = _first(words, [result for result in eight if result.state == "admissible"])
    excluded = _first(words, [result for result in eight if result.state == "excluded"])
    if (
        rival is None
        and excluded is not None
        and _first(words, [excluded, choice.best]) is excluded
    ):
        better = _BEST.get(objective_named(choice.goal).name, ("", "better"))[1]
        return (
            f"no {better} model in 8 bits{' that was judged' * bool(left)} {_keeps(words, limits)}: with "
            f"{excluded.variant.name}, {excluded.reason}{rest * bool(left)}"
        )
    rival = rival or _first(words, [result for result in eight if result not in left])
    if rival is None:
        return f"{known} could be judged" if left else "no model in 8 bits could be made here"
    if left:
        gain = f"{known} {'was' if len(eight) - len(left) == 1 else 'were'} judged, without a gain"
    elif words.tied(rival, choice.best):
        gain = "no gain by 8 bits can be told from the noise on this machine"
    else:
        gain = "8 bits gain nothing on this machine"
    return f"{gain}: {rival.variant.name} is {words.behind(rival, choice.best, named=False)}"


def _keeps(words: Phrasing, limits: Sequence[Limit]) -> str:
    """A verb phrase for a model within the limits: `keeps F1 within 1 point`."""
    if not limits:
        return "runs here"
    only = limits[0]
    if len(limits) > 1 or (only.at_least, only.at_most, only.min_gain) != (None, None, None):
        return f"keeps the limit{'s' if len(limits) > 1 else ''} ({'; '.join(words.limit(limit) for limit in limits)})"
    return (
        f"keeps {words.name(only.of)}{f' within {words.allowance(only)}' if only.max_drop else ''}"
    )


def _kind(result: VariantResult) -> tuple[str, str]:
    return result.variant.target, result.variant.precision


def _first(words: Phrasing, results: Sequence[VariantResult]) -> VariantResult | None:
    """The best of several in the goal."""
    goal = objective_named(words.goal).name

    def less_is_better(result: VariantResult) -> float | None:
        if goal in COSTS:
            return cost_of(result, goal) or None
        figure = result.ratio if goal in UNITS else result.drops.get(words.key(words.goal))
        return None if figure is None else figure.value

    figures = [(less_is_better(result), result) for result in results]
    known = [(figure, result) for figure, result in figures if figure is not None]
    return min(known, key=lambda pair: pair[0], default=(0.0, None))[1]
