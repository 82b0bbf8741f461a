"""What OpenVINO executes of a quantized encoder: which operators stay alone, and that the rewritten norms compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from octobert.graph import qdq
from octobert.targets import openvino_cpu
from tests.support.checkpoints import batch
from tests.support.graphs import plan_for

openvino = pytest.importorskip("openvino")

# Scale and shift are folded in float64 and rounded once more to float32. An activation may then fall on the other side of a
# rounding boundary, which moves an output by a fraction of one step of a quantizer.
FOLDED = 2e-3


def facts(node: Any) -> dict[str, str]:
    return {key: str(getattr(held, "value", held)) for key, held in node.get_rt_info().items()}


def compiled(model: Any) -> Any:
    settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    return openvino.Core().compile_model(model, "CPU", settings)


def alone(model: Any) -> list[str]:
    """Names of the FakeQuantize that no other operator took over."""
    nodes = compiled(model).get_runtime_model().get_ordered_ops()
    return [
        node.get_friendly_name() for node in nodes if facts(node)["layerType"] == "FakeQuantize"
    ]


@pytest.fixture(scope="module")
def both(finished, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, int]:
    """The IR without and with rewritten norms, and how many norms were rewritten."""
    path = finished[1] / "openvino-cpu" / "onnx" / "model_quantized.onnx"
    plain, changed = (openvino.Core().read_model(str(path)) for _ in range(2))
    return plain, changed, openvino_cpu.separate_norms_(changed)


def test_only_attention_outputs_are_quantized_by_an_operator_of_their_own(both) -> None:
    plain, changed, _ = both
    before, after = alone(plain), alone(changed)
    assert any("LayerNorm" in name for name in before)
    assert after, (
        "attention computes in float, and its output is quantized by an operator of its own"
    )
    assert all(".attention.self.context" in name for name in after), after


def test_rewritten_norms_compute_the_same(both) -> None:
    plain, changed, count = both
    assert count > 0
    feeds = batch([9, 5, 2])
    models = [compiled(model) for model in (plain, changed)]
    first, second = ([np.array(value) for value in model(feeds).values()] for model in models)
    for expected, got in zip(first, second, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=FOLDED)


def test_readers_come_in_the_order_of_their_names() -> None:
    """OpenVINO has them in the order of their addresses, which differs from run to run, and so would files."""
    from openvino import opset13

    source = opset13.parameter([1, 4], np.float32)
    names = [f"reader.{index:02}" for index in reversed(range(40))]
    # Whatever is freed in between mixes the addresses.
    kept = [
        (opset13.relu(opset13.constant(np.zeros(index + 1))), opset13.abs(source, name=name))[1]
        for index, name in enumerate(names)
    ]
    assert len(kept) == len(names)
    assert [
        port.get_node().get_friendly_name() for port in openvino_cpu._readers(source)
    ] == sorted(names)


def test_a_norm_that_other_readers_take_as_it_is_stays(bert, tmp_path: Path) -> None:
    """Without smoothing, the two operators would be equal, and OpenVINO would merge them again."""
    model = bert.model.clone()
    qdq.write(model, plan_for(model, bert.family, "openvino-cpu"))
    ir.save(model, tmp_path / "model.onnx")
    assert (
        openvino_cpu.separate_norms_(openvino.Core().read_model(str(tmp_path / "model.onnx"))) == 0
    )
