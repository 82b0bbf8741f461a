"""Graphs of unknown origin that compute without an end, or ask for more memory than any machine has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from octobert.config.loading import parse
from octobert.core.errors import ModelError
from octobert.graph.capture import capture, shapes
from octobert.pipeline import runner
from octobert.pipeline.executors import local
from tests.support import any_graphs

FLOAT, INTEGER, BOOLEAN = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
# 64 TiB of float32 numbers, and turns for longer than there are processors.
HUGE, TURNS = 2**44, 2**62


def constant(name: str, value: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def looping() -> tuple[list, list]:
    """A loop that adds 1 to an input."""

    def value(name: str, kind: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "step"], ["more"]),
            helper.make_node("Identity", ["c"], ["on"]),
        ],
        "body",
        [value("i", INTEGER, []), value("c", BOOLEAN, []), value("v", FLOAT, [1])],
        [value("on", BOOLEAN, []), value("more", FLOAT, [1])],
        [constant("step", np.ones(1, np.float32))],
    )
    nodes = [helper.make_node("Loop", ["turns", "true", "speed"], ["extra"], body=body, name="l")]
    return nodes, [constant("turns", TURNS), constant("true", True)]


def filling(operator: str) -> tuple[list, list]:
    """A value of `HUGE` numbers, which follows from constants alone, or also from an input."""
    kinds = {
        "ConstantOfShape": (["shape"], [constant("shape", [HUGE])]),
        "Expand": (["speed", "shape"], [constant("shape", [HUGE])]),
        "Range": (
            ["zero", "end", "one"],
            [constant("zero", 0.0), constant("end", float(HUGE)), constant("one", 1.0)],
        ),
    }
    inputs, constants = kinds[operator]
    nodes = [
        helper.make_node(operator, inputs, ["huge"], name="h"),
        *([helper.make_node("Cast", ["huge"], ["cast"], to=FLOAT, name="c")]),
        helper.make_node("ReduceSum", ["cast"], ["total"], keepdims=0, name="r"),
        helper.make_node("Mul", ["total", "speed"], ["extra"], name="m"),
    ]
    return nodes, constants


def written(folder: Path, nodes: list, constants: list) -> Path:
    path = any_graphs.write("speech", folder / "model.onnx")
    model = onnx.load(path)
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants)
    model.graph.output.append(helper.make_tensor_value_info("extra", FLOAT, [1]))
    onnx.save(model, path)
    return path


def test_a_loop_without_an_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "_SECONDS", 1)
    path = written(tmp_path, *looping())
    with pytest.raises(
        ModelError, match=r"the graph takes too long \(got no answer in \d+ s\); check how often"
    ):
        capture.capture_graph(path, any_graphs.feeds_of("speech", 2))


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Expand", "Range"])
def test_more_memory_than_there_is(tmp_path: Path, operator: str) -> None:
    path = written(tmp_path, *filling(operator))
    with pytest.raises(ModelError, match="the graph asks for more memory than there is"):
        capture.capture_graph(path, any_graphs.feeds_of("speech", 2))


def test_a_run_captures_in_a_child_with_a_limit(tmp_path: Path) -> None:
    """The allocator would give 64 GiB of addresses, and the system end whatever process uses most."""
    constants = [constant("shape", [2**34])]
    path = written(tmp_path, filling("ConstantOfShape")[0], constants)
    (tmp_path / "feeds").mkdir()
    for index, feed in enumerate(any_graphs.feeds_of("speech", 12)):
        np.savez(tmp_path / f"feeds/{index}.npz", **feed)
    asked = {
        "model": str(path),
        "task": "graph",
        "data": {"source": str(tmp_path / "feeds"), "calibrate": {"samples": 8}},
        "targets": ["ort-cpu"],
        "measure": False,
    }
    with pytest.raises(ModelError, match="the graph asks for more memory than there is"):
        runner.run(parse(asked), tmp_path / "out", executor=local.run)
