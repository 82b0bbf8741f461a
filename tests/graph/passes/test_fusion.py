"""ONNX Runtime's fused operators: they are there, the outputs stay the same, and `check` finds what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert import targets
from octobert.core import families
from octobert.core.errors import ParityError
from octobert.core.ranges import Ranges
from octobert.graph import operators, parity, qdq, sites
from octobert.graph.passes import float16, fusion
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from tests.support.checkpoints import pad_of, parity_feeds
from tests.support.graphs import ranges_of, statistics_of

HEAD = "embedding"
LAYERS = 2
FEEDS = parity_feeds()
LINEAR = ("linear.input@*", "linear.weight@*")
# Moves the outputs by less than 8-bit rounding does: only the comparison without pairs finds it.
WRONG_EPSILON = 0.1


def counts(
    attention: int = LAYERS, norms: int = 4, activation: str = "BiasGelu", **others: int
) -> dict[str, int]:
    """The fused operators of two layers, and the sum over tokens."""
    expected = {
        "MultiHeadAttention": attention,
        "SkipLayerNormalization": norms,
        activation: LAYERS,
        **others,
        "FusedMatMul": 1 + others.get("FusedMatMul", 0),
    }
    return {kind: count for kind, count in sorted(expected.items()) if kind and count}


FAMILIES = {
    "albert": counts(activation=""),
    "deberta-v2": counts(0, FusedMatMul=4),
    "mobilebert": counts(norms=0, activation=""),
    "modernbert": counts(norms=0, activation="Gelu"),
    "mpnet": counts(0, 5),
}


@pytest.mark.parametrize("name", families.names())
def test_a_float_graph_computes_the_same(captured, checkpoint, name: str) -> None:
    unfused = captured(name, HEAD).model
    fused = fusion.fuse(unfused, parity_feeds(pad_of(checkpoint(name, HEAD))))
    assert not [node for node in unfused.graph if node.domain == operators.MICROSOFT]
    if name in FAMILIES:
        assert fused.counts == FAMILIES[name]
    if name == "bert":
        assert fused.counts == counts()
    assert [v.name for v in fused.model.graph.outputs] == [v.name for v in unfused.graph.outputs]
    assert fused.parity.tolerance == parity.TOLERANCE
    assert len(fused.parity.batches) == 2 * len(FEEDS)


@pytest.fixture(scope="module")
def quantized(captured, tmp_path_factory) -> Callable[..., ir.Model]:
    """`quantized(placement="qdqbert")` → tiny BERT with Q/DQ, from ranges observed once."""
    path = tmp_path_factory.mktemp("fusing") / "float.onnx"
    operators.save(captured("bert", HEAD).model, path)
    placed = sites.find_sites(ir.load(path).graph, captured("bert", HEAD).family)
    ranges: Ranges = ranges_of(statistics_of(path, placed))
    capabilities = targets.load("ort-cpu").capabilities

    def get(**options: object) -> ir.Model:
        model = ir.load(path)
        qdq.write(model, Static(**options).plan(placed, ranges, capabilities))
        return model

    return get


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"embeddings": "float"}, counts()),
        ({}, counts()),
        ({"weight_form": "pair"}, counts()),
        ({"placement": "matmul-attention"}, counts(0)),
        ({"placement": "qdqbert", "embeddings": "float"}, counts(0)),
        (
            {
                "placement": (*LINEAR, "residual.output@*", "linear.output@value"),
                "embeddings": "float",
            },
            counts(norms=0),
        ),
        ({"placement": (*LINEAR, "probs.output@attention"), "embeddings": "float"}, counts(0)),
    ],
    ids=[
        "matmul",
        "int8-table",
        "weight-pairs",
        "matmul-attention",
        "qdqbert",
        "residual-output",
        "probs-output",
    ],
)
def test_an_8_bit_graph_computes_the_same(
    quantized, options: dict, expected: dict[str, int]
) -> None:
    """And every pair stays where it was."""
    unfused = quantized(**options)
    fused = fusion.fuse(unfused, FEEDS)
    assert fused.counts == expected
    pairs = [
        sorted(str(n.name) for n in m.graph if n.op_type in operators.PAIR)
        for m in (unfused, fused.model)
    ]
    assert pairs[0] == pairs[1]
    assert fused.parity.tolerance == parity.TOLERANCE


def test_a_dynamically_quantized_graph_computes_the_same(captured) -> None:
    """It has no pairs that could be taken out, so it is compared with the loose tolerance."""
    unfused = captured("bert", HEAD).model.clone()
    placed = sites.find_sites(unfused.graph, captured("bert", HEAD).family)
    capabilities = targets.load("ort-cpu").capabilities
    qdq.write(unfused, Dynamic(embeddings="float").plan(placed, None, capabilities))
    fused = fusion.fuse(unfused, FEEDS)
    assert fused.counts == counts()
    assert fused.parity.tolerance == fusion.ROUNDED


def test_the_runtime_still_multiplies_integers(quantized, tmp_path: Path) -> None:
    """ONNX Runtime uses the same integer products in a fused graph, bias included."""
    operators.save(fusion.fuse(quantized(embeddings="float")).model, tmp_path / "fused.onnx")
    settings = ort.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    settings.log_severity_level = 3
    ort.InferenceSession(str(tmp_path / "fused.onnx"), settings, providers=["CPUExecutionProvider"])
    operator_counts = Counter(node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph)
    assert operator_counts["MatMulIntegerToFloat"] == 6 * LAYERS
    assert not {"MatMul", "DequantizeLinear", "Softmax", "Erf"} & set(operator_counts)


def test_a_fused_graph_becomes_float16(captured) -> None:
    """The fused norms stay float32, as the plain ones do; ONNX Runtime's CPU provider runs the rest in float16 too."""
    unfused = captured("bert", HEAD).model
    fused = fusion.fuse(unfused).model
    float16.convert_(fused)
    feeds = [parity.only(batch, unfused) for batch in FEEDS]
    reference = parity.onnx_outputs(unfused, feeds)
    parity.compare(fused, feeds, reference, "the float32 graph", tolerance=5e-3)


@pytest.mark.parametrize("options", [None, {"embeddings": "float"}], ids=["float", "int8"])
def test_a_wrong_epsilon_is_found(captured, quantized, options: dict | None) -> None:
    unfused = quantized(**options) if options else captured("bert", HEAD).model
    fused = fusion.fuse(unfused).model
    norm = next(node for node in fused.graph if node.op_type == "SkipLayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", WRONG_EPSILON)
    message = r"the fused graph does not compute what the graph it was made from computes \(got a relative difference of .*5e-05\)"
    with pytest.raises(ParityError, match=message):
        fusion.check(fused, unfused, FEEDS)


def test_a_mask_that_is_wrong_on_the_left_is_found(captured) -> None:
    """A mask that always shows the first token is right where padding is on the right, as in most batches."""
    unfused = captured("bert", HEAD).model
    wrong = unfused.clone()
    graph, integer = wrong.graph, {"dtype": ir.DataType.INT64}
    mask = next(v for v in graph.inputs if v.name == "attention_mask")
    readers = list(mask.uses())
    indicator = operators.initializer(graph, "test.first", np.eye(1, 64, dtype=np.int64)[0])
    zero = operators.initializer(graph, "test.zero", np.array([0]))
    length = operators.make_node("Shape", [mask], "test.length", {"start": 1, "end": 2}, **integer)
    first = operators.make_node(
        "Slice", [indicator, zero, length.outputs[0]], "test.row", **integer
    )
    shown = operators.make_node("Max", [mask, first.outputs[0]], "test.shown", **integer)
    graph.insert_before(graph[0], [length, first, shown])
    for node, index in readers:
        node.replace_input_with(index, shown.outputs[0])
    feeds = [parity.only(batch, unfused) for batch in FEEDS]
    parity.compare(
        wrong,
        feeds,
        parity.onnx_outputs(unfused, feeds),
        "the other",
    )
    with pytest.raises(ParityError, match="the fused graph does not compute"):
        fusion.check(wrong, unfused, FEEDS)
