"""Plans and the writer of Q/DQ against NumPy: activations, outputs, embeddings, and dynamic quantization."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.quantization.quant_utils import quantize_data

from octobert import targets
from octobert.core import capability, environment
from octobert.core.errors import PlanError
from octobert.core.plan import LIMITS, OUTPUT, Decision, DType, Quantizer, QuantPlan
from octobert.core.session import SessionEntries, SessionOptions
from octobert.data.encoded import feeds_of
from octobert.graph import operators as ops
from octobert.graph import qdq, sites
from octobert.quantization import placements
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from octobert.targets import runtimes
from tests.support.checkpoints import batch, exact_method
from tests.support.graphs import (
    capabilities,
    constant,
    encoded,
    operator_counts,
    outputs_of,
    plain_session,
    plan_for,
    ranges_for,
    relative_error,
    written,
)
from tests.support.runs import TARGETS

INTEGERS = [dtype for dtype in LIMITS if dtype != "float8e4m3"]
# Integer arithmetic is exact; what remains is float32 rounding of scales and sums.
EXACT = 2e-5
# Allowed relative error of 8-bit outputs on random weights. The worst plan here has 0.04; a wrong scale or axis gives about 1.
LOOSE = 0.1


def weights_of(plan: QuantPlan) -> Quantizer:
    """The quantizer of the weights of all linear layers."""
    (quantizer,) = {quantizer for site, quantizer in plan.quantized if site.role == "linear.weight"}
    return quantizer


def step_of(weight: np.ndarray, plan: QuantPlan) -> np.ndarray:
    """The scales of a weight, by channel; with limited sums of neighbours where this CPU's products saturate."""
    bound = np.abs(weight).max(axis=0)
    if weights_of(plan).reduce_range:
        bound = np.maximum(bound, np.abs(weight[::2] + weight[1::2]).max(axis=0))
    step: np.ndarray = bound / np.float32(127)
    return step


@pytest.mark.parametrize(
    ("low", "high"),
    [(-1.0, 3.0), (0.5, 2.0), (-7.0, -2.0), (-0.17, 40.0), (0.0, 0.0), (1e-30, 2e-30)],
)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_asymmetric_parameters_represent_zero_and_both_ends(
    dtype: DType, low: float, high: float
) -> None:
    quantizer = Quantizer(dtype=dtype, symmetric=False, low=low, high=high)
    lowest, highest = quantizer.limits
    assert highest - lowest == LIMITS[dtype][1] - LIMITS[dtype][0]
    scale, zero = qdq.activation_parameters(quantizer)
    assert lowest <= int(zero) <= highest
    assert zero.dtype == dtype
    assert np.isfinite(scale)
    assert scale > 0
    for end in (min(low, 0.0), max(high, 0.0)):
        code = np.clip(np.rint(end / scale) + int(zero), lowest, highest)
        # Half a scale, as for every value: the zero point is rounded, and the scale is float32.
        assert abs((code - int(zero)) * scale - end) <= scale * 0.51 + 1e-30
    assert (np.rint(0.0 / scale) + int(zero) - int(zero)) * scale == 0.0


@pytest.mark.parametrize(
    ("dtype", "bits"), [("int8", 8), ("uint8", 8), ("int16", 16), ("uint16", 16)]
)
def test_symmetric_parameters(dtype: DType, bits: int) -> None:
    quantizer = Quantizer(dtype=dtype, symmetric=True, low=-3.0, high=1.0)
    scale, point = qdq.activation_parameters(quantizer)
    half = 2 ** (bits - 1)
    assert int(point) == (0 if dtype.startswith("i") else half)
    # As many integers on either side, so that -3 and 3 are both exact.
    assert scale == pytest.approx(3.0 / (half - 1), rel=1e-6)
    lowest, highest = quantizer.limits
    assert lowest <= int(point) - (half - 1) < int(point) + (half - 1) <= highest


def test_weights_per_channel_are_nearest_and_never_saturate() -> None:
    weight = np.random.default_rng(0).normal(size=(16, 5)).astype(np.float32) * np.array(
        [1e-3, 1, 10, 0, 5], dtype=np.float32
    )
    integers, scale = qdq.quantize_weight(weight, Quantizer(dtype="int8", symmetric=True, axis=1))
    assert integers.dtype == np.int8
    assert scale.shape == (5,)
    assert np.abs(integers.astype(int)).max() == 127
    assert np.all(np.abs(integers * scale - weight) <= scale / 2 * 1.0001)
    np.testing.assert_allclose(
        scale[[0, 1, 2, 4]], np.abs(weight).max(axis=0)[[0, 1, 2, 4]] / 127, rtol=1e-6
    )


@pytest.mark.parametrize("shift", [0.0, 0.5, -0.8, 3.0])
def test_asymmetric_weights_are_those_of_onnxruntime(shift: float) -> None:
    weight = (np.random.default_rng(0).normal(size=(16, 5)) + shift).astype(np.float32)
    quantizer = Quantizer(dtype="uint8", symmetric=False)
    numbers, scale = qdq.quantize_weight(weight, quantizer)
    zero, theirs, stored = quantize_data(weight, onnx.TensorProto.UINT8, False)
    assert float(scale) == pytest.approx(float(theirs), rel=EXACT)
    # Numbers around zero: the stored ones less their zero point. Halves may be rounded to the other side.
    assert np.abs(numbers - (stored.reshape(weight.shape).astype(int) - int(zero))).max() <= 1
    assert np.all(np.abs(numbers * scale - weight) <= scale * 1.0001)
    symmetric, wider = qdq.quantize_weight(weight, quantizer.model_copy(update={"symmetric": True}))
    if shift:
        ours, other = (
            np.mean((n * step - weight) ** 2) for n, step in ((numbers, scale), (symmetric, wider))
        )
        assert ours < other
    # A weight on its own grid, as corrections leave it, is found again.
    again, _ = qdq.quantize_weight((numbers * scale).astype(np.float32), quantizer, scale)
    np.testing.assert_array_equal(again, numbers)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", ["integers", "pair"])
def test_asymmetric_weights_are_written_with_their_zero_points(
    float_path, bert_sites, bert_ranges, tmp_path, per_channel, form
) -> None:
    table = capabilities("ort-cpu")
    method = exact_method(
        Static, weights="uint8", weights_symmetric=False, per_channel=per_channel, weight_form=form
    )
    plan = method.plan(bert_sites, bert_ranges, table)
    capability.check(plan, table)
    model = written(float_path, plan, tmp_path / "asymmetric.onnx")
    onnx.checker.check_model(str(tmp_path / "asymmetric.onnx"), full_check=True)
    constants = model.graph.initializers
    name = "encoder.layer.0.attention.self.query.weight"
    zeros = constants[f"{name}.zero_point"].const_value.numpy()
    scale = constants[f"{name}.scale"].const_value.numpy()
    assert (zeros.shape == ()) is not per_channel
    assert len(np.unique(zeros)) > 1 or not per_channel
    weight = ir.load(float_path).graph.initializers[name].const_value.numpy()
    axes = 0 if per_channel else None
    low, high = np.minimum(weight.min(axis=axes), 0), np.maximum(weight.max(axis=axes), 0)
    np.testing.assert_allclose(scale, (high - low) / 255, rtol=EXACT)
    np.testing.assert_array_equal(zeros, np.rint(-low / scale))
    if form == "integers":
        stored = constants[f"{name}.quantized"].const_value.numpy().astype(np.float32)
        np.testing.assert_allclose((stored - zeros) * scale, weight, atol=1.01 * float(scale.max()))
    for other in ("ort-cuda", "openvino-cpu", "tensorrt"):
        with pytest.raises(PlanError):
            capability.check(plan, capabilities(other))
    # Every place that computes with the rounded weight has the same.
    feeds = feeds_of(encoded(), 0)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = ort.InferenceSession(str(tmp_path / "asymmetric.onnx"), settings)
    read = {port.name: feeds[port.name] for port in plain.get_inputs()}
    session = targets.load("ort-cpu").open_session(tmp_path / "asymmetric.onnx", SessionOptions())
    exact = plain.run(["logits"], read)[0]
    assert relative_error(session.run(feeds)["logits"], exact) < 0.05


def test_a_quantized_linear_layer_equals_numpy(model, bert, tmp_path) -> None:
    """The first query layer, from the graph's own input value: y = deq(q(x)) @ deq(q(w)) + b."""
    plan = plan_for(model, bert.family)
    weight = model.graph.initializers[
        "encoder.layer.0.attention.self.query.weight"
    ].const_value.numpy()
    bias = model.graph.initializers["encoder.layer.0.attention.self.query.bias"].const_value.numpy()
    qdq.write(model, plan)
    values = {v.name: v for n in model.graph for v in n.outputs}
    model.graph.outputs[:] = [
        values["embeddings.LayerNorm"],
        values["encoder.layer.0.attention.self.query"],
    ]
    ops.save(model, tmp_path / "one.onnx")
    feeds = {k: v for k, v in batch([9, 4]).items()}
    x, y = ort.InferenceSession(str(tmp_path / "one.onnx")).run(None, feeds)
    scale, zero = np.float32(8.0 / 255), 128
    x8 = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    step = step_of(weight, plan)
    w8 = np.rint(weight / step) * step
    np.testing.assert_allclose(y, x8 @ w8 + bias, rtol=EXACT, atol=EXACT * np.abs(y).max())


def test_embedding_rows_equal_numpy(model, bert, tmp_path) -> None:
    table = model.graph.initializers["embeddings.word_embeddings.weight"].const_value.numpy()
    qdq.write(model, plan_for(model, bert.family))
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


def test_sites_that_share_a_value_share_one_pair(model, bert) -> None:
    qdq.write(model, plan_for(model, bert.family))
    counts = {"QuantizeLinear": 0, "DequantizeLinear": 0}
    for node in model.graph:
        if node.op_type in counts:
            counts[node.op_type] += 1
    # Per layer: the input of Q, K and V; the context; the input of each feed-forward product. Weights only dequantize.
    assert counts == {"QuantizeLinear": 2 * 4, "DequantizeLinear": 2 * 4 + 12}


def test_what_is_float_keeps_reading_the_float_value(model, bert) -> None:
    qdq.write(model, plan_for(model, bert.family))
    add = next(
        n for n in model.graph if n.name == "encoder.layer.0.attention.output.LayerNorm.input"
    )
    assert [v.name for v in add.inputs] == [
        "encoder.layer.0.attention.output.dense",
        "embeddings.LayerNorm",
    ]
    head = next(n for n in model.graph if n.name == "classifier.matmul")
    assert head.inputs[1].name == "classifier.weight"


def test_a_plan_has_a_reason_for_everything(model, bert) -> None:
    plan = plan_for(model, bert.family)
    assert all(d.reason for d in plan.decisions)
    floats = {d.site.role: d.reason for d in plan.decisions if d.quantizer is None}
    assert "outliers" in floats["residual.skip"]
    assert QuantPlan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.counts()["linear.weight"] == (12, 12)


def test_a_plan_that_quantizes_nothing_is_an_error(model, bert) -> None:
    plan = plan_for(model, bert.family, disable=["*"])
    with pytest.raises(PlanError, match=r"the plan quantizes nothing.*disabled by"):
        qdq.write(model, plan)


@pytest.mark.parametrize(
    "wrong",
    [
        {"node": "elsewhere"},
        {"value": "another"},
        {"input": 1},
        {"input": OUTPUT},
        pytest.param({"input": 2}),
    ],
)
def test_a_plan_for_another_graph_is_an_error(model, bert, wrong) -> None:
    plan = plan_for(model, bert.family)
    first = next(d for d in plan.decisions if d.quantizer)
    moved = first.model_copy(update={"site": first.site.model_copy(update=wrong)})
    with pytest.raises(PlanError, match=f"{moved.site.node}: the plan was made for another graph"):
        qdq.write(model, plan.model_copy(update={"decisions": (moved,)}))


def test_a_pattern_that_matches_nothing_is_an_error(model, bert) -> None:
    with pytest.raises(PlanError, match=r'"encoder.layer.9.*" matches no module'):
        plan_for(model, bert.family, disable=["encoder.layer.9.*"])


def test_disabled_modules_stay_float(model, bert) -> None:
    plan = plan_for(model, bert.family, disable=["encoder.layer.0.*"])
    assert {s.layer for s, _ in plan.quantized} == {1, None}


def test_a_missing_range_is_an_error(model, bert) -> None:
    placed = sites.find_sites(model.graph, bert.family)
    ranges = ranges_for(placed).model_copy(update={"intervals": {}})
    with pytest.raises(PlanError, match=r'no calibrated range for "embeddings\.LayerNorm"'):
        Static().plan(placed, ranges, capabilities("ort-cpu"))


def test_a_type_that_the_target_refuses_is_an_error(model, bert, bert_sites) -> None:
    plan_for(model, bert.family, activations="int8")
    strict = capabilities("ort-cpu").but(activations={"simulated": ()})
    plan = Static(activations="int8").plan(bert_sites, ranges_for(bert_sites), strict)
    wanted = r"ort-cpu takes asymmetric uint8 or symmetric uint8 activations, not symmetric int8.*repair: true"
    with pytest.raises(PlanError, match=wanted):
        capability.check(plan, strict)


def test_a_plan_is_checked_against_the_target(golden, model, bert) -> None:
    plan = plan_for(model, bert.family, "openvino-cpu", activations="int8", reduce_range=False)
    capability.check(plan, capabilities("openvino-cpu"))
    capability.check(plan, capabilities("ort-cpu"))
    strict = capabilities("ort-cpu").but(activations={"simulated": ()})
    with golden.raises(PlanError):
        capability.check(plan, strict)
    site = plan.quantized[1][0]
    wrong = Decision(
        site=site, quantizer=Quantizer(dtype="int8", symmetric=True, axis=0), reason=""
    )
    broken = plan.model_copy(update={"decisions": (wrong,)})
    assert (
        "one scale per index of axis 1" in capability.violations(broken, capabilities("ort-cpu"))[0]
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("placement", [*placements.names(), ("linear.*@ffn_*",)], ids=str)
def test_every_placement_on_every_target_follows_the_float_model(
    float_path, bert_sites, bert_ranges, float_logits, tmp_path, target, placement
) -> None:
    plan = exact_method(Static, target, placement=placement).plan(
        bert_sites, bert_ranges, capabilities(target)
    )
    capability.check(plan, capabilities(target))
    path = tmp_path / "model_quantized.onnx"
    written(float_path, plan, path)
    onnx.checker.check_model(str(path), full_check=True)
    feeds = feeds_of(encoded(), 0)
    ours = targets.load(target).open_session(path, SessionOptions()).run(feeds)["logits"]
    assert 1e-5 < relative_error(ours, float_logits) < LOOSE
    if target == "ort-cpu":
        np.testing.assert_allclose(ours, outputs_of(path, feeds), atol=0.02 * np.abs(ours).max())


def test_where_outputs_are_quantized_every_linear_layer_reads_8_bits(
    float_path, bert_sites, bert_ranges, tmp_path
) -> None:
    plan = Static(placement="qdqbert-row").plan(bert_sites, bert_ranges, capabilities("ort-cpu"))
    nodes = {n.name: n for n in written(float_path, plan, tmp_path / "row.onnx").graph}
    products = [s.node for s in bert_sites if s.role == "linear.weight"]
    assert len(products) == 12
    for name in products:
        kinds = []
        for value in nodes[name].inputs:
            assert value.producer().op_type == "DequantizeLinear", value.name
            kinds.append(value.producer().inputs[0].dtype)
        # The integers of the activation come from a QuantizeLinear; those of the weight are stored.
        assert kinds == [ir.DataType.UINT8, ir.DataType.INT8], name


def test_all_readers_of_a_quantized_output_read_the_pair(model, bert_sites, bert_ranges) -> None:
    # Linear layers and a residual add read every LayerNorm; that of the embeddings is also a graph output.
    values = {v.name: v for n in model.graph for v in n.outputs}
    model.graph.outputs.append(values["embeddings.LayerNorm"])
    before = {s.value: len(values[s.value].uses()) for s in bert_sites if s.input == OUTPUT}
    plan = Static(placement="qdqbert-row").plan(bert_sites, bert_ranges, capabilities("ort-cpu"))
    qdq.write(model, plan)
    assert [v.name for v in model.graph.outputs] == ["logits", "embeddings.LayerNorm"]
    outputs = [s.value for s, _ in plan.quantized if s.input == OUTPUT]
    assert operator_counts(model)["QuantizeLinear"] == len(outputs) == 25
    values = {v.name: v for n in model.graph for v in n.outputs}
    for name in outputs:
        assert [n.op_type for n, _ in values[name].uses()] == ["QuantizeLinear"], name
        assert len(values[f"{name}.dequantized"].uses()) == before[name]
    assert before["embeddings.LayerNorm"] == 4


@pytest.mark.parametrize("activations", ["uint16", "int16"])
def test_16_bit_activations_leave_only_the_error_of_the_weights(
    float_path, bert_sites, bert_ranges, float_logits, tmp_path, activations
) -> None:
    feeds, table = feeds_of(encoded(), 0), capabilities("ort-cpu")
    results = {}
    for kind in ("auto", activations):
        plan = exact_method(Static, placement="qdqbert", activations=kind).plan(
            bert_sites, bert_ranges, table
        )
        capability.check(plan, table)
        model = written(float_path, plan, tmp_path / f"{kind}.onnx")
        assert model.opset_imports[""] == (18 if kind == "auto" else 21)
        onnx.checker.check_model(str(tmp_path / f"{kind}.onnx"), full_check=True)
        entries = runtimes.entries_in(SessionEntries(), table, plan.float_parts, per_token=False)
        session = targets.load("ort-cpu").open_session(
            tmp_path / f"{kind}.onnx", SessionOptions(entries=entries)
        )
        results[kind] = session.run(feeds)["logits"]
    assert relative_error(results[activations], float_logits) < relative_error(
        results["auto"], float_logits
    )
    weights = plan.model_copy(
        update={"decisions": tuple(d for d in plan.decisions if d.site.is_weight)}
    )
    written(float_path, weights, tmp_path / "weights.onnx")
    alone = outputs_of(tmp_path / "weights.onnx", feeds)
    # Scales are 256 times smaller; a tenth of that gain is required, because errors pass through a random network.
    assert relative_error(results[activations], alone) < relative_error(results["auto"], alone) / 25


def _openvino_16_bit(float_path, placed, chosen, folder) -> tuple[np.ndarray, np.ndarray]:
    module = targets.load("openvino-cpu")
    probe = module.probe()
    if not probe.available:
        pytest.skip(str(probe.missing))
    method = exact_method(Static, "openvino-cpu", placement="qdqbert", activations="uint16")
    plan = method.plan(placed, chosen, module.capabilities)
    capability.check(plan, module.capabilities)
    path = folder / "model_quantized.onnx"
    written(float_path, plan, path)
    feeds = feeds_of(encoded(), 0)
    return module.open_session(path, SessionOptions()).run(feeds)["logits"], outputs_of(path, feeds)


def test_openvino_opens_16_bit_activations(
    float_path, bert_sites, bert_ranges, float_logits, tmp_path
) -> None:
    ours, _ = _openvino_16_bit(float_path, bert_sites, bert_ranges, tmp_path)
    assert relative_error(ours, float_logits) < LOOSE


def test_openvino_computes_16_bit_activations_in_float(
    float_path, bert_sites, bert_ranges, tmp_path
) -> None:
    if not set(capabilities("openvino-cpu").saturates_without) & set(
        environment.current().features
    ):
        pytest.skip("OpenVINO quantizes dynamically on CPUs with VNNI or AMX only")
    ours, reference = _openvino_16_bit(float_path, bert_sites, bert_ranges, tmp_path)
    assert relative_error(ours, reference) < 1e-3


def test_q_k_and_v_per_tensor_share_one_weight_scale(model, bert_sites, bert_ranges) -> None:
    method = Static(placement="matmul-attention", fuse_qkv=True, per_channel=False)
    weights = {s.value: constant(model, s.value) for s in bert_sites if s.role == "linear.weight"}
    qdq.write(model, method.plan(bert_sites, bert_ranges, capabilities("ort-cpu")))
    common = []
    for layer in range(2):
        names = [
            f"encoder.layer.{layer}.attention.self.{part}.weight"
            for part in ("query", "key", "value")
        ]
        scales = {float(constant(model, f"{name}.scale")) for name in names}
        assert scales == {
            float(np.float32(max(np.abs(weights[name]).max() for name in names) / np.float32(127)))
        }
        common += scales
    assert len(set(common)) == 2
    other = constant(model, "encoder.layer.0.output.dense.weight.scale")
    assert float(other) == pytest.approx(
        np.abs(weights["encoder.layer.0.output.dense.weight"]).max() / 127
    )


@pytest.mark.parametrize(("enable", "heads"), [((), 0), (("pooler", "classifier"), 2)])
def test_dynamic_quantization_is_written_once_for_a_shared_input(
    float_path, bert_sites, bert_ranges, float_logits, tmp_path, enable, heads
) -> None:
    plan = exact_method(Dynamic, enable=enable).plan(
        bert_sites, bert_ranges, capabilities("ort-cpu")
    )
    path = tmp_path / "dynamic.onnx"
    model = written(float_path, plan, path)
    # Per layer: the input of Q, K and V; the context; the input of each feed-forward product.
    assert operator_counts(model)["DynamicQuantizeLinear"] == 2 * 4 + heads
    assert operator_counts(model)["MatMulInteger"] == 2 * 6 + heads
    assert (
        operator_counts(model)["QuantizeLinear"] == operator_counts(model)["DequantizeLinear"] == 0
    )
    nodes = {n.name: n for n in model.graph}
    shared = [
        nodes[f"encoder.layer.1.attention.self.{part}.matmul.integer"]
        for part in ("query", "key", "value")
    ]
    assert len({n.inputs[0] for n in shared}) == 1
    onnx.checker.check_model(str(path), full_check=True)
    session = targets.load("ort-cpu").open_session(path, SessionOptions())
    feeds = feeds_of(encoded(), 0)
    assert 1e-5 < relative_error(session.run(feeds)["logits"], float_logits) < LOOSE


def test_a_dynamic_linear_layer_equals_numpy(model, bert_sites, bert_ranges, tmp_path) -> None:
    """DynamicQuantizeLinear, the integer product and both scales, from the graph's own input value."""
    name = "encoder.layer.0.intermediate.dense"
    weight, bias = constant(model, f"{name}.weight"), constant(model, f"{name}.bias")
    plan = exact_method(Dynamic).plan(bert_sites, bert_ranges, capabilities("ort-cpu"))
    qdq.write(model, plan)
    values = {v.name: v for n in model.graph for v in n.outputs}
    model.graph.outputs[:] = [values["encoder.layer.0.attention.output.LayerNorm"], values[name]]
    ops.save(model, tmp_path / "one.onnx")
    x, y = plain_session(tmp_path / "one.onnx").run(None, batch([9, 4]))
    scale = (max(x.max(), 0) - min(x.min(), 0)) / np.float32(255)
    zero = np.clip(np.rint(-min(x.min(), 0) / scale), 0, 255)
    x8 = np.clip(np.rint(x / scale) + zero, 0, 255) - zero
    step = step_of(weight, plan)
    product = x8.astype(np.int64) @ np.rint(weight / step).astype(np.int64)
    np.testing.assert_allclose(
        y, product * (scale * step) + bias, rtol=EXACT, atol=EXACT * np.abs(y).max()
    )


def test_a_dynamic_input_beside_a_float_weight_is_an_error(
    golden, model, bert_sites, bert_ranges
) -> None:
    plan = Dynamic(disable=("query:linear.weight",)).plan(
        bert_sites, bert_ranges, capabilities("ort-cpu")
    )
    with golden.raises(PlanError):
        qdq.write(model, plan)


def test_a_dynamic_head_without_bias_may_be_the_output(model, bert, bert_ranges) -> None:
    nodes = {n.name: n for n in model.graph}
    product = nodes["classifier.matmul"].outputs[0]
    model.graph.outputs[:] = [product]
    model.graph.remove(nodes["classifier"], safe=True)
    product.name = "logits"
    placed = sites.find_sites(model.graph, bert.family)
    qdq.write(
        model,
        Dynamic(enable=("classifier",)).plan(placed, bert_ranges, capabilities("ort-cpu")),
    )
    assert [v.name for v in model.graph.outputs] == ["logits"]
