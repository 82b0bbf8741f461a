"""Searches for the best model as they end on real machines, made from a few figures per variant."""

from __future__ import annotations

from typing import Any

from octobert.core.environment import Environment
from octobert.core.estimate import Estimate
from octobert.core.limits import Check, Limit, check
from octobert.core.measurements import Comparison, Speedup
from octobert.core.results import DataFacts, Report
from octobert.core.selection import Selection, Variant, VariantResult
from octobert.report import choices
from octobert.report.words import Phrasing
from tests.support.columns import with_columns

WITHIN_A_POINT = Limit(max_drop=0.01)
MACHINE = Environment(
    cpu="Some Processor",
    cores=8,
    memory_bytes=2**35,
    features=("avx2", "avx512_vnni"),
    system="Linux",
    python="3.12.1",
    versions={"onnxruntime": "1.23.0", "openvino": "2025.4.0"},
)
# name, ms, drop of F1 in points (None: not judged), half the width of its interval, MB, state
_VARIANTS: tuple[tuple[str, float | None, float | None, float, float, str], ...] = (
    ("openvino-cpu int8", 21.7, 0.12, 0.45, 110.4, "chosen"),
    ("openvino-cpu int8 matmul-attention", 20.9, 1.42, 0.60, 110.1, "excluded"),
    ("openvino-cpu int8 calibrate=mse", 21.8, 0.38, 0.50, 110.4, "admissible"),
    ("ort-cpu int8", 26.4, 0.31, 0.55, 109.2, "admissible"),
    ("ort-cpu int8 alpha=0.7", 26.6, 0.16, 0.50, 109.2, "admissible"),
    ("ort-cpu int8 dynamic", 34.9, -0.08, 0.40, 109.6, "admissible"),
    ("openvino-cpu bf16", 37.7, 0.05, 0.12, 418.0, "admissible"),
    ("openvino-cpu f32", 64.6, 0.0, 0.0, 418.0, "admissible"),
    ("ort-cpu f32", 76.8, 0.0, 0.0, 418.1, "admissible"),
    ("ort-cpu int8 matmul-attention", 25.1, 2.9, 0.9, 109.0, "excluded"),
    ("ort-cpu int8 all", 24.2, 41.0, 3.0, 108.8, "excluded"),
    ("openvino-cpu int8 per-tensor", 22.1, 3.4, 1.0, 110.0, "excluded"),
    ("ort-cpu int8 weights", 61.0, None, 0.0, 110.9, "slower"),
    ("openvino-cpu int8 weights", 58.3, None, 0.0, 110.7, "slower"),
    ("openvino-cpu int8 transforms=[]", 44.0, None, 0.0, 110.4, "slower"),
    ("ort-cpu int8 residual", 51.5, None, 0.0, 108.9, "slower"),
    ("ort-cpu f16", None, None, 0.0, 0.0, "excluded"),
    ("openvino-cpu int8 percentile", None, None, 0.0, 0.0, "not tried"),
)


def figure(value: float, half: float) -> Estimate:
    """A figure with an interval of equal arms."""
    return Estimate(value=value, low=value - half, high=value + half)


def found(
    name: str, ms: float | None, drop: float | None, half: float, mb: float, state: Any
) -> VariantResult:
    """The result of a search on a variant; the float reference takes 76.8 ms and has an F1 of 0.903."""
    target, _, rest = name.partition(" ")
    precision = (
        "int8" if rest.startswith("int8") and rest not in ("int8 dynamic", "int8 weights") else rest
    )
    judged = {} if drop is None else {"f1": figure(drop / 100, half / 100)}
    return VariantResult(
        variant=Variant(name=name, target=target, precision=precision),
        state=state,
        reason="" if ms or state != "excluded" else _NOT_MADE,
        checks=_missed(judged["f1"]) if judged and state == "excluded" else (),
        ratio=None if ms is None else figure(ms / 76.8, 0.01 * ms / 76.8 if ms != 76.8 else 0.0),
        time_ms=None if ms is None else figure(ms, 0.01 * ms),
        rounds=0 if ms is None else 12 if state == "slower" else 60,
        drops=judged,
        values={metric: 0.903 - each.value for metric, each in judged.items()},
        rows=0 if drop is None else 128 if drop > 10 else 400,
        size_bytes=round(mb * 1e6) or None,
        peak_memory_bytes=round(2.5 * mb * 1e6) or None,
        figures={
            goal: Estimate.exactly(cost)
            for goal, cost in (("size", mb), ("memory", 2.5 * mb))
            if cost
        },
        seconds=0.0 if state == "not tried" else 31.5,
    )


def selection(
    *variants: VariantResult, limits: tuple[Limit, ...] = (WITHIN_A_POINT,), **changes: Any
) -> Selection:
    """A search, by default of 18 variants for BERT-base on a CPU with VNNI; reasons and the frontier are made here."""
    everything = variants or tuple(found(*each) for each in _VARIANTS)
    reference = next(
        each for each in everything if each.variant.name == changes.get("reference", "ort-cpu f32")
    )
    words = Phrasing(changes.get("metric", "f1"), reference.values, changes.get("goal", "latency"))
    winner = changes.get("winner")
    best = next(e for e in everything if e.state == "chosen" or e.variant.name == winner)
    told = tuple(choices.reasoned(words, each, best) for each in everything)
    judged = [each for each in told if each.time_ms and each.drops]
    frontier = {
        each.variant.name for each in judged if not any(_dominates(other, each) for other in judged)
    }
    plain: dict[str, Any] = {
        "how": "choose",
        "goal": "latency",
        "limits": limits,
        "metric": "f1",
        "rows": 400,
        "reference": reference.variant.name,
        "winner": best.variant.name,
        "met": True,
        "sentence": "Use openvino-cpu int8.",
        "found": tuple(
            each.model_copy(update={"on_frontier": each.variant.name in frontier}) for each in told
        ),
        "minutes": 20,
        "seconds": 1190,
        "ended": "time limit of 20 minutes",
        "environment": MACHINE,
    }
    return Selection(**{**plain, **changes})


def without(choice: Selection, state: str) -> Selection:
    """A search without the variants in a state."""
    return choice.model_copy(
        update={"found": tuple(each for each in choice.found if each.state != state)}
    )


def final_run(
    difference: tuple[float, float, float] | None = (-0.001, -0.006, 0.003), **changes: Any
) -> Report:
    """What the sentence reads in the report of the final run of openvino-cpu: 2.4 × float32, and F1 on 408 rows."""
    value, low, high = difference or (None, None, None)
    compared = Comparison(
        candidate="openvino-cpu",
        reference="openvino-f32",
        metric="f1" if difference else None,
        difference=value,
        low=low,
        high=high,
        p_value=None,
        fidelity_name="cosine",
        fidelity_kind="cosine",
        fidelity=0.99912,
        output_error=0.01,
        changed=(),
    )
    data = DataFacts(
        calibration_rows=128, evaluation_rows=408, source="rows", leaked_rows=0, dropped_rows=0
    )
    plain: dict[str, Any] = {
        "data": data,
        "recipe": {},
        "choice": None,
        "plans": {},
        "models": (),
    }
    figures = {"comparisons": (compared,), "speedups": (speedup(2.4, 2.31, 2.52),)}
    return with_columns(Report.model_construct(**plain), {**figures, **changes})


def speedup(
    ratio: float,
    low: float,
    high: float,
    reference: str = "openvino-f32",
    sequence: int | str = "data",
) -> Speedup:
    """A speedup of openvino-cpu."""
    return Speedup(
        candidate="openvino-cpu",
        reference=reference,
        batch=1,
        sequence=sequence,
        ratio=Estimate(value=ratio, low=low, high=high),
    )


_NOT_MADE = "cannot be made: this CPU does not compute in float16"


def _missed(drop: Estimate) -> tuple[Check, ...]:
    """The check of a variant that loses more than a point."""
    return check(WITHIN_A_POINT, None, drop=drop, reference=0.903)


def _dominates(other: VariantResult, each: VariantResult) -> bool:
    """Whether a judged variant is better than another in both, or in one and equal in the other."""
    assert other.time_ms
    assert each.time_ms
    ours, theirs = (
        (other.time_ms.value, other.drops["f1"].value),
        (each.time_ms.value, each.drops["f1"].value),
    )
    return ours != theirs and ours[0] <= theirs[0] and ours[1] <= theirs[1]
