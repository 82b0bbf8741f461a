"""Calibration on another execution provider of ONNX Runtime: the one that is asked for, or a sentence with those that there are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert.config.loading import parse
from octobert.core.errors import TargetError
from octobert.engine.keys import key_data
from octobert.quantization import observer
from tests.support.graphs import encoded
from tests.support.stages import step_of

# In every build of onnxruntime; it leaves all operators of an encoder to the CPU.
OTHER = "AzureExecutionProvider"


def test_another_provider_of_this_build_observes_the_same(float_path) -> None:
    model = ir.load(float_path)
    values = [
        str(node.outputs[0].name) for node in model.graph if node.op_type == "LayerNormalization"
    ][:2]
    runs = [
        observer.observe(float_path, encoded(), 0, values, provider=name)
        for name in (observer.CPU, OTHER)
    ]
    for value in values:
        assert runs[0][value].minimum == runs[1][value].minimum
        np.testing.assert_array_equal(runs[0][value].histogram, runs[1][value].histogram)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CUDAExecutionProvider", "expected .*CPUExecutionProvider.*; install a build that has it"),
        ("cuda", "expected .*CPUExecutionProvider"),
        ("CPUExecutionProvidr", 'did you mean "CPUExecutionProvider"'),
    ],
)
def test_a_provider_that_is_not_installed(golden, name: str, text: str) -> None:
    with golden.raises(TargetError):
        observer.check_provider(name)


def test_the_provider_is_in_the_key_of_the_observation(finished) -> None:
    plain = finished[0].model_dump(by_alias=True, exclude_unset=True)
    plain["task"] = plain["task"]["name"]
    steps = [
        step_of(parse({**plain, **keys}), "observe")
        for keys in ({}, {"calibration_provider": OTHER})
    ]
    assert key_data(steps[0].options) != key_data(steps[1].options)
    with pytest.raises(TargetError, match="MIGraphXExecutionProvider"):
        step_of(parse({**plain, "calibration_provider": "MIGraphXExecutionProvider"}), "observe")
