"""Graphs of unknown origin that compute without an end, or ask for more memory than any machine has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from octobert.config.loading import parse
from octobert.core.errors import ModelError
from octobert.engine.executors import local
from octobert.graph.capture import capture, shapes
from octobert.pipeline import runner
from tests.support import any_graphs
from tests.support.endless import FLOAT, filling, looping


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
    path = written(tmp_path, *filling("ConstantOfShape", 2**34))
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
