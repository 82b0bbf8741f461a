"""Findings about a compiled model: why 8 bits are as fast as they are. Each sentence has its measured figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from octobert import targets
from octobert.core.capability import saturates
from octobert.core.measurements import TimedShape
from octobert.core.profile import Inspection, Operator, Profile, grouped, time_of
from octobert.targets import runtimes

# Two medians of one interleaved run that differ by less are called equal (relative).
_EQUAL = 0.03
# A median above this multiple of the fastest run means that the machine was busy.
_BUSY = 2.0
# Shares of the time: too little for a sentence, much, and nearly all.
_WORTH_SAYING = 0.02
_MUCH = 0.2
_NEARLY_ALL = 0.9
# Operators below this time are called short, in milliseconds.
_SHORT_MS = 0.02


def answers(inspection: Inspection) -> tuple[str, ...]:
    """Return all findings as sentences, the speedup first. Before it is timed, they say what was executed."""
    findings = (
        _verdict,
        _busy,
        _integers,
        _fallbacks,
        _products,
        _conversions,
        _dynamic,
        _others,
        _kernels,
        _precision,
        _limit,
        _short,
    )
    return tuple(sentence for finding in findings for sentence in finding(inspection))


def ratio(inspection: Inspection) -> float | None:
    """Return how many times as fast as its float model the model is, by the medians of the interleaved timing."""
    if len(inspection.latencies) != 2:
        return None
    ours, theirs = (latency.percentile_ms(50) for latency in inspection.latencies)
    return theirs / ours


def _verdict(inspection: Inspection) -> Iterator[str]:
    times = ratio(inspection)
    if not inspection.latencies:
        return
    if times is None:
        yield "There is no float model to compare with: package the model without --no-float, or name one with --reference."
        return
    ours, theirs = (latency.percentile_ms(50) for latency in inspection.latencies)
    if times > 1 + _EQUAL:
        verdict = f"INT8 is {times:.2f} times as fast as float"
    else:
        as_fast = "not faster" if times > 1 - _EQUAL else "slower"
        verdict = f"INT8 is {as_fast} than float ({times:.2f} times as fast)"
    rounds = len(inspection.latencies[0].samples_ms)
    where = f"{runtimes.load(inspection.runtime).title} at {_shape(inspection)}"
    yield f"{verdict} on {where}: {ours:.2f} ms against {theirs:.2f} ms, medians of {rounds} interleaved rounds."


def _busy(inspection: Inspection) -> Iterator[str]:
    """The timed runs took much longer than the operators: something else was running."""
    best = inspection.profile.split.total_ms + inspection.profile.split.between_ms
    timed = inspection.latencies[0].percentile_ms(50) if inspection.latencies else 0.0
    if timed > _BUSY * best:
        yield (
            f"The machine was busy: a run takes {best:.2f} ms at best and {timed:.2f} ms in the median. The operator times, "
            f"each the minimum of {inspection.profile.runs} runs, are more reliable than the timed runs."
        )


def _integers(inspection: Inspection) -> Iterator[str]:
    if not inspection.products:
        yield "No matrix product of the file has an 8-bit input: nothing can run in 8 bits."
        return
    split = inspection.profile.split
    done = inspection.matched - len(inspection.fallbacks)
    ran = [operator for operator in inspection.profile.operators if operator.integer]
    kinds = dict.fromkeys(
        f"{operator.type}, kernel {operator.kernel}" if operator.kernel else operator.type
        for operator in ran
    )
    share = f" They take {split.share(split.integer_ms):.0%} of the operator time." if done else ""
    as_types = f" ({', '.join(kinds)})" if kinds else ""
    count = len(inspection.products)
    yield f"{done} of the {count} matrix products that are 8-bit in the file ran in integers{as_types}.{share}"
    lost = len(inspection.products) - inspection.matched
    if lost:
        yield f"{lost} of them were not found among the operators that ran: the runtime renamed them."


def _fallbacks(inspection: Inspection) -> Iterator[str]:
    groups = Counter(fallback.why for fallback in inspection.fallbacks)
    for why, count in groups.items():
        because = f" because {why}" if why else "; neither the file nor the runtime shows why"
        yield f"{count} of {len(inspection.products)} such products ran in {_word(inspection.profile.precision)}{because}."


def _products(inspection: Inspection) -> Iterator[str]:
    capabilities = targets.load(inspection.target).capabilities
    lacking = saturates(capabilities, inspection.environment.features)
    ours = inspection.profile.split
    no_vnni = "This CPU has neither VNNI nor AMX, so an 8-bit product needs several instructions instead of one."
    if inspection.floating is not None and inspection.floating.split.products_ms:
        theirs = inspection.floating.split.products_ms
        gain = theirs / ours.products_ms if ours.products_ms else 0.0
        tail = f" {no_vnni}" if lacking and ours.integer_ms else ""
        yield (
            f"All matrix products together take {ours.products_ms:.2f} ms, and {theirs:.2f} ms in the float model: "
            f"{gain:.2f} times as fast.{tail}"
        )
    elif lacking and ours.integer_ms:
        yield no_vnni


def _conversions(inspection: Inspection) -> Iterator[str]:
    split = inspection.profile.split
    if split.conversions:
        types = Counter(
            operator.type
            for operator in inspection.profile.operators
            if operator.kind == "conversion"
        )
        names = ", ".join(f"{count} {name}" for name, count in types.most_common())
        yield (
            f"{split.conversions} conversions between float and 8 bits were not fused ({names}). They take "
            f"{split.share(split.conversions_ms):.1%} of the operator time ({split.conversions_ms:.2f} ms)."
        )


def _dynamic(inspection: Inspection) -> Iterator[str]:
    count = sum(product.dynamic for product in inspection.products)
    if count:
        measured = [o for o in inspection.profile.operators if o.type == "DynamicQuantizeLinear"]
        cost = (
            f": {len(measured)} DynamicQuantizeLinear take {time_of(measured):.2f} ms"
            if measured
            else ""
        )
        inside = sum(o.type == "DynamicQuantizeMatMul" for o in inspection.profile.operators)
        hidden = f"; {inside} DynamicQuantizeMatMul include it" if inside else ""
        yield f"Quantization is dynamic: every run measures the input ranges of {count} products{cost}{hidden}."


def _others(inspection: Inspection) -> Iterator[str]:
    """Other operators take longer than in the float model, for example because the runtime no longer fuses them."""
    if inspection.floating is None:
        return
    ours, theirs = inspection.profile.split, inspection.floating.split
    more = ours.others_ms - theirs.others_ms
    if more < _WORTH_SAYING * theirs.total_ms:
        return
    here, there = _by_type(inspection.profile), _by_type(inspection.floating)
    grown = sorted(here, key=lambda t: there.get(t, (0, 0.0))[1] - here[t][1])[:4]
    least = _WORTH_SAYING * more
    shown = [
        f"{here[t][0]} {t} {here[t][1]:.2f} ms"
        + (f" (float: {there[t][0]}, {there[t][1]:.2f} ms)" if t in there else "")
        for t in grown
        if here[t][1] > there.get(t, (0, 0.0))[1] + least
    ]
    gone = [f"{count} {t}" for t, (count, _) in there.items() if t not in here]
    instead = f" (the float model has {', '.join(gone)} instead)" if gone else ""
    yield (
        f"All other operators take {ours.others_ms:.2f} ms, and {theirs.others_ms:.2f} ms in the float model: "
        f"{', '.join(shown)}{instead}."
    )


def _by_type(profile: Profile) -> dict[str, tuple[int, float]]:
    """Operator type → (count, ms), without products and conversions."""
    others = [operator for operator in profile.operators if operator.kind == "other"]
    types = grouped(others, lambda operator: operator.type)
    return {name: (len(group), time_of(group)) for name, group in types.items()}


def _kernels(inspection: Inspection) -> Iterator[str]:
    slow = [
        operator
        for operator in inspection.profile.operators
        if operator.kind == "product" and operator.kernel.startswith("ref")
    ]
    if slow:
        share = inspection.profile.split.share(time_of(slow))
        yield f"{len(slow)} matrix products ran in the runtime's reference kernel ({slow[0].kernel}), {share:.0%} of the time."


def _precision(inspection: Inspection) -> Iterator[str]:
    if inspection.floating is None:
        return
    precision = inspection.floating.precision
    if precision != "f32":
        yield f"The float model ran in {precision}, so INT8 is compared with {precision}."
    halves = sorted(set(inspection.environment.features) & {"avx512_bf16", "amx_bf16"})
    if halves and "bf16" in targets.load(inspection.target).capabilities.baseline_precisions:
        yield (
            f"This CPU has {', '.join(halves)}: by default {runtimes.load(inspection.runtime).title} runs a float model in "
            f"bf16. Here the float model ran in {precision}."
        )


def _limit(inspection: Inspection) -> Iterator[str]:
    if inspection.floating is not None and inspection.floating.split.total_ms:
        split = inspection.floating.split
        share = split.share(split.products_ms)
        takes = (
            f"Matrix products take {share:.0%} of the float model's time at {_shape(inspection)}"
        )
        if share < _NEARLY_ALL:
            yield f"{takes}. Even with products that cost nothing, the model would be only {1 / (1 - share):.1f} times as fast."
        else:
            yield f"{takes}. Their speed in 8 bits decides nearly everything."
    largest = _largest(inspection.profile.operators)
    if largest:
        yield f"Most of the 8-bit model's time goes to {', '.join(largest)}."


def _largest(operators: Sequence[Operator]) -> list[str]:
    kinds = grouped(
        operators,
        lambda o: f"{o.type} in {_word(o.precision)}" if o.kind == "product" else o.type,
    )
    times = {name: time_of(group) for name, group in kinds.items()}
    total = sum(times.values()) or 1.0
    return [
        f"{name} ({times[name] / total:.0%})" for name in sorted(times, key=lambda n: -times[n])[:3]
    ]


def _short(inspection: Inspection) -> Iterator[str]:
    profile = inspection.profile
    short = [operator for operator in profile.operators if operator.ms < _SHORT_MS]
    share, between = profile.split.share(time_of(short)), profile.split.between_ms
    if share > _MUCH:
        yield (
            f"At {_shape(inspection)}, {len(short)} of {len(profile.operators)} operators take less than {_SHORT_MS} ms each, "
            f"{share:.0%} of the time together. 8 bits can save little in operators this short."
        )
    run = between + profile.split.total_ms
    # On a busy machine the time between operators is the time of other programs.
    if between > _MUCH * run and not any(_busy(inspection)):
        yield (
            f"{between / run:.0%} of a run ({between:.2f} ms) passes between operators, not in them. "
            f"A larger batch spreads it over more rows."
        )


def _shape(inspection: Inspection) -> str:
    return str(TimedShape(inspection.batch, inspection.sequence))


def _word(precision: str) -> str:
    return {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "8 bits"}.get(
        precision, precision
    )
