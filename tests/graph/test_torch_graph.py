"""Float ONNX graphs as PyTorch modules: any size, and what is refused.

Every family is compared with ONNX Runtime in `tests/models/test_families.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from octobert import targets
from octobert.core.errors import ModelError
from octobert.graph import operators, qdq, sites
from octobert.graph.torch_graph import to_torch
from octobert.quantization.methods.dynamic import Dynamic
from tests.support.checkpoints import batch
from tests.support.graphs import outputs_of, relative_error

# Float32 sums in another order.
EXACT = 1e-5


def run(module: torch.nn.Module, path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The first output of a module, for feeds in the order of a file's inputs."""
    with torch.inference_mode():
        (result,) = module(
            *(torch.from_numpy(feeds[str(value.name)]) for value in ir.load(path).graph.inputs)
        )
    return result.numpy()


@pytest.fixture(scope="module")
def float_path(captured, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("torched") / "float.onnx"
    operators.save(captured("bert").model, path)
    return path


def test_a_graph_computes_what_onnx_runtime_does_at_any_size(float_path) -> None:
    module = to_torch(ir.load(float_path))
    for lengths in ([9, 4, 7], [1], [30, 12, 3]):
        feeds = batch(lengths)
        ours = run(module, float_path, feeds)
        assert relative_error(ours, outputs_of(float_path, feeds)) < EXACT, lengths


def test_values_inside_are_returned_behind_the_outputs_and_buffers_have_the_names_of_the_file(
    float_path,
) -> None:
    model = ir.load(float_path)
    inside = next(node for node in model.graph if node.op_type == "Softmax").outputs[0]
    module = to_torch(model, also=[inside])
    _, probabilities = module(*map(torch.from_numpy, batch([4, 2]).values()))
    assert torch.allclose(probabilities.sum(-1), torch.ones(()))
    named = module.meta["initializers"]
    for buffer, name in named.items():
        array = operators.const_array(model.graph.initializers[name])
        np.testing.assert_array_equal(module.get_buffer(buffer).numpy(), array)
    assert any(name.endswith("weight") for name in named.values())


def test_what_is_unknown_is_refused_by_name(golden, captured, float_path) -> None:
    model = ir.load(float_path)
    found = sites.find_sites(model.graph, captured("bert").family)
    qdq.write(
        model,
        Dynamic().plan(found, None, targets.load("ort-cpu").capabilities),
    )
    with golden.raises(ModelError):
        to_torch(model)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("Softmax", {"flavour": 1}), ("Cast", {"to": ir.DataType.COMPLEX64})],
)
def test_an_odd_node_is_refused(golden, op_type: str, attributes: dict) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"]))
    node = operators.make_node(op_type, [x], "odd", attributes)
    graph = ir.Graph([x], list(node.outputs), nodes=[node], opset_imports={"": 18}, name="g")
    with golden.raises(ModelError):
        to_torch(ir.Model(graph, ir_version=10))


def test_names_in_a_file_never_become_code(float_path, tmp_path) -> None:
    """torch.fx writes Python source: a name such as this one would run when the model is opened."""
    mark = tmp_path / "ran"
    model = ir.load(float_path)
    for number, value in enumerate((model.graph.inputs[0], model.graph.outputs[0])):
        value.name = f"x{number}=open({str(mark)!r}, 'w')"
    for number, (name, value) in enumerate(list(model.graph.initializers.items())):
        model.graph.initializers.pop(name)
        value.name = f"w{number}²\n    open({str(mark)!r}, 'w')"
        model.graph.initializers[value.name] = value
    for node in model.graph:
        node.name = f"n\nopen({str(mark)!r}, 'w')"
    operators.save(model, tmp_path / "model.onnx")
    module = to_torch(ir.load(tmp_path / "model.onnx"))
    module(*map(torch.from_numpy, batch([4, 2]).values()))
    assert not mark.exists()
