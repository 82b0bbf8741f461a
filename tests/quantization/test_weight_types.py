"""uint8 weights: the numbers of int8 around 128, integers in ONNX Runtime, and refused where a target has no such type."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import load

from octobert.config.loading import parse
from octobert.core import capability
from octobert.core.errors import PlanError, RecipeError
from octobert.data.encoded import feeds_of
from octobert.graph import operators, qdq
from tests.support.graphs import capabilities, encoded, outputs_of, plan_for


def test_uint8_weights_compute_what_int8_weights_compute(captured, tmp_path: Path) -> None:
    got, outputs = captured("bert", "sequence-classification"), []
    for kind in ("int8", "uint8"):
        model, path = got.model.clone(), tmp_path / f"{kind}.onnx"
        qdq.write(model, plan_for(model, got.family, weights=kind))
        zeros = {
            v.const_value.numpy().reshape(-1)[0]
            for n, v in model.graph.initializers.items()
            if "weight.zero_point" in n
        }
        assert zeros == {0 if kind == "int8" else 128}
        operators.save(model, path)
        outputs.append(outputs_of(path, feeds_of(encoded(), 0)))
    np.testing.assert_array_equal(*outputs)
    settings = ort.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(str(tmp_path / "uint8.onnx"), settings, providers=["CPUExecutionProvider"])
    ran = Counter(node.op_type for node in load(tmp_path / "optimized.onnx").graph.node)
    # Every linear layer of the two encoder layers.
    assert ran["MatMulIntegerToFloat"] >= 12


@pytest.mark.parametrize(
    ("target", "taken"),
    [("ort-cpu", True), ("vitisai", True), ("qnn", True), ("openvino-cpu", False)],
)
def test_targets_say_whether_they_take_uint8_weights(captured, target: str, taken: bool) -> None:
    got, table = captured("bert", "sequence-classification"), capabilities(target)
    plan = plan_for(got.model, got.family, target, weights="uint8")
    kinds = {
        q.dtype for site, q in plan.quantized if site.is_weight and site.role != "embedding.weight"
    }
    assert kinds == {"uint8"}
    if taken:
        capability.check(plan, table)
        return
    with pytest.raises(PlanError, match="weights must be symmetric int8"):
        capability.check(plan, table)
    repaired = capability.repaired(plan, table)
    assert {q.dtype for site, q in repaired.quantized if site.is_weight} == {"int8"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": "int4"}, "quantize.static.weights: input should be 'auto', 'int8' or 'uint8'"),
        (
            {"weights": "uint8", "activations": "float8e4m3"},
            "weights are float8e4m3 with such activations, not uint8",
        ),
    ],
)
def test_weights_that_cannot_be(options: dict[str, str], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse({"model": "m", "task": "mrpc", "data": "d", "quantize": {"static": options}})
    assert text in str(caught.value)
