"""Why 8 bits are as fast as they are: sentences, each from what was measured or read, and none without its figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

from octobert.core.capability import lacks
from octobert.core.profile import Inspection, Operator, Product, Profile

# Within this, two medians of one interleaved run are called equal.
_EQUAL = 0.03
# So many times what a run takes at its best, and something else was running.
_BUSY = 2.0
# Shares of the time below which a sentence would only distract.
_WORTH_SAYING = 0.02
_MUCH = 0.2
_NEARLY_ALL = 0.9
# Operators below this are called short.
_SHORT_MS = 0.02
_NAMES = {"ort": "ONNX Runtime", "openvino": "OpenVINO"}


def answers(found: Inspection, *, fast_with: Collection[str]) -> tuple[str, ...]:
    """Everything there is to say, the verdict first.

    Args:
        fast_with: features of an x86 CPU of which it needs one for fast 8-bit products.
    """
    return (
        *_verdict(found),
        *_busy(found),
        *_integers(found),
        *_fallbacks(found),
        *_products(found, fast_with),
        *_conversions(found),
        *_dynamic(found),
        *_others(found),
        *_kernels(found),
        *_precision(found),
        *_limit(found),
        *_short(found),
    )


def written(product: Product) -> str | None:
    """Why no runtime computes a product in integers as it is written in the file, as a clause; None where it could."""
    left, right = product.inputs
    if left is None or right is None:
        return "only the weights are 8-bit in the file" if product.weight else "only one of the two inputs is 8-bit in the file"
    return "16-bit activations are simulated in float" if "16" in left.dtype + right.dtype else None


def ratio(found: Inspection) -> float | None:
    """How many times as fast as its float model it is, by medians of the interleaved timing."""
    if len(found.latencies) != 2:
        return None
    ours, theirs = (one.percentile_ms(50) for one in found.latencies)
    return theirs / ours


def _verdict(found: Inspection) -> Iterator[str]:
    times = ratio(found)
    if times is None:
        yield "There is no float model beside the file, so that nothing is said of how much faster 8 bits are."
        return
    ours, theirs = (one.percentile_ms(50) for one in found.latencies)
    if times > 1 + _EQUAL:
        verdict = f"8 bits are {times:.2f} times as fast as float"
    else:
        as_fast = "not faster" if times > 1 - _EQUAL else "slower"
        verdict = f"8 bits are {as_fast} than float ({times:.2f} times as fast)"
    rounds = len(found.latencies[0].samples_ms)
    where = f"{_NAMES[found.runtime]} at {_shape(found)}"
    yield f"{verdict} on {where}: {ours:.2f} ms against {theirs:.2f} ms, medians of {rounds} interleaved rounds."


def _busy(found: Inspection) -> Iterator[str]:
    """Whether the timed runs took so much longer than the operators can that something else must have run."""
    best = found.profile.split.total_ms + found.profile.split.between_ms
    timed = found.latencies[0].percentile_ms(50) if found.latencies else 0.0
    if timed > _BUSY * best:
        yield (
            f"The machine was busy: a run that takes {best:.2f} ms at its best took {timed:.2f} ms in the middle, so that the "
            f"figures of the operators, each the least of {found.profile.runs} runs, say more than the timed ones."
        )


def _integers(found: Inspection) -> Iterator[str]:
    if not found.products:
        yield "No matrix product of the file has an 8-bit input: there is nothing that could run in 8 bits."
        return
    split = found.profile.split
    done = found.matched - len(found.fallbacks)
    ran = [one for one in found.profile.operators if one.integer]
    kinds = dict.fromkeys(f"{one.type}, kernel {one.kernel}" if one.kernel else one.type for one in ran)
    share = f" and take {split.share(split.integer_ms):.0%} of the operators' time" if done else ""
    as_types = f" ({', '.join(kinds)})" if kinds else ""
    yield f"{done} of {len(found.products)} matrix products that are 8-bit in the file ran in integers{as_types}{share}."
    lost = len(found.products) - found.matched
    if lost:
        yield f"{lost} of them could not be found among the operators that ran, because the runtime gave them other names."


def _fallbacks(found: Inspection) -> Iterator[str]:
    groups = Counter(one.why for one in found.fallbacks)
    for why, count in groups.items():
        because = f" because {why}" if why else "; neither the file nor the runtime shows why"
        yield f"{count} of {len(found.products)} such products ran in {_word(found.profile.precision)}{because}."


def _products(found: Inspection, fast_with: Collection[str]) -> Iterator[str]:
    lacking = lacks(fast_with, found.environment.features)
    ours = found.profile.split
    no_vnni = "this CPU has neither VNNI nor AMX, so that an 8-bit product takes several instructions where those have one"
    if found.floating is not None and found.floating.split.products_ms:
        theirs = found.floating.split.products_ms
        gain = theirs / ours.products_ms if ours.products_ms else 0.0
        tail = f"; {no_vnni}" if lacking and ours.integer_ms else ""
        yield (
            f"All matrix products together take {ours.products_ms:.2f} ms here and {theirs:.2f} ms in the float model, "
            f"{gain:.2f} times as fast{tail}."
        )
    elif lacking and ours.integer_ms:
        yield f"{no_vnni[0].upper()}{no_vnni[1:]}."


def _conversions(found: Inspection) -> Iterator[str]:
    split = found.profile.split
    if split.conversions:
        types = Counter(one.type for one in found.profile.operators if one.kind == "conversion")
        names = ", ".join(f"{count} {name}" for name, count in types.most_common())
        yield (
            f"Converting between float and 8 bits was left standing alone at {split.conversions} places ({names}), and takes "
            f"{split.share(split.conversions_ms):.1%} of the operators' time ({split.conversions_ms:.2f} ms)."
        )


def _dynamic(found: Inspection) -> Iterator[str]:
    count = sum(one.dynamic for one in found.products)
    if count:
        measured = [o for o in found.profile.operators if o.type == "DynamicQuantizeLinear"]
        cost = f": {len(measured)} DynamicQuantizeLinear take {sum(o.ms for o in measured):.2f} ms" if measured else ""
        inside = sum(o.type == "DynamicQuantizeMatMul" for o in found.profile.operators)
        hidden = f"; {inside} DynamicQuantizeMatMul do it inside" if inside else ""
        yield f"Quantization is dynamic: the ranges of the inputs of {count} products are taken anew at each run{cost}{hidden}."


def _others(found: Inspection) -> Iterator[str]:
    """Operators that cost more than in the float model, such as what a runtime no longer fuses."""
    if found.floating is None:
        return
    ours, theirs = found.profile.split, found.floating.split
    more = ours.others_ms - theirs.others_ms
    if more < _WORTH_SAYING * theirs.total_ms:
        return
    here, there = _by_type(found.profile), _by_type(found.floating)
    grown = sorted(here, key=lambda t: there.get(t, (0, 0.0))[1] - here[t][1])[:4]
    least = _WORTH_SAYING * more
    shown = [
        f"{here[t][0]} {t} {here[t][1]:.2f} ms" + _before(there.get(t))
        for t in grown
        if here[t][1] > there.get(t, (0, 0.0))[1] + least
    ]
    gone = [f"{count} {t}" for t, (count, _) in there.items() if t not in here]
    instead = f" (the float model has {', '.join(gone)} instead)" if gone else ""
    yield (
        f"What is neither a matrix product nor a conversion takes {ours.others_ms:.2f} ms here and {theirs.others_ms:.2f} ms "
        f"in the float model: {', '.join(shown)}{instead}."
    )


def _before(known: tuple[int, float] | None) -> str:
    return f" (float: {known[0]}, {known[1]:.2f} ms)" if known else ""


def _by_type(profile: Profile) -> dict[str, tuple[int, float]]:
    """type → (how many, ms) of operators that are neither products nor conversions."""
    table: defaultdict[str, list[float]] = defaultdict(list)
    for one in profile.operators:
        if one.kind == "other":
            table[one.type].append(one.ms)
    return {name: (len(times), sum(times)) for name, times in table.items()}


def _kernels(found: Inspection) -> Iterator[str]:
    slow = [one for one in found.profile.operators if one.kind == "product" and one.kernel.startswith("ref")]
    if slow:
        share = found.profile.split.share(sum(one.ms for one in slow))
        yield f"{len(slow)} matrix products ran in the runtime's reference kernel ({slow[0].kernel}), {share:.0%} of the time."


def _precision(found: Inspection) -> Iterator[str]:
    if found.floating is not None and found.floating.precision != "f32":
        yield f"The float model ran in {found.floating.precision}, so that 8 bits are compared with {found.floating.precision}."
    halves = sorted(set(found.environment.features) & {"avx512_bf16", "amx_bf16"})
    if found.runtime == "openvino" and halves:
        yield (
            f"This CPU has {', '.join(halves)}: OpenVINO left to itself runs a float model in bf16, "
            f"while the float model here ran in {found.floating.precision if found.floating else 'f32'}."
        )


def _limit(found: Inspection) -> Iterator[str]:
    if found.floating is not None and found.floating.split.total_ms:
        split = found.floating.split
        share = split.share(split.products_ms)
        takes = f"Matrix products take {share:.0%} of the float model's time at {_shape(found)}"
        if share < _NEARLY_ALL:
            yield f"{takes}, so that even products that cost nothing would make it only {1 / (1 - share):.1f} times as fast."
        else:
            yield f"{takes}: how fast they are in 8 bits decides nearly everything."
    largest = _largest(found.profile.operators)
    if largest:
        yield f"Most of the time of the 8-bit model goes to {', '.join(largest)}."


def _largest(operators: Sequence[Operator]) -> list[str]:
    table: defaultdict[str, float] = defaultdict(float)
    for one in operators:
        table[f"{one.type} in {_word(one.precision)}" if one.kind == "product" else one.type] += one.ms
    total = sum(table.values()) or 1.0
    return [f"{name} ({table[name] / total:.0%})" for name in sorted(table, key=lambda n: -table[n])[:3]]


def _short(found: Inspection) -> Iterator[str]:
    profile = found.profile
    short = [one.ms for one in profile.operators if one.ms < _SHORT_MS]
    share, between = profile.split.share(sum(short)), profile.split.between_ms
    if share > _MUCH:
        yield (
            f"At {_shape(found)}, {len(short)} of {len(profile.operators)} operators take less than {_SHORT_MS} ms each and "
            f"{share:.0%} of the time together: they are so short that 8 bits have little to save in them."
        )
    run = between + profile.split.total_ms
    # On a busy machine what passes between operators is other programs' work.
    if between > _MUCH * run and not any(_busy(found)):
        yield (
            f"{between / run:.0%} of a run ({between:.2f} ms) passes between operators, not in them; "
            f"a larger batch spreads it over more rows."
        )


def _shape(found: Inspection) -> str:
    return f"{found.batch} × {found.sequence}"


def _word(precision: str) -> str:
    return {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "int8": "8 bits"}.get(precision, precision)
