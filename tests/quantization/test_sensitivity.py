"""The expected error of each value, compared with the error of graphs in which that value alone is quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from scipy.stats import spearmanr

from octobert.core.plan import QuantPlan
from octobert.core.results import Sensitivity, SiteSensitivity
from octobert.data.encoded import Encoded, feeds_of
from octobert.graph import operators, qdq
from octobert.quantization import search, sensitivity
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from octobert.report.plans import expected
from tests.support.checkpoints import exact_method
from tests.support.graphs import (
    capabilities,
    constant,
    outputs_of,
    ranges_of,
    sites_of,
    statistics_of,
    written,
)

# Random rows.
ROWS = 48
# Draws of signs, and of the mean over them: its standard error is a twentieth.
DRAWS, MEAN = 64, 0.2


@pytest.fixture(scope="module")
def encoder(captured, tmp_path_factory):
    """The graph of a tiny encoder whose output is a vector, and plans for it by their options."""
    graph = captured("bert", "embedding")
    path = tmp_path_factory.mktemp("encoder") / "float.onnx"
    operators.save(graph.model, path)
    placed = sites_of(graph)
    chosen = ranges_of(statistics_of(path, placed))

    def plan(method=Static, target: str = "ort-cpu", **options: object) -> QuantPlan:
        return exact_method(method, target, **options).plan(placed, chosen, capabilities(target))

    return path, plan


def rows(count: int = ROWS) -> list[Encoded]:
    generator = np.random.default_rng(7)
    return [
        Encoded(generator.integers(4, 90, n), np.zeros(n, dtype=np.int64), False)
        for n in generator.integers(4, 24, count)
    ]


def silent(*_: object) -> None:
    """No progress to show."""


def estimated(path: Path, plan: QuantPlan, some: list[Encoded], **options: object) -> Sensitivity:
    return sensitivity.estimate(ir.load(path), plan, some, 0, silent, **options)


def outputs(path: Path, some: list[Encoded]) -> np.ndarray:
    return outputs_of(path, *(feeds_of([row], 0) for row in some)).astype(float)


def error_of(plan: QuantPlan, path: Path, floats: np.ndarray, some: list[Encoded]) -> float:
    """Mean squared error of a written plan, relative to the variance of the outputs."""
    written(path, plan, file := path.with_name("written.onnx"))
    return float(np.mean((outputs(file, some) - floats) ** 2) / floats.var())


def only(plan: QuantPlan, value: str) -> QuantPlan:
    """The plan of one value."""
    alone = tuple(d for d in plan.decisions if d.site.value == value)
    return plan.model_copy(update={"decisions": alone})


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (Static, {"placement": "matmul"}),
        (Static, {"placement": "qdqbert"}),
        (Static, {"placement": "qdqbert-row", "per_channel": False}),
        (Static, {"placement": "matmul-attention", "fuse_qkv": True, "weight_ranges": "mse"}),
        (Dynamic, {}),
    ],
    ids=str,
)
def test_each_value_alone_is_as_far_from_float_as_expected(encoder, method, options) -> None:
    """One value of a tiny model is rounded once: its own error is one draw of what is expected."""
    path, plan_with = encoder
    plan, some = plan_with(method, **options), rows()
    result = estimated(path, plan, some)
    floats = outputs(path, some)
    assert {v.value for v in result.values} == {site.value for site, _ in plan.quantized}
    expected = {v.value: v.output_error for v in result.values}
    alone = [name for name in expected if method is Static or name.endswith("weight")]
    measured = np.array([error_of(only(plan, name), path, floats, some) for name in alone])
    ratios = np.array([expected[name] for name in alone]) / measured
    assert spearmanr(measured, ratios * measured).statistic > 0.8
    assert 0.75 < np.exp(np.mean(np.log(ratios))) < 1.33
    assert (np.abs(np.log(ratios)) < np.log(4)).all()
    assert result.together == pytest.approx(error_of(plan, path, floats, some), rel=0.4)
    assert result.together == pytest.approx(sum(expected.values()), rel=0.01)
    assert [v.output_error for v in result.values] == sorted(expected.values(), reverse=True)
    assert (result.rows, result.fallback, result.unknown) == (ROWS, (), "")


@pytest.mark.parametrize(
    "name", ["encoder.layer.0.output.dense.weight", "encoder.layer.1.attention.self.query.weight"]
)
def test_the_mean_over_rounding_errors_is_the_expected_one(encoder, name) -> None:
    """Rounding errors of a weight with random signs, so that they are independent of each other."""
    path, plan_with = encoder
    plan, some = only(plan_with(placement="matmul"), name), rows()
    (value,) = estimated(path, plan, some * 4).values
    weight, floats = constant(ir.load(path), name), outputs(path, some)
    ((_, quantizer),) = plan.quantized
    rounding = qdq.dequantized_weight(weight, quantizer) - weight
    generator, errors = np.random.default_rng(0), []
    for _ in range(DRAWS):
        model = ir.load(path)
        drawn = weight + rounding * generator.choice((-1, 1), weight.shape)
        model.graph.initializers[name].const_value = ir.tensor(drawn.astype(np.float32), name=name)
        operators.save(model, file := path.with_name("drawn.onnx"))
        errors.append(np.mean((outputs(file, some) - floats) ** 2) / floats.var())
    assert value.output_error == pytest.approx(np.mean(errors), rel=MEAN)


def test_a_value_with_a_far_too_wide_range_is_the_worst(encoder) -> None:
    path, plan_with = encoder
    healthy = plan_with(placement="matmul")
    name = "encoder.layer.0.output.LayerNorm"
    ruined = healthy.model_copy(
        update={
            "decisions": tuple(
                d.model_copy(
                    update={
                        "quantizer": d.quantizer.model_copy(
                            update={"low": 20 * d.quantizer.low, "high": 20 * d.quantizer.high}
                        )
                    }
                )
                if d.site.value == name and d.quantizer is not None
                else d
                for d in healthy.decisions
            )
        }
    )
    steps: list[tuple[int, int]] = []
    before = estimated(path, healthy, rows())
    after = sensitivity.estimate(
        ir.load(path), ruined, rows(), 0, lambda done, of: steps.append((done, of))
    )
    assert steps == [(i + 1, ROWS) for i in range(ROWS)]
    assert after.values[0].value == name
    assert after.values[0].output_error > 10 * after.values[1].output_error
    ours, theirs = ({v.value: v for v in one.values} for one in (after, before))
    # A 20 times wider step is 26 dB, less for values that become 0.
    assert 22 < theirs[name].signal_to_noise_db - ours[name].signal_to_noise_db < 28
    # The others are what they were.
    assert {k: v for k, v in ours.items() if k != name} == {
        k: v for k, v in theirs.items() if k != name
    }
    # Its unit alone stays in float, in all that reads the value.
    kept, named = sensitivity.in_float(ruined, after)
    units = [u for u in search.units_of(ruined) if any(s.value == name for s in u.sites)]
    assert [unit.name for unit in units] == list(named.fallback) == ["layer 1 qkv"]
    assert {site for site, _ in ruined.quantized} - {site for site, _ in kept.quantized} == {
        site for unit in units for site in unit.sites
    }
    reasons = {d.reason for d in kept.decisions if d.site in units[0].sites}
    assert reasons == {"fallback to float for the error that is expected of 8 bits (layer 1 qkv)"}
    errors = search.unit_errors(search.units_of(ruined), after)
    assert named.left == pytest.approx(sum(errors.values()) - errors["layer 1 qkv"])
    assert sensitivity.in_float(healthy, before) == (healthy, before)


@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        ([0.09, 0.001, 0.001, 0.001], 1),
        # Small, if the largest by far; as large as the others; the second stands out when the first is gone.
        ([0.0019, 0.00001, 0.00001, 0.00001], 0),
        ([0.05, 0.05, 0.05, 0.05], 0),
        ([0.5, 0.02, 0.0001, 0.0001, 0.0001], 2),
        ([0.0, 0.0], 0),
    ],
)
def test_units_that_stand_out_stay_in_float(encoder, errors, chosen) -> None:
    _, plan_with = encoder
    plan = plan_with(placement="matmul", disable=["embeddings.*"])
    units = search.units_of(plan)[: len(errors)]
    sites = {site for unit in units for site in unit.sites}
    plan = plan.model_copy(
        update={"decisions": tuple(d for d in plan.decisions if d.site in sites)}
    )
    values = tuple(
        SiteSensitivity(
            value=next(site.value for site in unit.sites if site.is_weight),
            role="linear.weight",
            part=unit.kind,
            module=unit.name,
            layer=0,
            signal_to_noise_db=40.0,
            output_error=error,
        )
        for unit, error in zip(units, errors, strict=True)
    )
    expected = Sensitivity(rows=1, together=sum(errors), values=values)
    kept, named = sensitivity.in_float(plan, expected)
    assert list(named.fallback) == [unit.name for unit in units[:chosen]]
    assert len(search.units_of(kept)) == len(units) - chosen


def test_values_that_are_rounded_at_run_time(encoder) -> None:
    """Per batch on ONNX Runtime; on OpenVINO per token and group of channels, of which the last may be smaller."""
    path, plan_with = encoder
    some = rows()
    batch_wide = estimated(path, plan_with(Dynamic), some)
    per_token = estimated(path, plan_with(Dynamic, "openvino-cpu", group=24), some)
    name = "encoder.layer.0.output.LayerNorm"
    wide, narrow = (
        next(v for v in one.values if v.value == name) for one in (batch_wide, per_token)
    )
    assert narrow.output_error < wide.output_error
    values = np.random.default_rng(0).normal(size=(1, 5, 32)).astype(np.float32)
    for group, parts in ((24, [slice(0, 24), slice(24, 32)]), (64, [slice(0, 32)])):
        found = sensitivity._rounded_at_run_time(values, group)
        for part in parts:
            step = np.abs(values[..., part]).max(-1, keepdims=True) / 127
            np.testing.assert_allclose(
                found[..., part], np.rint(values[..., part] / step) * step, atol=1e-6
            )


@pytest.mark.parametrize("reduce_range", [False, True])
def test_scales_that_a_correction_chose_count(encoder, reduce_range: bool) -> None:
    """The noise of rounding grows with the square of the step. Weights of limited sums have larger steps from the start."""
    path, plan_with = encoder
    name = "encoder.layer.0.output.dense.weight"
    plan = only(plan_with(placement="matmul", reduce_range=reduce_range), name)
    weight = constant(ir.load(path), name)
    ((_, quantizer),) = plan.quantized
    steps = {
        "own": qdq.weight_scale(weight, quantizer),
        "coarse": (np.abs(weight).max(axis=0) / 30).astype(np.float32),
    }
    before, after = (
        estimated(path, plan, rows(), scales=scales).values[0]
        for scales in (None, {name: steps["coarse"]})
    )
    noise = {which: np.mean(step.astype(float) ** 2) for which, step in steps.items()}
    assert before.signal_to_noise_db - after.signal_to_noise_db == pytest.approx(
        10 * np.log10(noise["coarse"] / noise["own"]), abs=0.5
    )


def test_the_noise_of_weights_equals_numpy(encoder) -> None:
    path, plan_with = encoder
    result = estimated(path, plan_with(Dynamic, reduce_range=False), rows(2))
    name = "encoder.layer.1.output.dense.weight"
    weight = constant(ir.load(path), name)
    step = np.abs(weight).max(axis=0) / 127
    noise = np.mean((np.rint(weight / step) * step - weight) ** 2)
    (found,) = (v for v in result.values if v.value == name)
    assert found.signal_to_noise_db == pytest.approx(
        10 * np.log10(np.mean(weight**2) / noise), abs=0.006
    )
    assert sensitivity.decibels(1.0, 0.0) == 200.0


def test_the_estimate_does_not_depend_on_threads(encoder) -> None:
    path, plan_with = encoder
    plan, threads = plan_with(placement="qdqbert"), torch.get_num_threads()
    first = estimated(path, plan, rows(8))
    torch.set_num_threads(1)
    try:
        assert estimated(path, plan, rows(8)) == first
    finally:
        torch.set_num_threads(threads)


def test_a_graph_that_pytorch_cannot_run_has_no_estimate(encoder) -> None:
    """It is quantized as it would be without one."""
    path, plan_with = encoder
    plan, model = plan_with(placement="matmul"), ir.load(path)
    odd = ir.node("Softsign", [model.graph.outputs[0]], name="odd")
    odd.outputs[0].name = "odd"
    model.graph.append(odd)
    model.graph.outputs[0] = odd.outputs[0]
    result = sensitivity.estimate(model, plan, rows(2), 0, silent)
    assert (result.values, result.rows, result.together) == ((), 0, 0.0)
    assert result.unknown == "PyTorch cannot run an operator (Softsign)"
    assert sensitivity.in_float(plan, result) == (plan, result)


def test_outputs_that_do_not_vary_have_an_error_of_their_size(encoder) -> None:
    """One row again and again: the outputs of all rows are the same, and nothing is far from float."""
    path, plan_with = encoder
    plan = plan_with(placement="matmul")
    alike, varied = (estimated(path, plan, some) for some in (rows(1) * 8, rows(8)))
    assert alike.together < 10 * varied.together
    assert sensitivity.in_float(plan, alike) == (plan, alike)


def test_derivatives_that_are_not_finite_are_no_estimate(encoder) -> None:
    path, plan_with = encoder
    model = ir.load(path)
    name = "encoder.layer.0.output.LayerNorm.weight"
    broken = constant(model, name).copy()
    broken[0] = np.nan
    model.graph.initializers[name].const_value = ir.tensor(broken, name=name)
    plan = plan_with(placement="matmul")
    result = sensitivity.estimate(model, plan, rows(2), 0, silent)
    assert result.unknown == "derivatives of the outputs are not finite"
    (sentence,) = expected({"ort-cpu": result})
    assert sentence == (
        "ort-cpu: the expected error is not known: derivatives of the outputs are not finite."
    )


def test_a_plan_takes_the_estimate_of_one_that_quantizes_all_its_values(encoder) -> None:
    """Up to the rounding of the written digits; not where a value is new, has another range, or another reader."""
    path, plan_with = encoder
    larger, smaller = (
        plan_with(target="openvino-cpu", placement=name) for name in ("matmul-scores", "matmul")
    )
    values = [{site.value for site, _ in plan.quantized} for plan in (larger, smaller)]
    assert values[0] > values[1]
    some = rows(8)
    known, direct = estimated(path, larger, some), estimated(path, smaller, some)
    taken = sensitivity.of_part(smaller, larger, known)
    assert taken is not None
    assert taken.rows == direct.rows
    assert taken.together == pytest.approx(direct.together, rel=0.02)
    ours, theirs = ({v.value: v.output_error for v in each.values} for each in (taken, direct))
    assert ours == pytest.approx(theirs, rel=0.02)
    assert sensitivity.of_part(larger, smaller, direct) is None
    site, _ = smaller.quantized[0]
    wider = [
        d.replaced(quantizer=d.quantizer.replaced(reduce_range=True)) if d.site == site else d
        for d in smaller.decisions
    ]
    assert sensitivity.of_part(smaller.replaced(decisions=tuple(wider)), larger, known) is None
    unknown = known.replaced(values=(), unknown="no memory")
    assert sensitivity.of_part(smaller, larger, unknown) is None
