"""Conversion to float16: the same outputs within float16 precision, and float32 where float16 is not enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from octobert import targets
from octobert.core.errors import ModelError
from octobert.core.heads import head_of
from octobert.core.plan import Decision, QuantPlan
from octobert.core.session import SessionOptions
from octobert.data.encoded import feeds_of
from octobert.graph import operators, qdq, sites
from octobert.graph.capture import shapes
from octobert.graph.capture.capture import Captured
from octobert.graph.capture.pooling import append_pooling_
from octobert.graph.passes import float16
from octobert.models.pooling import pooler_of
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from tests.support.checkpoints import exact_method
from tests.support.graphs import (
    capabilities,
    encoded,
    outputs_of,
    ranges_of,
    relative_error,
    statistics_of,
)
from tests.support.pooling import write_modules

# Relative error of the outputs of a float graph: 11 binary digits, a few dozen roundings. The worst here has 0.0015.
HALF = 3e-3
# Between a quantized graph and its float16 form: rounding to 11 digits moves some activations to the next integer, and after
# two layers the 8-bit errors of both graphs are independent, here 0.015 to 0.04 each. The worst has 0.026.
QUANTIZED_HALF = 4e-2
# The error relative to the float model must not grow; by chance it shrinks for all plans here.
NO_WORSE = 1.2
HEADS = [
    ("bert", "embedding"),
    ("bert", "sequence-classification"),
    ("roberta", "question-answering"),
    ("distilbert", "token-classification"),
    ("electra", "sequence-classification"),
]
OPTIONS = [
    {},
    {"placement": "qdqbert"},
    {"placement": "matmul-attention", "weight_form": "pair", "weight_ranges": "mse"},
    {"placement": "qdqbert-row", "per_channel": False, "reduce_range": True, "embeddings": "float"},
    {"activations": "uint16"},
]

EMBEDDING = head_of("embedding")


class Model:
    """A tiny encoder: its float graph in a file, its sites, ranges and outputs."""

    def __init__(self, captured: Captured, path: Path, pad_id: int) -> None:
        operators.save(captured.model, path)
        self.path, self.family = path, captured.family
        self.feeds = feeds_of(encoded(), pad_id)
        self.outputs = run(path, self.feeds)


@pytest.fixture(scope="module")
def tiny(captured, tmp_path_factory):
    """`tiny("bert", "embedding")`, captured once."""
    made: dict[tuple[str, str], Model] = {}
    folder = tmp_path_factory.mktemp("half")

    def get(family: str, head: str) -> Model:
        if (family, head) not in made:
            path = folder / f"{family}-{head}.onnx"
            made[family, head] = Model(
                captured(family, head), path, 1 if family == "roberta" else 0
            )
        return made[family, head]

    return get


@pytest.fixture(scope="module")
def classifier(tiny) -> Model:
    return tiny("bert", "sequence-classification")


@pytest.fixture(scope="module")
def placed(classifier):
    return sites.find_sites(ir.load(classifier.path).graph, classifier.family)


@pytest.fixture(scope="module")
def measured(classifier, placed):
    return ranges_of(statistics_of(classifier.path, placed))


def write_(model: ir.Model, plan: QuantPlan) -> None:
    """Write a plan and convert the float parts, as in the files of targets."""
    qdq.write(model, plan)
    float16.convert_(model, plan.float_parts)


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), settings)
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


def halved(source: Path, path: Path) -> ir.Model:
    model = ir.load(source)
    float16.convert_(model)
    return checked(model, path)


def checked(model: ir.Model, path: Path) -> ir.Model:
    operators.save(model, path)
    onnx.checker.check_model(str(path), full_check=True)
    return model


def float32_constants(model: ir.Model) -> set[str]:
    """The constants with more than one number."""
    constants = model.graph.initializers.items()
    return {
        name for name, v in constants if v.dtype == ir.DataType.FLOAT and v.const_value.size > 1
    }


def norm_vectors(model: ir.Model) -> set[str]:
    return {
        str(v.name) for n in model.graph if n.op_type == "LayerNormalization" for v in n.inputs[1:]
    }


def make_model(
    nodes: list, inputs: list, outputs: list, constants: dict[str, np.ndarray]
) -> ir.Model:
    """A graph of opset 18 from nodes and (name, shape) of float32 inputs and outputs."""

    def info(values: list) -> list:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values
        ]

    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "made", info(inputs), info(outputs), stored)
    return ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    )


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_float16_follows_float32(tiny, tmp_path, family, head) -> None:
    source = tiny(family, head)
    before = ir.load(source.path).graph
    model = halved(source.path, tmp_path / "half.onnx")
    assert float32_constants(model) == norm_vectors(model)
    assert model.opset_imports[""] == 19
    for ours, theirs in zip(
        [*model.graph.inputs, *model.graph.outputs], [*before.inputs, *before.outputs], strict=True
    ):
        assert (ours.name, ours.dtype, ours.shape) == (theirs.name, theirs.dtype, theirs.shape)
    for ours, theirs in zip(run(tmp_path / "half.onnx", source.feeds), source.outputs, strict=True):
        assert ours.dtype == np.float32
        assert 1e-5 < relative_error(ours, theirs) < HALF
    # Sums over tokens could overflow.
    products = [n for n in model.graph if n.op_type == "MatMul" and "pooling" not in str(n.name)]
    assert products
    assert all(v.dtype == ir.DataType.FLOAT16 for n in products for v in (*n.inputs, *n.outputs))
    # Half the bytes, except for norms and names.
    assert (tmp_path / "half.onnx").stat().st_size < 0.8 * source.path.stat().st_size


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_quantized_graph_in_float16(classifier, placed, measured, tmp_path, options) -> None:
    paths, models = [], []
    for parts in ("float32", "float16"):
        plan = Static(**options, float_parts=parts).plan(placed, measured, capabilities("ort-cpu"))
        assert QuantPlan.model_validate_json(plan.model_dump_json()).float_parts == parts
        models.append(ir.load(classifier.path))
        write_(models[-1], plan)
        paths.append(tmp_path / f"{parts}.onnx")
        checked(models[-1], paths[-1])
    full, halves = models
    assert float32_constants(halves) == norm_vectors(halves)
    theirs, ours = (outputs_of(path, classifier.feeds) for path in paths)
    assert relative_error(ours, theirs) < QUANTIZED_HALF
    (reference,) = classifier.outputs
    assert relative_error(ours, reference) < NO_WORSE * relative_error(theirs, reference)
    optimized = (
        targets.load("ort-cpu")
        .open_session(paths[1], SessionOptions())
        .run(classifier.feeds)["logits"]
    )
    assert relative_error(optimized, theirs) < QUANTIZED_HALF
    # Integers are those of the weight with a scale of 11 digits: at most 1 apart, if the float was near a half.
    names = [n for n, v in full.graph.initializers.items() if n.endswith(".quantized")]
    for name in names:
        first, second = (m.graph.initializers[name].const_value.numpy() for m in models)
        assert first.dtype == second.dtype == np.int8
        assert np.abs(first.astype(int) - second).max() <= 1
        assert np.mean(first != second) < 0.02
    if options.get("activations") == "uint16":
        assert relative_error(ours, theirs) < HALF
    scaled = [n for n in halves.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert {n.inputs[1].dtype for n in scaled} == {ir.DataType.FLOAT16}


def test_weights_are_integers_times_the_scale_in_the_file(
    classifier, placed, measured, tmp_path
) -> None:
    """The integers nearest to the float weights with the stored scale, with and without a pair."""
    name = next(s.value for s in placed if s.role == "linear.weight")
    weight = ir.load(classifier.path).graph.initializers[name].const_value.numpy()
    integers = {}
    for form in ("integers", "pair"):
        chosen = Static(weight_form=form, float_parts="float16")
        model = ir.load(classifier.path)
        write_(model, chosen.plan(placed, measured, capabilities("ort-cpu")))
        scale = model.graph.initializers[f"{name}.scale"].const_value.numpy()
        assert scale.dtype == np.float16
        stored = (
            model.graph.initializers.get(f"{name}.quantized")
            or model.graph.initializers[f"{name}.rounded"]
        )
        array = stored.const_value.numpy()
        integers[form] = (
            array
            if form == "integers"
            else np.rint(array.astype(np.float32) / scale.astype(np.float32))
        )
    expected = np.clip(np.rint(weight / scale.astype(np.float32)), -127, 127)
    np.testing.assert_array_equal(integers["integers"], expected)
    np.testing.assert_array_equal(integers["pair"], expected)


def test_openvino_reads_the_same_file(classifier, placed, measured, tmp_path) -> None:
    target = targets.load("openvino-cpu")
    if not target.probe().available:
        pytest.skip("openvino is not installed")
    results = []
    for parts in ("float32", "float16"):
        model = ir.load(classifier.path)
        method = exact_method(Static, "openvino-cpu", float_parts=parts)
        write_(model, method.plan(placed, measured, target.capabilities))
        checked(model, tmp_path / f"{parts}.onnx")
        results.append(
            target.open_session(tmp_path / f"{parts}.onnx", SessionOptions()).run(classifier.feeds)[
                "logits"
            ]
        )
    assert results[1].dtype == np.float32
    assert relative_error(results[1], results[0]) < QUANTIZED_HALF


def test_pooling_stays_float32(tiny, tmp_path) -> None:
    model = halved(tiny("bert", "embedding").path, tmp_path / "half.onnx")
    pooling = [n for n in model.graph if str(n.name).startswith(("pooling.", "sentence_embedding"))]
    assert len(pooling) > 5
    assert all(
        v.dtype != ir.DataType.FLOAT16
        for n in pooling
        for v in (*n.inputs, *n.outputs)
        if v is not None
    )
    assert float(model.graph.initializers["pooling.min_tokens"].const_value.numpy()) == np.float32(
        1e-9
    )
    # There are no Casts after the last norm: its float32 output is pooled.
    assert model.graph.outputs[0].producer().op_type != "Cast"


def test_what_follows_the_pooling_stays_float32(bert, tmp_path) -> None:
    """Modules with weights too, though a classifier's become float16; the lowest number that a maximum begins with is none."""
    modules = [("Pooling", {"pooling_mode": "max"}), ("LayerNorm", {"dimension": 32})]
    dense = {
        "in_features": 32,
        "out_features": 5,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    pooler = pooler_of(write_modules(tmp_path / "model", [*modules, ("Dense", dense)]), EMBEDDING)
    model = bert.model.clone()
    head = next(node for node in model.graph if node.name == "pooler.dense.matmul")
    append_pooling_(model, head.inputs[0].producer().inputs[0], pooler, "sentence_embedding")
    operators.clean_(model)
    shapes.annotate_(model)
    operators.save(model, tmp_path / "float.onnx")
    half = halved(tmp_path / "float.onnx", tmp_path / "half.onnx")
    own = [n for n in half.graph if str(n.name).startswith(("pooling.", "2_", "3_"))]
    assert {n.op_type for n in own} >= {"ReduceMax", "LayerNormalization", "MatMul", "Tanh"}
    assert all(
        v.dtype != ir.DataType.FLOAT16
        for n in own
        for v in (*n.inputs, *n.outputs)
        if v is not None
    )


def test_a_norm_does_not_overflow(tmp_path) -> None:
    """One channel deviates by 400 from the mean; its square exceeds float16."""
    x = np.zeros((2, 64), dtype=np.float32)
    x[:, 7], x[1, 3] = 400.0, 5.0
    ones, zeros = np.ones(64, dtype=np.float32), np.zeros(64, dtype=np.float32)
    nodes = [
        helper.make_node("Add", ["x", "zeros"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "ones", "zeros"], ["norm"], epsilon=1e-12),
        helper.make_node("MatMul", ["norm", "eye"], ["y"]),
    ]
    constants = {"ones": ones, "zeros": zeros, "eye": np.eye(64, dtype=np.float32)}
    model = make_model(nodes, [("x", [2, 64])], [("y", [2, 64])], constants)
    operators.save(model, tmp_path / "full.onnx")
    float16.convert_(model)
    checked(model, tmp_path / "half.onnx")
    norm = next(n for n in model.graph if n.op_type == "LayerNormalization")
    assert {v.dtype for v in (*norm.inputs, *norm.outputs)} == {ir.DataType.FLOAT}
    # A constant that operators of both types read exists in both types.
    assert {model.graph.initializers[n].dtype for n in ("zeros", "zeros.float16")} == {
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
    }
    (full,), (ours,) = run(tmp_path / "full.onnx", {"x": x}), run(tmp_path / "half.onnx", {"x": x})
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, full, rtol=HALF, atol=HALF)


def test_an_rms_norm_does_not_overflow(captured, tmp_path) -> None:
    """Word embeddings of EuroBERT that are a thousand times as large: the first norm squares thousands, and gives the same."""
    model = captured("eurobert", "embedding").model.clone()
    table = model.graph.initializers["embed_tokens.weight"]
    weight = operators.constant_of(table) * np.float32(1000.0)
    assert np.abs(weight).max() > 256
    table.const_value = ir.tensor(weight, name=table.name)
    operators.save(model, tmp_path / "full.onnx")
    halved(tmp_path / "full.onnx", tmp_path / "half.onnx")
    feeds = feeds_of(encoded(), 0)
    for ours, theirs in zip(
        run(tmp_path / "half.onnx", feeds), run(tmp_path / "full.onnx", feeds), strict=True
    ):
        assert relative_error(ours, theirs) < HALF


@pytest.mark.parametrize(
    ("weight", "kept"),
    [
        ([[1.0, 1e5]], True),
        ([[-7e4, 2.0]], True),
        ([[1e-7, 2e-8]], True),
        ([[1.0, 1e-20]], False),
        ([[0.0, 0.0]], False),
        ([[-np.inf, 1.0]], False),
    ],
)
def test_constants_that_float16_cannot_hold_keep_their_operator_in_float32(
    tmp_path, weight, kept
) -> None:
    node = helper.make_node("Mul", ["x", "the.weight"], ["y"])
    constants = {"the.weight": np.array(weight, dtype=np.float32)}
    model = make_model([node], [("x", [1, 2])], [("y", [1, 2])], constants)
    float16.convert_(model)
    checked(model, tmp_path / "half.onnx")
    assert (model.graph.initializers["the.weight"].dtype == ir.DataType.FLOAT) == kept
    (y,) = run(tmp_path / "half.onnx", {"x": np.ones((1, 2), dtype=np.float32)})
    np.testing.assert_allclose(y, constants["the.weight"], rtol=HALF, atol=1e-19)


@pytest.mark.parametrize("row", [[3.0, 3.0], [0.0, 0.0], [300.0, -300.0]], ids=str)
def test_a_norm_in_plain_operators_keeps_its_small_constant(tmp_path, row) -> None:
    """1e-12 is zero in float16, and a constant row would be divided by it."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["apart"]),
        helper.make_node("Mul", ["apart", "apart"], ["squared"]),
        helper.make_node("ReduceMean", ["squared"], ["variance"], keepdims=1),
        helper.make_node("Add", ["variance", "epsilon"], ["bounded"]),
        helper.make_node("Sqrt", ["bounded"], ["spread"]),
        helper.make_node("Div", ["apart", "spread"], ["y"]),
    ]
    constants = {"epsilon": np.array(1e-12, dtype=np.float32)}
    model = make_model(nodes, [("x", [1, 2])], [("y", [1, 2])], constants)
    unfit = ["squared"] if max(row) > 255 else []
    operators.save(model, tmp_path / "full.onnx")
    float16.convert_(model, unfit=unfit)
    checked(model, tmp_path / "half.onnx")
    feeds = {"x": np.array([row], dtype=np.float32)}
    (ours,), (theirs,) = (run(tmp_path / f"{name}.onnx", feeds) for name in ("half", "full"))
    np.testing.assert_allclose(ours, theirs, rtol=HALF)
    rounded = ir.load(tmp_path / "full.onnx")
    float16.round_(rounded, unfit)
    checked(rounded, tmp_path / "rounded.onnx")
    (ours,) = run(tmp_path / "rounded.onnx", feeds)
    np.testing.assert_allclose(ours, theirs, rtol=HALF)


def test_what_a_device_rounds_is_rounded(tmp_path) -> None:
    """ONNX Runtime alone leaves out the cast between two adds, and finds a finite sum."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"]),
        helper.make_node("Sub", ["sum", "x"], ["y"]),
    ]
    feeds = {"x": np.array([[40_000.0, 1.0002]], dtype=np.float32)}
    results = {}
    for name, unfit in (("rounded", ()), ("kept", ("sum",))):
        model = make_model(nodes, [("x", [1, 2])], [("y", [1, 2])], {})
        float16.round_(model, unfit)
        checked(model, tmp_path / f"{name}.onnx")
        (results[name],) = run(tmp_path / f"{name}.onnx", feeds)
    assert results["rounded"].tolist() == [[np.inf, 1.0]]
    np.testing.assert_allclose(results["kept"], feeds["x"], rtol=HALF)


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_rounding_is_what_float16_computes(tiny, tmp_path, family, head) -> None:
    """On ordinary models, whatever operators a runtime has in float16."""
    source = tiny(family, head)
    halved(source.path, tmp_path / "half.onnx")
    model = ir.load(source.path)
    float16.round_(model)
    checked(model, tmp_path / "rounded.onnx")
    for ours, theirs, full in zip(
        run(tmp_path / "rounded.onnx", source.feeds),
        run(tmp_path / "half.onnx", source.feeds),
        source.outputs,
        strict=True,
    ):
        assert 1e-5 < relative_error(ours, full) < HALF
        assert relative_error(ours, theirs) < HALF


def test_small_single_constants_keep_their_operator_in_float32(tmp_path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["scaled"]),
        helper.make_node("Max", ["scaled", "tiny"], ["bounded"]),
        helper.make_node("Div", ["x", "bounded"], ["y"]),
    ]
    constants = {"half": np.array(0.5, dtype=np.float32), "tiny": np.array(1e-6, dtype=np.float32)}
    model = make_model(nodes, [("x", [1, 2])], [("y", [1, 2])], constants)
    float16.convert_(model)
    checked(model, tmp_path / "half.onnx")
    types = {n.op_type: n.outputs[0].dtype for n in model.graph if n.op_type != "Cast"}
    assert types == {
        "Mul": ir.DataType.FLOAT16,
        "Max": ir.DataType.FLOAT,
        # Divided by it, too: it may be zero in float16.
        "Div": ir.DataType.FLOAT,
    }
    (y,) = run(tmp_path / "half.onnx", {"x": np.array([[3.0, 1.0]], dtype=np.float32)})
    np.testing.assert_allclose(y, 2.0)


def test_scales_that_float16_would_lose(classifier, placed, measured, tmp_path) -> None:
    """Weights, an activation and rows with scales too small for float16 stay float32, and exact."""
    model = ir.load(classifier.path)
    weights = [s for s in placed if s.role == "linear.weight"]
    table = next(s.value for s in placed if s.role == "embedding.weight")
    shrunk = {weights[0].value: 1e-4, table: 1e-4}
    for name, factor in shrunk.items():
        value = model.graph.initializers[name]
        array = value.const_value.numpy() * np.float32(factor)
        array[:, 0] = 0.0
        value.const_value = ir.tensor(array, name=name)
    # A channel of zeros is no reason to keep float32.
    value = model.graph.initializers[weights[1].value]
    zeroed = value.const_value.numpy().copy()
    zeroed[:, 0] = 0.0
    value.const_value = ir.tensor(zeroed, name=weights[1].value)
    operators.save(model, tmp_path / "small.onnx")
    plan = Static().plan(placed, measured, capabilities("ort-cpu"))
    activation = next(
        s.value for s, q in plan.quantized if s.role == "linear.input" and s.part == "ffn_down"
    )

    def narrow(decision: Decision) -> Decision:
        if decision.quantizer is None or decision.site.value != activation:
            return decision
        return decision.model_copy(
            update={"quantizer": decision.quantizer.model_copy(update={"low": -1e-4, "high": 1e-4})}
        )

    plan = plan.model_copy(update={"decisions": tuple(narrow(d) for d in plan.decisions)})
    outputs = []
    for parts in ("float32", "float16"):
        model = ir.load(tmp_path / "small.onnx")
        write_(model, plan.model_copy(update={"float_parts": parts}))
        checked(model, tmp_path / f"{parts}.onnx")
        outputs.append(outputs_of(tmp_path / f"{parts}.onnx", classifier.feeds))
    wide = {
        n
        for n, v in model.graph.initializers.items()
        if v.dtype == ir.DataType.FLOAT and n.endswith(".scale")
    }
    assert wide == {f"{weights[0].value}.scale", f"{table}.scale", f"{activation}.scale"}
    assert (model.graph.initializers[f"{weights[1].value}.scale"].const_value.numpy() > 0).all()
    assert np.isfinite(outputs[1]).all()
    assert relative_error(outputs[1], outputs[0]) < QUANTIZED_HALF


def test_dynamically_quantized_activations_are_refused(
    golden, classifier, placed, measured
) -> None:
    plan = Dynamic().plan(placed, measured, capabilities("ort-cpu"))
    model = ir.load(classifier.path)
    with golden.raises(ModelError):
        write_(model, plan.model_copy(update={"float_parts": "float16"}))
