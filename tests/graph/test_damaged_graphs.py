"""ONNX files that runtimes refuse are refused in a sentence by every command that reads one, and those that they open are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import octobert
from octobert.core.onnx_files import read_onnx
from tests.support.cli import octobert as command

Change = Callable[[onnx.ModelProto], object]


def small() -> onnx.ModelProto:
    """Words → a table → a product → a sum → probabilities."""
    constants = {
        "table": np.ones((10, 4), np.float32),
        "weight": np.eye(4, dtype=np.float32),
        "bias": np.zeros(4, np.float32),
        "yes": np.array(True),
    }
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], name="words"),
        helper.make_node("MatMul", ["x", "weight"], ["product"], name="product"),
        helper.make_node("Add", ["product", "bias"], ["sum"], name="sum"),
        helper.make_node("Softmax", ["sum"], ["logits"], name="softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branching(*nodes: onnx.NodeProto) -> Change:
    """An If whose first branch has these nodes, which make `then`."""

    def change(model: onnx.ModelProto) -> None:
        branches = [
            helper.make_graph(
                branch, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
            )
            for name, branch in {
                "then": nodes,
                "else": [helper.make_node("Identity", ["product"], ["else"])],
            }.items()
        ]
        node = helper.make_node("If", ["yes"], ["chosen"], name="if")
        for name, branch in zip(("then_branch", "else_branch"), branches, strict=True):
            node.attribute.append(helper.make_attribute(name, branch))
        model.graph.node[2].input[0] = "chosen"
        kept = [copy.deepcopy(each) for each in model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend([*kept[:2], node, *kept[2:]])

    return change


def reversed_nodes(model: onnx.ModelProto) -> None:
    kept = [copy.deepcopy(each) for each in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(kept[::-1])


def attribute(value: object, name: str = "axis") -> Change:
    return lambda m: m.graph.node[3].attribute[0].CopyFrom(helper.make_attribute(name, value))


def constant(index: int, array: np.ndarray) -> Change:
    return lambda m: m.graph.initializer[index].CopyFrom(
        numpy_helper.from_array(array, m.graph.initializer[index].name)
    )


def stated(name: str, number: int, shape: list[int] | None) -> Change:
    return lambda m: m.graph.value_info.append(helper.make_tensor_value_info(name, number, shape))


neg = helper.make_node
CASES: dict[str, Change] = {
    "as it is": lambda m: None,
    "nodes in reverse": reversed_nodes,
    "a cycle": lambda m: m.graph.node[1].input.__setitem__(0, "sum"),
    "a node that reads itself": lambda m: m.graph.node[2].input.__setitem__(1, "sum"),
    "an input that nothing makes": lambda m: m.graph.node[2].input.__setitem__(1, "nothing"),
    "an output that nothing makes": lambda m: setattr(m.graph.output[0], "name", "nothing"),
    "one name made twice": lambda m: m.graph.node.append(neg("Identity", ["product"], ["sum"])),
    "a node and a constant of one name": lambda m: m.graph.node.append(
        neg("Identity", ["product"], ["weight"])
    ),
    "a constant twice": lambda m: m.graph.initializer.append(m.graph.initializer[1]),
    "an input twice": lambda m: m.graph.input.append(m.graph.input[0]),
    "an unknown operator": lambda m: setattr(m.graph.node[3], "op_type", "Sotfmax"),
    "a domain without a version": lambda m: setattr(m.graph.node[3], "domain", "of.mine"),
    "a text as a number": attribute("x"),
    "a fraction as a whole number": attribute(1.5),
    "an attribute of another operator": attribute(1, "axes"),
    "an attribute twice": lambda m: m.graph.node[3].attribute.append(m.graph.node[3].attribute[0]),
    "an attribute without a type": lambda m: setattr(m.graph.node[3].attribute[0], "type", 0),
    "an input too many": lambda m: m.graph.node[2].input.append("weight"),
    "no inputs": lambda m: m.graph.node[1].ClearField("input"),
    "an input left out": lambda m: m.graph.node[2].input.__setitem__(1, ""),
    "an output too many": lambda m: m.graph.node[3].output.append("more"),
    "no outputs": lambda m: m.graph.node[2].ClearField("output"),
    "a constant that is cut": lambda m: setattr(
        m.graph.initializer[1], "raw_data", m.graph.initializer[1].raw_data[:-4]
    ),
    "a constant without a type": lambda m: setattr(m.graph.initializer[1], "data_type", 0),
    "a constant of an unknown type": lambda m: setattr(m.graph.initializer[1], "data_type", 99),
    "a constant of negative size": lambda m: m.graph.initializer[1].dims.__setitem__(0, -4),
    "a constant of another type": constant(2, np.zeros(4, np.int64)),
    "a constant of another shape": constant(1, np.zeros((3, 4), np.float32)),
    "ids that are no integers": lambda m: setattr(
        m.graph.input[0].type.tensor_type, "elem_type", TensorProto.FLOAT
    ),
    "an input without a type": lambda m: m.graph.input[0].ClearField("type"),
    "an output of another type": lambda m: setattr(
        m.graph.output[0].type.tensor_type, "elem_type", TensorProto.INT64
    ),
    "an output of another shape": lambda m: m.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 2])
    ),
    "an output without a type": lambda m: m.graph.output[0].ClearField("type"),
    "a value of another shape": stated("product", TensorProto.FLOAT, [7, 7, 7]),
    "a value of another type": stated("product", TensorProto.INT64, None),
    "no opset": lambda m: m.ClearField("opset_import"),
    "opset 0": lambda m: setattr(m.opset_import[0], "version", 0),
    "a version of the future": lambda m: setattr(m, "ir_version", 99),
    "a branch": branching(neg("Neg", ["product"], ["then"])),
    "a branch that reads nothing": branching(neg("Neg", ["nothing"], ["then"])),
    "a branch that reads what comes later": branching(neg("Neg", ["sum"], ["then"])),
    "a branch with a cycle": branching(
        neg("Add", ["product", "b"], ["then"]), neg("Neg", ["then"], ["b"])
    ),
    "a branch in reverse": branching(neg("Neg", ["b"], ["then"]), neg("Neg", ["product"], ["b"])),
    "a branch with an unknown operator": branching(neg("Nge", ["product"], ["then"])),
    "a branch without its output": branching(neg("Neg", ["product"], ["b"])),
    "a branch that makes a name again": branching(
        neg("Neg", ["product"], ["x"]), neg("Neg", ["x"], ["then"])
    ),
    "an If without a branch": lambda m: (
        branching(neg("Neg", ["product"], ["then"]))(m),
        m.graph.node[2].attribute.pop(),
    ),
}  # fmt: skip


def written(name: str, folder: Path) -> Path:
    model = small()
    CASES[name](model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("name", CASES)
def test_what_the_runtime_refuses_is_refused_and_what_it_opens_is_not(name, tmp_path) -> None:
    path = written(name, tmp_path)
    onnxruntime.set_default_logger_severity(4)
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  # of the runtime's own types
        for read in (read_onnx, octobert.check, lambda file: octobert.fuse(file, tmp_path / "new")):
            with pytest.raises(octobert.ModelError, match=r"model\.onnx: the file is not a"):
                read(path)
        assert not (tmp_path / "new").exists()
    else:
        read = [str(node.name) for node in read_onnx(path).graph]
        assert (read[0], read[-1]) == ("words", "softmax"), "sorted"
    finally:
        onnxruntime.set_default_logger_severity(2)


def test_the_command_ends_with_a_sentence(tmp_path) -> None:
    done = command("check", written("a cycle", tmp_path))
    assert done.returncode == octobert.ModelError.exit_code
    assert "operators form a cycle: product, sum, product" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("model.onnx", "the model's own file"),
        ("./model.onnx", "the model's own file"),
        ("hard.bin", "the model's own file"),
        ("../model.onnx", "not in the model's folder"),
        ("pipe.bin", "is missing"),
    ],
)
def test_external_data_is_another_file_of_the_folder(tmp_path, location: str, problem: str) -> None:
    import os

    model = small()
    tensor = model.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "64"}.items():
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    os.link(path, tmp_path / "hard.bin")
    os.mkfifo(tmp_path / "pipe.bin")
    with pytest.raises(octobert.ModelError, match=problem):
        octobert.check(path)
