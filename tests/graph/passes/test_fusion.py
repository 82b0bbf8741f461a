"""ONNX Runtime's fused operators: all of them are there, the rest is said, and nothing changes but what `check` finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert.core import plugins
from octobert.core.errors import ParityError
from octobert.core.ranges import Ranges
from octobert.graph import operators, parity, qdq, sites
from octobert.graph.capture import lowering
from octobert.graph.passes import fusion
from octobert.quantization.methods import static
from tests.graph.test_qdq import ranges_of, statistics_of
from tests.support.checkpoints import pad_of, parity_feeds

HEAD = "embedding"
LAYERS = 2
FEEDS = parity_feeds()
LINEAR = ("linear.input@*", "linear.weight@*")
QUANTIZED = "MultiHeadAttention: values inside it are quantized (2)"
NO_POSITIONS = "EmbedLayerNormalization: it has no table of positions (1)"
NOT_COUNTED = (
    "EmbedLayerNormalization: it sums something else than words, segments and positions counted from the first token (1)"
)
# Moves the outputs by less than what 8-bit values may: only the comparison without pairs finds it.
WRONG_EPSILON = 0.1
INT8_TABLE = "EmbedLayerNormalization: a table is int8 (1)"


def counts(attention: str | None, norms: int, *, activation: str = "BiasGelu", embeddings: int = 0) -> dict[str, int]:
    """What two layers have."""
    wanted = {attention: LAYERS, "SkipLayerNormalization": norms, activation: LAYERS, "EmbedLayerNormalization": embeddings}
    return dict(sorted((kind, count) for kind, count in wanted.items() if kind and count))


FAMILIES = {
    "albert": (counts("Attention", 4, activation="FastGelu", embeddings=1), ()),
    "bert": (counts("Attention", 4, embeddings=1), ()),
    "deberta-v2": (counts("MultiHeadAttention", 4), (NO_POSITIONS,)),
    "distilbert": (counts("Attention", 4, embeddings=1), ()),
    "electra": (counts("Attention", 4, embeddings=1), ()),
    "mobilebert": ({"MultiHeadAttention": 2}, ("SkipLayerNormalization: the norm is only a scale and a shift (11)",)),
    "modernbert": (
        counts(None, 4, activation="Gelu"),
        ("MultiHeadAttention: Q and K are rotated by their positions (2)", NO_POSITIONS),
    ),
    "mpnet": (counts("Attention", 5), (NOT_COUNTED,)),
    "roberta": (counts("Attention", 5), (NOT_COUNTED,)),
}


def test_every_family_is_here() -> None:
    assert tuple(FAMILIES) == plugins.names("families")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_float_graph_computes_the_same(captured, checkpoint, name: str) -> None:
    unfused = captured(name, HEAD).model
    fused = unfused.clone()
    found = fusion.fuse_(fused)
    assert (found.counts, found.left) == FAMILIES[name]
    assert Counter(n.op_type for n in fused.graph if n.domain == operators.MICROSOFT) == found.counts
    epsilons = [{n.name: n.attributes["epsilon"].value for n in m.graph if "epsilon" in n.attributes} for m in (unfused, fused)]
    assert epsilons[0] == epsilons[1]
    assert [v.name for v in fused.graph.outputs] == [v.name for v in unfused.graph.outputs]
    proof = fusion.check(fused, unfused, parity_feeds(pad_of(checkpoint(name, HEAD))))
    assert proof.tolerance == parity.TOLERANCE
    assert len(proof.batches) == 2 * len(FEEDS)


def test_layers_that_share_weights_share_the_packed_ones(captured) -> None:
    fused = captured("albert", HEAD).model.clone()
    fusion.fuse_(fused)
    assert len({node.inputs[1] for node in fused.graph if node.op_type == "Attention"}) == 1
    assert not [name for name in fused.graph.initializers if name.endswith("query.weight")]


@pytest.fixture(scope="module")
def quantized(captured, tmp_path_factory) -> Callable[..., ir.Model]:
    """`quantized(placement="qdqbert")` → tiny BERT with Q/DQ, from ranges observed once."""
    path = tmp_path_factory.mktemp("fusing") / "float.onnx"
    operators.save(captured("bert", HEAD).model, path)
    found = sites.find_sites(ir.load(path).graph, captured("bert", HEAD).encoder)
    ranges: Ranges = ranges_of(statistics_of(path, found))
    capabilities = plugins.load("targets", "ort-cpu").CAPABILITIES

    def get(**options: object) -> ir.Model:
        model = ir.load(path)
        qdq.write(model, static.plan(found, ranges, capabilities, static.Options(**options)))
        return model

    return get


@pytest.mark.parametrize(
    ("options", "wanted", "left"),
    [
        ({"embeddings": "float"}, counts("MultiHeadAttention", 4, embeddings=1), ()),
        ({}, counts("MultiHeadAttention", 5), (INT8_TABLE,)),
        ({"weight_form": "pair"}, counts("MultiHeadAttention", 5), (INT8_TABLE,)),
        ({"placement": "matmul-attention"}, counts(None, 5), (QUANTIZED, INT8_TABLE)),
        (
            {"placement": "qdqbert", "embeddings": "float"},
            counts(None, 0, embeddings=1),
            (QUANTIZED, "SkipLayerNormalization: the residual add reads quantized values (4)"),
        ),
        (
            {"placement": (*LINEAR, "residual.output@*", "linear.output@value"), "embeddings": "float"},
            counts("MultiHeadAttention", 0, embeddings=1),
            ("SkipLayerNormalization: what it reads is quantized (4)",),
        ),
        (
            {"placement": (*LINEAR, "probs.output@attention"), "embeddings": "float"},
            counts(None, 4, embeddings=1),
            (QUANTIZED,),
        ),
    ],
    ids=["matmul", "int8-table", "weight-pairs", "matmul-attention", "qdqbert", "residual-output", "probs-output"],
)
def test_an_8_bit_graph_computes_the_same(quantized, options: dict, wanted: dict[str, int], left: tuple[str, ...]) -> None:
    """And every pair is where it was."""
    unfused = quantized(**options)
    fused = unfused.clone()
    found = fusion.fuse_(fused)
    assert (found.counts, found.left) == (wanted, left)
    pairs = [sorted(str(n.name) for n in m.graph if n.op_type in operators.PAIR) for m in (unfused, fused)]
    assert pairs[0] == pairs[1]
    assert fusion.check(fused, unfused, FEEDS).tolerance == parity.TOLERANCE


def test_a_dynamically_quantized_graph_computes_the_same(captured) -> None:
    """It has no pairs that could be taken out, so the comparison is the loose one."""
    dynamic = plugins.load("methods", "dynamic")
    unfused = captured("bert", HEAD).model.clone()
    found = sites.find_sites(unfused.graph, captured("bert", HEAD).encoder)
    capabilities = plugins.load("targets", "ort-cpu").CAPABILITIES
    qdq.write(unfused, dynamic.plan(found, None, capabilities, dynamic.Options(embeddings="float")))
    fused = unfused.clone()
    assert fusion.fuse_(fused).counts == counts("MultiHeadAttention", 4, embeddings=1)
    assert fusion.check(fused, unfused, FEEDS).tolerance == fusion.ROUNDED


def test_the_runtime_still_multiplies_integers(quantized, tmp_path: Path) -> None:
    """ONNX Runtime makes the same products of a fused graph, and leaves neither Add nor Reshape between them."""
    model = quantized(embeddings="float")
    fusion.fuse_(model)
    operators.save(model, tmp_path / "fused.onnx")
    settings = ort.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    settings.log_severity_level = 3
    ort.InferenceSession(str(tmp_path / "fused.onnx"), settings, providers=["CPUExecutionProvider"])
    found = Counter(node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph)
    assert found["MatMulIntegerToFloat"] == 6 * LAYERS
    assert not {"MatMul", "DequantizeLinear", "Add", "Reshape", "Softmax", "Erf"} & set(found)


@pytest.mark.parametrize("options", [None, {"embeddings": "float"}], ids=["float", "int8"])
def test_a_wrong_epsilon_is_found(captured, quantized, options: dict | None) -> None:
    unfused = quantized(**options) if options else captured("bert", HEAD).model
    fused = unfused.clone()
    fusion.fuse_(fused)
    norm = next(node for node in fused.graph if node.op_type == "SkipLayerNormalization")
    norm.attributes["epsilon"] = ir.AttrFloat32("epsilon", WRONG_EPSILON)
    message = (
        r"the fused graph does not compute what the graph it was made from computes \(got a relative difference of .*5e-05\)"
    )
    with pytest.raises(ParityError, match=message):
        fusion.check(fused, unfused, FEEDS)


def test_a_mask_of_lengths_is_found(captured) -> None:
    """The operator also takes how many tokens a row has: right for padding behind them, which is what most batches have."""
    unfused = captured("bert", HEAD).model
    fused = unfused.clone()
    fusion.fuse_(fused)
    axis = operators.initializer(fused.graph, "axis", np.array([1]))
    mask = next(node for node in fused.graph if node.op_type == "Attention").inputs[3]
    lengths = operators.make_node("ReduceSum", [mask, axis], "lengths", {"keepdims": 0}, dtype=ir.DataType.INT32)
    fused.graph.insert_after(mask.producer(), [lengths])
    for node in fused.graph:
        if node.op_type == "Attention":
            node.replace_input_with(3, lengths.outputs[0])
    feeds = [parity.only(batch, unfused) for batch in FEEDS]
    parity.compare(fused, feeds, parity.onnx_outputs(unfused, feeds, ["sentence_embedding"]), "the other")
    with pytest.raises(ParityError, match="the fused graph does not compute"):
        fusion.check(fused, unfused, FEEDS)


def test_forms_that_are_not_known_are_left_and_said(captured) -> None:
    model = captured("bert", HEAD).model.clone()
    nodes = {str(node.name): node for node in model.graph}
    stem = "encoder.layer.0.attention.self"
    nodes[f"{stem}.masked_scores"].replace_input_with(1, nodes["attention_mask.float"].outputs[0])
    nodes[f"{stem.replace('0', '1')}.key_heads"].attributes["perm"] = ir.AttrInt64s("perm", (0, 2, 1, 3))
    half = nodes["encoder.layer.1.intermediate.intermediate_act_fn.mul"]
    half.replace_input_with(1, operators.initializer(model.graph, "third", np.array(0.3, dtype=np.float32)))
    nodes["embeddings.LayerNorm"].resize_inputs(2)
    found = fusion.fuse_(model)
    assert found.left == (
        "MultiHeadAttention: it is written in a form that is not known (2)",
        "EmbedLayerNormalization: its norm has no bias (1)",
        "Gelu: it is written in a form that is not known (1)",
    )
    assert found.counts == {"BiasGelu": 1, "SkipLayerNormalization": 5}


def test_a_mask_of_more_than_padding_is_left_and_said(captured) -> None:
    model = captured("bert", HEAD).model.clone()
    nodes = {str(node.name): node for node in model.graph}
    nodes["attention_mask.bias"].replace_input_with(0, nodes["attention_mask.float"].outputs[0])
    assert fusion.fuse_(model).left == ("MultiHeadAttention: its mask holds more than padding (2)",)


def test_terms_of_positions_of_another_shape_are_left_and_said(captured) -> None:
    model = captured("mpnet", HEAD).model.clone()
    next(node for node in model.graph if node.name == "encoder.layer.0.attention.attn.positioned_scores").inputs[1].shape = None
    reason = "MultiHeadAttention: what positions add to its scores has another shape than these (2)"
    assert fusion.fuse_(model).left == (reason, NOT_COUNTED)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_every_form_of_gelu_is_fused(approximate: str, shared: bool) -> None:
    """What `lowering` writes, with the bias of the layer before it where nothing else reads that sum."""
    x, bias = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT)), ir.Value(name="bias")
    add = operators.make_node("Add", [x, bias], "biased")
    gelu = operators.make_node("Gelu", add.outputs, "gelu", {"approximate": approximate})
    last = operators.make_node("Add", [gelu.outputs[0], add.outputs[0] if shared else x], "last")
    graph = ir.Graph([x], list(last.outputs), nodes=[add, gelu, last], opset_imports={"": 20})
    bias.const_value = ir.tensor(np.ones(4, dtype=np.float32), name="bias")
    graph.register_initializer(bias)
    lowering.lower_fused_(graph)
    kind = "FastGelu" if approximate == "tanh" else "Gelu" if shared else "BiasGelu"
    assert fusion.fuse_(ir.Model(graph, ir_version=10)).counts == {kind: 1}
    fused = next(node for node in graph if node.op_type == kind)
    assert len(fused.inputs) == (1 if shared else 2)
