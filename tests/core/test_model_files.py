"""Files of models of unknown origin: a sentence for what is damaged, and nothing is read outside of the model's folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octobert
from octobert.core import onnx_files
from octobert.core.errors import ModelError, OctobertError
from octobert.core.model_config import read_config
from octobert.models.source import resolve


def write_onnx(folder: Path, *tensors: TensorProto, nodes: int = 1) -> Path:
    """A chain of operators with constants that it does not read."""
    names = ["x", *(f"v{index}" for index in range(nodes))]
    chain = [helper.make_node("Relu", [names[i]], [names[i + 1]]) for i in range(nodes)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 4])
        for name in (names[0], names[-1])
    ]
    graph = helper.make_graph(chain, "graph", ends[:1], ends[1:], list(tensors))
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]),
        folder / "model.onnx",
    )
    return folder / "model.onnx"


def external(**entries: object) -> TensorProto:
    """A constant of 16 bytes in a file of its own."""
    tensor = TensorProto(
        name="weight", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
    )
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "inner/../../secret.bin",
        "/etc/hostname",
        "..\\secret.bin",
        "C:\\secret.bin",
        "",
    ],
)
def test_external_data_outside_of_the_folder_is_never_opened(
    golden, tmp_path, location: str
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    path = write_onnx(tmp_path / "model", external(location=location))
    for read in (
        lambda: octobert.check(path, "ort-cpu"),
        lambda: resolve(path),
        lambda: octobert.fuse(path, tmp_path / "out"),
    ):
        with golden.raises(ModelError):
            read()


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "none.bin"},
        {"location": "link.bin"},
        {"location": "data.bin", "length": 16, "offset": 8},
        {"location": "data.bin", "length": 16, "offset": -8},
        {"location": "data.bin", "length": "x"},
    ],
)
def test_external_data_that_does_not_fit(golden, tmp_path, entries: dict[str, object]) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    path = write_onnx(tmp_path / "model", external(**entries))
    (path.parent / "data.bin").write_bytes(bytes(16))
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    with golden.raises(ModelError):
        onnx_files.read_onnx(path)


def test_external_data_beside_the_model_is_read(tmp_path, monkeypatch) -> None:
    path = write_onnx(tmp_path, external(location="inner/data.bin", length=16))
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "data.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    weight = onnx_files.read_onnx(path).graph.initializers["weight"].const_value
    assert weight.numpy().tolist() == [0, 1, 2, 3]
    assert onnx_files.external_files(path) == [tmp_path / "inner" / "data.bin"]
    # A run asks many times: the file is parsed again only once it has changed.
    monkeypatch.setattr(onnx_files, "_proto", lambda path: pytest.fail("parsed again"))
    assert onnx_files.external_files(path) == [tmp_path / "inner" / "data.bin"]
    monkeypatch.undo()
    write_onnx(tmp_path, external(location="other.bin", length=16))
    with pytest.raises(ModelError, match=r"other\.bin: the model's external data is missing"):
        onnx_files.external_files(path)


@pytest.mark.parametrize(
    "tensor",
    [
        TensorProto(name="w", dims=[5], data_type=TensorProto.FLOAT, raw_data=bytes(16)),
        TensorProto(name="w", dims=[-1], data_type=TensorProto.FLOAT, raw_data=bytes(16)),
        TensorProto(name="w", dims=[2**60], data_type=TensorProto.FLOAT),
        TensorProto(name="w", dims=[4], data_type=99, raw_data=bytes(16)),
    ],
)
def test_constants_that_do_not_fit_their_shape(tmp_path, tensor: TensorProto) -> None:
    with pytest.raises(ModelError, match="the file is not a complete ONNX model"):
        octobert.check(write_onnx(tmp_path, tensor), "ort-cpu")


def test_a_location_that_is_no_text_is_never_opened(golden, tmp_path) -> None:
    path = write_onnx(tmp_path, external(location="some-name"))
    path.write_bytes(path.read_bytes().replace(b"some-name", b"some\xffname"))
    with golden.raises(ModelError):
        octobert.check(path, "ort-cpu")


def test_a_graph_of_too_many_operators_is_refused_before_it_is_read(
    golden, tmp_path, monkeypatch
) -> None:
    assert onnx_files.MAX_NODES == 50_000
    monkeypatch.setattr(onnx_files, "MAX_NODES", 100)
    path = write_onnx(tmp_path, nodes=101)
    for read in (lambda: octobert.check(path, "ort-cpu"), lambda: resolve(path)):
        with golden.raises(ModelError):
            read()


def test_subgraphs_are_looked_at_too(tmp_path) -> None:
    path = write_onnx(tmp_path, numpy_helper.from_array(np.array(True), "always"))
    model = onnx.load(path)
    inner = helper.make_graph(
        [],
        "inner",
        [],
        [helper.make_tensor_value_info("weight", 1, [4])],
        [external(location="/dev/null")],
    )
    branch = helper.make_node("If", ["always"], ["y"], then_branch=inner, else_branch=inner)
    model.graph.node.append(branch)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="the external data is not in the model's folder"):
        onnx_files.read_onnx(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"hidden_size": 3',
        "[" * 100_000,
        "[1]",
        '{"num_hidden_layers": 1000000}',
        '{"n_layers": 1000000}',
        '{"vocab_size": "30522"}',
        '{"max_position_embeddings": null}',
        '{"hidden_size": 1e400}',
        '{"id2label": {"one": "a"}}',
        '{"model_type": "' + "a" * 70_000 + '"}',
        '{"architectures": "BertModel"}',
        '{"layer_norm_eps": Infinity}',
        '{"layer_norm_epsilon": NaN}',
        '{"norm_eps": -1e-12}',
        '{"rms_norm_eps": "1e-6"}',
        '{"rope_parameters": {"rope_theta": -Infinity}}',
        '{"hidden_dropout_prob": 1e999}',
    ],
)
def test_a_config_that_no_encoder_has(golden, tmp_path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with golden.raises(ModelError):
        read_config(tmp_path)


def test_labels_have_a_limit(tmp_path) -> None:
    for count in (2**16, 2**16 + 1):
        labels = {str(i): f"label {i}" for i in range(count)}
        (tmp_path / "config.json").write_text(json.dumps({"id2label": labels}))
        if count <= 2**16:
            assert read_config(tmp_path)["id2label"] == labels
            continue
        with pytest.raises(ModelError, match=r"config\.json, id2label: .*at most 65536 items"):
            read_config(tmp_path)


def test_a_config_that_is_not_utf8_and_one_that_is_not_there(tmp_path) -> None:
    assert read_config(tmp_path) == {}
    (tmp_path / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(ModelError, match=r"config.json is not JSON \(got 'utf-8' codec"):
        read_config(tmp_path)
    config = {"model_type": "bert", "id2label": {"0": "no"}, "pad_token_id": None, "own": [1]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(tmp_path) == config


def test_names_that_no_file_system_takes() -> None:
    with pytest.raises(OctobertError, match="there is no such file or folder"):
        resolve("./" + "a" * 300)


def test_a_value_of_any_length_is_short_in_a_message() -> None:
    error = OctobertError("x", got="a" * 100_000, where="b" * 100_000, expected="c" * 100_000)
    assert len(str(error)) < 2000
    assert "aaa … aaa" in str(error)
