"""Norms as InstanceNormalization compute what LayerNormalization does, for every family, sliced or not; and where they are written so."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from octobert import targets
from octobert.config.loading import parse
from octobert.core import environment
from octobert.graph import operators, sites
from octobert.graph.passes import cpu
from octobert.pipeline import planner
from octobert.pipeline.stages import export
from octobert.quantization.methods.static import Static
from tests.support.checkpoints import FEW_HEADS, exact_method, pad_of
from tests.support.graphs import REORDERED, capabilities, outputs_on_batches, ranges_for, sliced

# MobileBERT's norms are a scale and a shift, except the norm of its head; others have RMS norms.
WITHOUT = ("mobilebert", "eurobert", "gemma3-text", "qwen3")


def vectorized(model: ir.Model) -> tuple[ir.Model, int]:
    copy = model.clone()
    return copy, cpu.vectorize_norms_(copy)


@pytest.mark.parametrize(("name", "head"), FEW_HEADS)
def test_outputs_stay_the_same(captured, checkpoint, tmp_path, name: str, head: str) -> None:
    model = captured(name, head).model
    before = Counter(node.op_type for node in model.graph)
    for start in (model, sliced(model)[0]):
        ours, count = vectorized(start)
        after = Counter(node.op_type for node in ours.graph)
        assert after["InstanceNormalization"] == count == before["LayerNormalization"]
        assert after["LayerNormalization"] == 0
        assert count >= 3 or name in WITHOUT
        pad_id = pad_of(checkpoint(name, head))
        rewritten, expected = (
            np.concatenate([o.ravel() for o in outputs_on_batches(m, tmp_path, pad_id)])
            for m in (ours, model)
        )
        # All outputs together: a single output may be a small difference of large numbers.
        assert np.abs(rewritten - expected).max() <= REORDERED * np.abs(expected).max()


def norm(attributes: dict[str, object], *, bias: bool, outputs: int = 1) -> ir.Model:
    """A graph of one norm over [B, S, 24]."""
    generator = np.random.default_rng(0)
    x = ir.Value(
        name="x", shape=ir.Shape(["batch", "sequence", 24]), type=ir.TensorType(ir.DataType.FLOAT)
    )
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 20}, name="norm")
    inputs = [
        x,
        operators.initializer(graph, "weight", generator.normal(size=24).astype(np.float32)),
    ]
    if bias:
        inputs.append(
            operators.initializer(graph, "bias", generator.normal(size=24).astype(np.float32))
        )
    node = ir.node("LayerNormalization", inputs, attributes, num_outputs=outputs)
    for index, value in enumerate(node.outputs):
        value.name, value.type = f"y{index}", ir.TensorType(ir.DataType.FLOAT)
    graph.append(node)
    graph.outputs.extend(node.outputs)
    return ir.Model(graph, ir_version=10)


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    import onnxruntime as ort

    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1e-1])
def test_epsilon_counts_as_it_did_also_where_it_is_larger_than_the_deviation(
    bias: bool, epsilon: float
) -> None:
    model = norm({"axis": -1, "epsilon": epsilon}, bias=bias)
    ours, count = vectorized(model)
    assert count == 1
    x = (
        np.random.default_rng(1).normal(3.0, 1.0, (2, 5, 24))
        * np.array([1e-3, 1e-2, 1.0, 30.0, 0.0])[:, None]
    )
    centred = x - x.mean(axis=-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    expected = unit * model.graph.initializers["weight"].const_value.numpy()
    if bias:
        expected = expected + model.graph.initializers["bias"].const_value.numpy()
    # Values a hundred times larger than their deviation lose two of float32's seven digits when the mean is subtracted.
    np.testing.assert_allclose(run(ours, x.astype(np.float32)), expected, atol=2e-5)


def test_other_norms_are_left() -> None:
    for model in (norm({"axis": 1}, bias=True), norm({"axis": -1}, bias=True, outputs=2)):
        assert vectorized(model)[1] == 0


@pytest.mark.parametrize(
    ("placement", "float_parts", "own"),
    [
        ("matmul", "float32", True),
        ("matmul", "float16", False),
        ("qdqbert", "float32", False),
        ("tensorrt", "float32", False),
    ],
)
def test_files_for_other_runtimes_and_in_float16_keep_their_norms(
    captured, placement: str, float_parts: str, own: bool
) -> None:
    bert, table = captured("bert"), capabilities("ort-cpu")
    placed = sites.find_sites(bert.model.graph, bert.family)
    method = exact_method(Static, placement=placement, float_parts=float_parts)
    assert export.is_for_it_alone(method.plan(placed, ranges_for(placed), table), table) == own


def test_it_depends_on_the_cores_and_so_does_the_key(monkeypatch, checkpoint, pairs) -> None:
    recipe = parse(
        {
            "model": str(checkpoint("bert")),
            "task": {"text-classification": {"text": ["sentence1", "sentence2"], "label": "label"}},
            "data": {"source": str(pairs)},
            "targets": ["ort-cpu", "openvino-cpu"],
        }
    )
    here, options = environment.current(), {}
    for cores in (2, 64):
        monkeypatch.setattr(
            environment, "current", lambda c=cores: here.model_copy(update={"cores": c})
        )
        options[cores] = {
            s.name: s.options for s in planner.steps_of(recipe) if s.stage == "export"
        }
    assert [options[c]["export/ort-cpu"].fast_norms for c in (2, 64)] == [True, False]
    assert not options[2]["export/openvino-cpu"].fast_norms
    assert targets.load("ort-cpu").capabilities.rewrites.norms_up_to_cores == 4
