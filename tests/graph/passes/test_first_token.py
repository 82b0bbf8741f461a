"""Rows that no head reads are removed, and the outputs stay the same: float and 8-bit, every family and head."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert.core import plugins
from octobert.core.model_config import Normalize, Pooling
from octobert.graph import operators, qdq, sites
from octobert.graph.capture import shapes
from octobert.graph.capture.pooling import append_pooling_
from octobert.graph.passes import cpu, first_token
from octobert.models.pooling import Pooler
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from tests.support.checkpoints import FEW_HEADS, exact_method, pad_of
from tests.support.graphs import REORDERED, capabilities, outputs_on_batches, ranges_for, sliced

FAMILIES = plugins.names("families")
# Products of the last layer with one row: query, scores, context, output projection and feed-forward.
# DeBERTa compares the query with positions as well; ModernBERT's query comes out of one product with keys and
# values. MobileBERT has a bottleneck on either side and two feed-forwards more.
WHOLE_LAYER = 6
PRODUCTS = {
    "deberta-v2": WHOLE_LAYER + 1,
    "mobilebert": WHOLE_LAYER + 2 + 2 * 2,
    "modernbert": WHOLE_LAYER - 1,
    # A linear layer for the gate.
    **dict.fromkeys(("gte", "nomic-bert"), WHOLE_LAYER + 1),
    # Their heads read other tokens.
    **dict.fromkeys(("eurobert", "gemma3-text", "qwen3"), 0),
}


def assert_same(
    ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = REORDERED
) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert np.abs(mine - other).max() <= tolerance * np.abs(other).max()


@pytest.mark.parametrize(("name", "head"), FEW_HEADS)
def test_float_outputs_stay_the_same(
    captured, checkpoint, tmp_path, capfd, name: str, head: str
) -> None:
    model = captured(name, head).model
    ours, count = sliced(model)
    assert count == (PRODUCTS.get(name, WHOLE_LAYER) if head == "sequence-classification" else 0)
    pad_id = pad_of(checkpoint(name, head))
    assert_same(
        outputs_on_batches(ours, tmp_path, pad_id), outputs_on_batches(model, tmp_path, pad_id)
    )
    # ONNX Runtime warns on every run where a shape in the file is not the shape of the value.
    assert ":onnxruntime:" not in capfd.readouterr().err


@pytest.mark.parametrize("placement", ["matmul-attention", "qdqbert", "tensorrt"])
@pytest.mark.parametrize("name", FAMILIES)
def test_8_bit_outputs_stay_the_same(
    captured, checkpoint, tmp_path, name: str, placement: str
) -> None:
    bert, model = captured(name), captured(name).model.clone()
    placed = sites.find_sites(model.graph, bert.family)
    method = exact_method(Static, placement=placement)
    qdq.write(model, method.plan(placed, ranges_for(placed), capabilities("ort-cpu")))
    ours, count = sliced(model)
    assert count == PRODUCTS.get(name, WHOLE_LAYER)
    pad_id = pad_of(checkpoint(name))
    assert_same(
        outputs_on_batches(ours, tmp_path, pad_id), outputs_on_batches(model, tmp_path, pad_id)
    )


@pytest.mark.parametrize("name", [name for name in FAMILIES if PRODUCTS.get(name) != 0])
def test_what_is_exported_states_true_shapes(captured, tmp_path, capfd, name: str) -> None:
    bert, model = captured(name), captured(name).model.clone()
    placed = sites.find_sites(model.graph, bert.family)
    qdq.write(
        model,
        exact_method(Static).plan(placed, ranges_for(placed), capabilities("ort-cpu")),
    )
    assert first_token.slice_first_token_(model)
    cpu.vectorize_norms_(model)
    values = [v for node in model.graph for v in node.outputs if v.shape is not None and v.uses()]
    measured = shapes.measure(model, values)
    assert {str(v.name): str(list(v.shape)) for v in values} == {
        n: str(list(ir.Shape(list(shape)))) for n, shape in measured.items()
    }
    operators.save(model, tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx")
    for size in ((1, 5), (3, 11)):
        session.run(
            None, {each.name: np.ones(size, dtype=np.int64) for each in session.get_inputs()}
        )
    assert ":onnxruntime:" not in capfd.readouterr().err


def test_operators_still_read_pairs(captured) -> None:
    bert, model = captured("bert"), captured("bert").model.clone()
    placed = sites.find_sites(model.graph, bert.family)
    qdq.write(
        model,
        exact_method(Static).plan(placed, ranges_for(placed), capabilities("ort-cpu")),
    )
    ours, _ = sliced(model)
    behind = Counter(
        operators.producer(node.inputs[0]).op_type
        for node in ours.graph
        if node.op_type == "MatMul"
    )  # type: ignore[union-attr]
    before = Counter(
        operators.producer(node.inputs[0]).op_type
        for node in model.graph
        if node.op_type == "MatMul"
    )  # type: ignore[union-attr]
    assert behind == before
    # The input of the layer is sliced once, for the residual and the query; the pair of the query follows the Slice.
    cuts = [
        node for node in ours.graph if str(node.name).endswith(".first") and node.op_type == "Slice"
    ]
    assert [
        sorted(reader.op_type for reader in operators.readers(cut.outputs[0])) for cut in cuts
    ] == [["Add", "QuantizeLinear"]]


def test_dynamic_scales_are_those_of_the_row(captured, tmp_path) -> None:
    bert, model = captured("bert"), captured("bert").model.clone()
    placed = sites.find_sites(model.graph, bert.family)
    qdq.write(model, exact_method(Dynamic).plan(placed, None, capabilities("ort-cpu")))
    ours, count = sliced(model)
    assert count == WHOLE_LAYER
    exact = outputs_on_batches(bert.model, tmp_path, 0)
    errors = [
        max(
            float(np.abs(a - b).max())
            for a, b in zip(outputs_on_batches(each, tmp_path, 0), exact, strict=True)
        )
        for each in (ours, model)
    ]
    # Scales get smaller, so the error does not grow beyond chance.
    assert errors[0] <= 1.5 * errors[1]


def test_an_embedding_of_the_first_token_is_sliced_and_a_mean_is_not(captured, tmp_path) -> None:
    for kind, expected in (("cls", WHOLE_LAYER), ("mean", 0)):
        model = captured("bert", "question-answering").model.clone()
        head = next(node for node in reversed(list(model.graph)) if node.op_type == "MatMul")
        append_pooling_(
            model,
            head.inputs[0],
            Pooler(Pooling(modes=(kind,), steps=(Normalize(),)), {}),
            "sentence_embedding",
        )
        operators.clean_(model)
        shapes.annotate_(model)
        ours, count = sliced(model)
        assert count == expected
        assert_same(outputs_on_batches(ours, tmp_path, 0), outputs_on_batches(model, tmp_path, 0))


def test_a_state_that_is_an_output_too_is_left_whole(captured, tmp_path) -> None:
    model = captured("bert").model.clone()
    first = next(node for node in model.graph if first_token._takes_first(node))
    model.graph.outputs.append(first.inputs[0])
    ours, count = sliced(model)
    assert count == 0
    assert_same(outputs_on_batches(ours, tmp_path, 0), outputs_on_batches(model, tmp_path, 0))


def test_it_is_done_once(captured) -> None:
    ours, count = sliced(captured("bert").model)
    again, twice = sliced(ours)
    assert (twice, sum(1 for _ in again.graph)) == (count, sum(1 for _ in ours.graph)) or twice == 0
