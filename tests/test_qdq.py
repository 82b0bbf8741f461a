"""Plans, and the one writer of Q/DQ, against NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert import capability, plugins
from octobert.capability import Capabilities
from octobert.errors import PlanError
from octobert.graph import capture, ops, qdq, sites
from octobert.methods import static
from octobert.plan import Decision, Quantizer, QuantPlan, Site
from octobert.ranges import Interval, Ranges
from tests.tiny import batch

TARGETS = plugins.names("targets")
# Integer arithmetic is exact; what remains is float32 rounding of scales and sums.
EXACT = 2e-5


@pytest.fixture(scope="module")
def captured(checkpoint):
    return capture.capture(checkpoint("bert"), "sequence-classification", [batch([9, 4])])


@pytest.fixture
def model(captured, tmp_path):
    ops.save(captured.model, tmp_path / "float.onnx")
    return ir.load(tmp_path / "float.onnx")


def ranges_for(found: tuple[Site, ...], low: float = -4.0, high: float = 4.0) -> Ranges:
    interval = Interval(low=low, high=high, bound=max(-low, high))
    provenance = {"samples": 1, "tokens": 1, "data_digest": "", "model_digest": "", "source": "test"}
    values = {s.value: interval for s in found if not s.is_weight}
    return Ranges(calibrator="minmax", options={}, intervals=values, provenance=provenance)


def capabilities(name: str) -> Capabilities:
    return plugins.load("targets", name).CAPABILITIES


def plan_for(model, captured, target: str = "ort-cpu", **options: object) -> QuantPlan:
    found = sites.find_sites(model.graph, captured.encoder)
    return static.plan(found, ranges_for(found), capabilities(target), static.Options(**options))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (-7.0, -2.0), (-0.17, 40.0), (0.0, 0.0), (1e-30, 2e-30)])
def test_asymmetric_parameters_represent_zero_and_both_ends(low: float, high: float) -> None:
    for dtype, lowest, highest in (("uint8", 0, 255), ("int8", -128, 127)):
        quantizer = Quantizer(dtype=dtype, symmetric=False, low=low, high=high)
        scale, zero = qdq.activation_parameters(quantizer)
        assert lowest <= int(zero) <= highest
        assert np.isfinite(scale)
        assert scale > 0
        for end in (min(low, 0.0), max(high, 0.0)):
            code = np.clip(np.rint(end / scale) + int(zero), lowest, highest)
            assert abs((code - int(zero)) * scale - end) <= scale * 1.01 + 1e-30
        assert (np.rint(0.0 / scale) + int(zero) - int(zero)) * scale == 0.0


@pytest.mark.parametrize(("dtype", "zero"), [("int8", 0), ("uint8", 128)])
def test_symmetric_parameters(dtype: str, zero: int) -> None:
    scale, point = qdq.activation_parameters(Quantizer(dtype=dtype, symmetric=True, low=-3.0, high=1.0))
    assert int(point) == zero
    assert scale == pytest.approx(3.0 / 127)


def test_weights_per_channel_are_nearest_and_never_saturate() -> None:
    weight = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32) * np.array([1e-3, 1, 10, 0, 5], dtype=np.float32)
    integers, scale = qdq.quantize_weight(weight, Quantizer(dtype="int8", symmetric=True, axis=1))
    assert integers.dtype == np.int8
    assert scale.shape == (5,)
    assert np.abs(integers.astype(int)).max() == 127
    assert np.all(np.abs(integers * scale - weight) <= scale / 2 * 1.0001)
    np.testing.assert_allclose(scale[[0, 1, 2, 4]], np.abs(weight).max(axis=0)[[0, 1, 2, 4]] / 127, rtol=1e-6)


def test_a_quantized_linear_layer_equals_numpy(model, captured, tmp_path) -> None:
    """The first query layer, from the graph's own input value: y = deq(q(x)) @ deq(q(w)) + b."""
    plan = plan_for(model, captured)
    weight = model.graph.initializers["encoder.layer.0.attention.self.query.weight"].const_value.numpy()
    bias = model.graph.initializers["encoder.layer.0.attention.self.query.bias"].const_value.numpy()
    qdq.write(model, plan)
    values = {v.name: v for n in model.graph for v in n.outputs}
    model.graph.outputs[:] = [values["embeddings.LayerNorm"], values["encoder.layer.0.attention.self.query"]]
    ops.save(model, tmp_path / "one.onnx")
    feeds = {k: v for k, v in batch([9, 4]).items()}
    x, y = ort.InferenceSession(str(tmp_path / "one.onnx")).run(None, feeds)
    scale, zero = np.float32(8.0 / 255), 128
    x8 = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    step = np.abs(weight).max(axis=0) / 127
    w8 = np.clip(np.rint(weight / step), -127, 127) * step
    np.testing.assert_allclose(y, x8 @ w8 + bias, rtol=EXACT, atol=EXACT * np.abs(y).max())


def test_embedding_rows_equal_numpy(model, captured, tmp_path) -> None:
    table = model.graph.initializers["embeddings.word_embeddings.weight"].const_value.numpy()
    qdq.write(model, plan_for(model, captured))
    assert "embeddings.word_embeddings.weight" not in model.graph.initializers
    values = {v.name: v for n in model.graph for v in n.outputs}
    model.graph.outputs[:] = [values["embeddings.word_embeddings.weight.dequantized"]]
    ops.save(model, tmp_path / "rows.onnx")
    feeds = batch([9, 4])
    session = ort.InferenceSession(str(tmp_path / "rows.onnx"))
    (rows,) = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    step = np.maximum(np.abs(table).max(axis=1, keepdims=True) / 127, np.finfo(np.float32).tiny)
    expected = (np.rint(table / step) * step)[feeds["input_ids"]]
    np.testing.assert_allclose(rows, expected, rtol=EXACT, atol=EXACT)


def test_sites_that_share_a_value_share_one_pair(model, captured) -> None:
    qdq.write(model, plan_for(model, captured))
    counts = {"QuantizeLinear": 0, "DequantizeLinear": 0}
    for node in model.graph:
        if node.op_type in counts:
            counts[node.op_type] += 1
    # Per layer: the input of Q, K and V; the context; the input of each feed-forward product. Weights only dequantize.
    assert counts == {"QuantizeLinear": 2 * 4, "DequantizeLinear": 2 * 4 + 12}


def test_what_is_float_keeps_reading_the_float_value(model, captured) -> None:
    qdq.write(model, plan_for(model, captured))
    add = next(n for n in model.graph if n.name == "encoder.layer.0.attention.output.LayerNorm.input")
    assert [v.name for v in add.inputs] == ["encoder.layer.0.attention.output.dense", "embeddings.LayerNorm"]
    head = next(n for n in model.graph if n.name == "classifier.matmul")
    assert head.inputs[1].name == "classifier.weight"


def test_a_plan_has_a_reason_for_everything(model, captured) -> None:
    plan = plan_for(model, captured)
    assert all(d.reason for d in plan.decisions)
    floats = {d.site.role: d.reason for d in plan.decisions if d.quantizer is None}
    assert "outliers" in floats["residual.skip"]
    assert QuantPlan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.counts()["linear.weight"] == (12, 12)


def test_a_plan_that_quantizes_nothing_is_an_error(model, captured) -> None:
    plan = plan_for(model, captured, exclude=["*"])
    with pytest.raises(PlanError, match=r"the plan quantizes nothing.*excluded by"):
        qdq.write(model, plan)


def test_a_plan_for_another_graph_is_an_error(model, captured) -> None:
    plan = plan_for(model, captured)
    first = next(d for d in plan.decisions if d.quantizer)
    moved = first.model_copy(update={"site": first.site.model_copy(update={"node": "elsewhere"})})
    with pytest.raises(PlanError, match="elsewhere: the plan does not fit the graph"):
        qdq.write(model, plan.model_copy(update={"decisions": (moved,)}))


def test_a_pattern_that_matches_nothing_is_an_error(model, captured) -> None:
    with pytest.raises(PlanError, match=r'"encoder.layer.9.*" matches no module'):
        plan_for(model, captured, exclude=["encoder.layer.9.*"])


def test_excluded_modules_stay_float(model, captured) -> None:
    plan = plan_for(model, captured, exclude=["encoder.layer.0.*"])
    assert {s.layer for s, _ in plan.quantized} == {1, None}


def test_a_missing_range_is_an_error(model, captured) -> None:
    found = sites.find_sites(model.graph, captured.encoder)
    ranges = ranges_for(found).model_copy(update={"intervals": {}})
    with pytest.raises(PlanError, match=r'no range was calibrated for "embeddings\.LayerNorm"'):
        static.plan(found, ranges, capabilities("ort-cpu"), static.Options())


def test_a_type_that_the_target_runs_in_float_is_an_error(model, captured) -> None:
    with pytest.raises(PlanError, match=r"ort-cpu does not run int8 activations in integers.*uint8.*use auto"):
        plan_for(model, captured, activations="int8")


def test_a_plan_is_checked_against_the_target(model, captured) -> None:
    plan = plan_for(model, captured, "openvino-cpu", activations="int8")
    capability.check(plan, capabilities("openvino-cpu"))
    with pytest.raises(
        PlanError, match=r"breaks \d+ rules of the target.*does not run .* int8 activations in integers; .* and \d+ more"
    ):
        capability.check(plan, capabilities("ort-cpu"))
    site = plan.quantized[1][0]
    wrong = Decision(site=site, quantizer=Quantizer(dtype="int8", symmetric=True, axis=0), reason="")
    broken = plan.model_copy(update={"decisions": (wrong,)})
    assert "one scale per index of axis 1" in capability.violations(broken, capabilities("ort-cpu"))[0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("placement", plugins.names("placements"))
def test_every_placement_on_every_target_follows_the_float_model(model, captured, tmp_path, target, placement) -> None:
    probe = plugins.load("targets", target).probe()
    if not probe.available:
        pytest.skip(str(probe.missing))
    found = sites.find_sites(model.graph, captured.encoder)
    plan = static.plan(found, ranges_for(found, -6, 6), capabilities(target), static.Options(placement=placement))
    capability.check(plan, capabilities(target))
    qdq.write(model, plan)
    path = tmp_path / "model_quantized.onnx"
    ops.save(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    from octobert.session import SessionOptions

    module = plugins.load("targets", target)
    feeds = batch([9, 4, 13])
    ours = module.open_session(path, SessionOptions()).run(feeds)["logits"]
    theirs = ort.InferenceSession(str(tmp_path / "float.onnx")).run(None, feeds)[0]
    error = np.sqrt(np.mean((ours - theirs) ** 2)) / np.sqrt(np.mean(theirs**2))
    # Random weights are the hardest case for 8 bits; a broken scale or axis gives an error near or above 1.
    assert 1e-5 < error < 0.35
    if target != "ort-cpu":
        return
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    reference = ort.InferenceSession(str(path), plain).run(None, feeds)[0]
    np.testing.assert_allclose(ours, reference, atol=0.02 * np.abs(reference).max())
