"""What a run keeps of the inside of its models, for the page: activations, intervals, what was executed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octobert.core.evidence import Curve, Evidence, Execution
from octobert.core.plan import Decision, Quantizer, QuantPlan, Site
from octobert.core.ranges import Collector, TensorStatistics
from octobert.inspection import inspector, profilers
from octobert.pipeline import artifacts
from octobert.pipeline.planner import steps_of
from octobert.pipeline.stages import report as report_stage
from tests.support.stages import call_of, step_of, stored

# Values of a bin of the statistics are spread evenly over it.
ONE_BIN = 0.01


def collected(values: np.ndarray) -> TensorStatistics:
    collector = Collector(1)
    collector.add([0], [values.astype(np.float32)])
    return collector.statistics()


def plan_with(value: str, quantizer: Quantizer | None, target: str = "ort-cpu") -> QuantPlan:
    place = {
        "role": "linear.input",
        "part": "ffn_up",
        "module": "m",
        "layer": 0,
        "node": "n",
        "input": 0,
    }
    decision = Decision(site=Site(**place, value=value), quantizer=quantizer, reason="")
    return QuantPlan(method="static", placement="all", target=target, decisions=(decision,))


NORMAL = np.random.default_rng(0).normal(0.3, 1.0, 20_000)


@pytest.mark.parametrize(
    "values", [NORMAL, np.maximum(NORMAL, 0), np.exp(4 * NORMAL), np.full(9, 3.0), np.zeros(4)]
)
def test_a_histogram_has_every_value_once(values: np.ndarray) -> None:
    found = report_stage.histogram(collected(values), 64)
    assert sum(found.counts) == len(values)
    assert (found.low, found.high) == pytest.approx((values.min(), values.max()), rel=1e-6)
    if len(values) > 9:
        exact = np.histogram(values, bins=64, range=(values.min(), values.max()))[0]
        assert np.abs(np.cumsum(found.counts) - np.cumsum(exact)).max() < ONE_BIN * len(values)


@pytest.mark.parametrize(
    ("quantizer", "interval"),
    [
        (Quantizer(dtype="uint8", symmetric=False, low=-1.0, high=2.0), (-1.0, 2.0)),
        (Quantizer(dtype="uint8", symmetric=False, low=0.5, high=2.0), (0.0, 2.0)),
        (Quantizer(dtype="int8", symmetric=True, low=-1.0, high=1.5), (-1.5, 1.5)),
    ],
)
def test_the_clipped_share_is_that_of_the_values_outside(
    quantizer: Quantizer, interval: tuple[float, float]
) -> None:
    (found,) = report_stage.activations(
        {"x": collected(NORMAL)}, {"ort-cpu": plan_with("x", quantizer)}
    )
    assert found.intervals["ort-cpu"] == interval
    outside = np.mean((interval[0] > NORMAL) | (interval[1] < NORMAL))
    assert found.clipped["ort-cpu"] == pytest.approx(outside, abs=ONE_BIN)


def test_a_constant_inside_its_interval_is_not_clipped() -> None:
    assert [
        report_stage.clipped(collected(np.zeros(4)), interval)
        for interval in ((0.0, 0.0), (-1.0, 0.0), (0.0, 1.0))
    ] == [
        0,
        0,
        0,
    ]


def test_float_and_dynamic_activations_have_no_interval() -> None:
    plans = {
        "ort-cpu": plan_with("x", None),
        "openvino-cpu": plan_with(
            "x", Quantizer(dtype="uint8", symmetric=False, dynamic=True), "openvino-cpu"
        ),
    }
    (found,) = report_stage.activations(
        {"x": collected(NORMAL), "read by nobody": collected(NORMAL)}, plans
    )
    assert (found.intervals, found.clipped) == ({}, {})


def test_of_many_activations_those_stay_that_lose_most() -> None:
    one, count = collected(NORMAL[:100]), report_stage.MOST_ACTIVATIONS + 50
    quantizers = [
        Quantizer(dtype="uint8", symmetric=False, low=-9.0, high=9.0 if i % 2 else 0.5)
        for i in range(count)
    ]
    decisions = [each for i, q in enumerate(quantizers) for each in plan_with(f"x{i}", q).decisions]
    plan = plan_with("x", None).model_copy(update={"decisions": tuple(decisions)})
    found = report_stage.activations({f"x{i}": one for i in range(count)}, {"ort-cpu": plan})
    assert len(found) == report_stage.MOST_ACTIVATIONS
    assert sum(each.clipped["ort-cpu"] > 0 for each in found) == count / 2
    numbers = [int(each.value[1:]) for each in found]
    assert numbers == sorted(numbers), "in the order of the graph"


def test_long_curves_are_thinned() -> None:
    steps = tuple(range(1, 5001))
    thinned = report_stage._thinned(
        Curve(name="qat", steps=steps, values={"loss": tuple(1 / s for s in steps)})
    )
    assert thinned.steps[:2] == (1, 4)
    assert len(thinned.steps) <= report_stage.MOST_STEPS
    assert thinned.values["loss"] == tuple(1 / s for s in thinned.steps)


def test_a_run_keeps_the_inside_of_its_models(finished) -> None:
    _, out, report = finished
    evidence = Evidence.model_validate_json((out / "evidence.json").read_text(encoding="utf-8"))
    assert evidence.observed >= len(evidence.activations) > 0
    for target, plan in report.plans.items():
        ranged = {s.value for s, q in plan.quantized if not s.is_weight and q.low is not None}
        assert {each.value for each in evidence.activations if target in each.intervals} == ranged
    assert all(sum(each.histogram.counts) > 0 for each in evidence.activations)
    groups = [
        group
        for each in report.transforms.transforms
        for group in each.groups
        if "left" not in group and group.get("neurons") != 0 and group["kind"] != "tokens"
    ]
    assert [(each.module, each.kind) for each in evidence.smoothed] == [
        (group["module"], group["kind"]) for group in groups
    ]
    assert all(len(each.before) == len(each.after) <= 128 for each in evidence.smoothed)
    assert all(list(each.before) == sorted(each.before, reverse=True) for each in evidence.smoothed)


def test_a_run_says_what_was_executed(finished) -> None:
    _, out, report = finished
    evidence = Evidence.model_validate_json((out / "evidence.json").read_text(encoding="utf-8"))
    found = {each.candidate: each for each in evidence.executions}
    assert set(found) == set(report.plans) & set(profilers.targets())
    for each in found.values():
        assert sum(part.ms for part in each.parts) == pytest.approx(each.total_ms)
        assert sum(kind.ms for kind in each.types) == pytest.approx(each.total_ms)
        assert each.products == each.integer_products > 0
        assert any(
            part.layer == 0 and part.part == "ffn_up" and part.integer > 0 for part in each.parts
        )


def test_a_profiler_that_fails_is_a_sentence(
    finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, out, _ = finished

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a profile without node times")

    monkeypatch.setattr(inspector, "executed", broken)
    made = {"capture": stored(out, "capture"), "export/ort-cpu": stored(out, "export", "ort-cpu")}
    context = call_of(step_of(recipe, "profile/ort-cpu"), tmp_path, made)
    assert context.run()["products"] == 0
    found = Execution.model_validate(json.loads((context.work / artifacts.EXECUTION).read_text()))
    assert found.parts == ()
    assert "profiler failed" in found.sentences[0]
    assert "a profile without node times" in found.sentences[0]


@pytest.mark.parametrize(
    ("changes", "planned"), [({}, True), ({"profile": False}, False), ({"measure": False}, False)]
)
def test_profiles_are_planned_where_models_are_measured(
    finished, changes: dict, planned: bool
) -> None:
    recipe = finished[0].model_copy(update=changes)
    assert any(step.stage == "profile" for step in steps_of(recipe)) == planned
