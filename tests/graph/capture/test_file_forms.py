"""ONNX files in forms that exporters write and others than ours: types of inputs, relative positions, outputs without shapes."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import octobert
from octobert.core.errors import ModelError
from octobert.core.onnx_files import TensorInfo, check_inputs
from octobert.graph import operators
from octobert.graph.capture import capture
from octobert.models.checkpoint import load_torch
from octobert.models.source import resolve
from tests.support import any_graphs
from tests.support.checkpoints import make_checkpoint, parity_feeds

HEAD, TASK = "sequence-classification", "text-classification"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TYPES = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "float64": onnx.TensorProto.DOUBLE,
    "int32": onnx.TensorProto.INT32,
    "int64": onnx.TensorProto.INT64,
    "bool": onnx.TensorProto.BOOL,
}


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier as an ONNX file beside its tokenizer."""
    made, source = tmp_path_factory.mktemp("onnx"), checkpoint("bert", HEAD)
    operators.save(capture.export(load_torch(source, HEAD), HEAD), made / "model.onnx")
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, made)
    return made


def changed(folder: Path, place: Path, change: Any) -> Path:
    shutil.copytree(folder, place)
    model = onnx.load(place / "model.onnx")
    change(model)
    onnx.save(model, place / "model.onnx")
    return place / "model.onnx"


def retyped(model: onnx.ModelProto, name: str, dtype: int) -> None:
    """Let an input have another type, which the graph casts at once."""
    value = next(value for value in model.graph.input if value.name == name)
    value.type.tensor_type.elem_type = dtype
    for node in model.graph.node:
        node.input[:] = [f"{name}.cast" if each == name else each for each in node.input]
    cast = onnx.helper.make_node("Cast", [name], [f"{name}.cast"], to=onnx.TensorProto.INT64)
    model.graph.node.insert(0, cast)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("attention_mask", dtype) for dtype in TYPES),
        ("input_ids", "int32"),
        ("token_type_ids", "int32"),
    ],
)
def test_inputs_are_fed_in_their_type(folder: Path, tmp_path: Path, name: str, dtype: str) -> None:
    file = changed(folder, tmp_path / "model", lambda m: retyped(m, name, TYPES[dtype]))
    captured = capture.capture(resolve(file), HEAD, parity_feeds())
    assert captured.parity.largest_difference <= captured.parity.tolerance
    texts = [("the of", "and"), ("to", "in is a")]
    with (
        octobert.load(file, task=TASK, measure=False) as model,
        octobert.load(folder / "model.onnx", task=TASK, measure=False) as plain,
    ):
        assert model(texts) == plain(texts)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("position_ids", "the graph then counts positions itself"),
        ("past_key_values.0.key", "without the cache of a decoder"),
        ("inputs_embeds", "with input_ids"),
        ("cu_seqlens", "for padded batches"),
        ("other", "export it with these inputs"),
    ],
)
def test_what_is_not_fed_is_explained(folder: Path, tmp_path: Path, name: str, fix: str) -> None:
    def add(model: onnx.ModelProto) -> None:
        kind = onnx.TensorProto.INT64
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, ["b", "s"]))

    file = changed(folder, tmp_path / "model", add)
    with pytest.raises(ModelError, match=f"inputs.*{name}.*{fix}"):
        capture.capture(resolve(file), HEAD, parity_feeds())
    ports = [TensorInfo(name=each, dtype="int64") for each in (*INPUTS, name)]
    with pytest.raises(ModelError, match=f"other inputs.*{name}.*{fix}"):
        check_inputs(ports, where="model.onnx")


class Relative(nn.Module):
    """The attention of `relative_key` and `relative_key_query`, which transformers had until its version 5."""

    def __init__(self, old: Any, heads: int, most: int, *, key: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.heads = old.query, old.key, old.value, heads
        self.size, self.most, self.of_keys = old.query.out_features // heads, most, key
        self.distance_embedding = nn.Embedding(2 * most - 1, self.size)
        nn.init.normal_(self.distance_embedding.weight, std=0.3)

    def forward(self, states: Any, attention_mask: Any = None, **_: Any) -> tuple[Any, None]:
        shape = (*states.shape[:2], self.heads, self.size)
        parts = (self.query, self.key, self.value)
        query, key, value = (part(states).view(shape).transpose(1, 2) for part in parts)
        places = torch.arange(states.shape[1])
        table = self.distance_embedding(places[:, None] - places[None] + self.most - 1)
        scores = query @ key.transpose(-1, -2) + torch.einsum("bhld,lrd->bhlr", query, table)
        if self.of_keys:
            scores = scores + torch.einsum("bhrd,lrd->bhlr", key, table)
        scores = scores / self.size**0.5
        probs = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
        return (probs @ value).transpose(1, 2).reshape(states.shape), None


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize("key", [False, True], ids=["relative_key", "relative_key_query"])
def test_relative_positions_of_queries_and_keys(
    checkpoint, folder: Path, tmp_path: Path, key: bool, dynamo: bool
) -> None:
    torch.manual_seed(1)
    model = load_torch(checkpoint("bert", HEAD), HEAD)
    for layer in model.bert.encoder.layer:
        layer.attention.self = Relative(layer.attention.self, 4, 64, key=key).eval()
    place = shutil.copytree(folder, tmp_path / "model") / "model.onnx"
    example = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in INPUTS)
    axes = {0: "batch", 1: "sequence"}
    free: dict[str, Any] = (
        {"dynamic_shapes": (axes,) * 3} if dynamo else {"dynamic_axes": dict.fromkeys(INPUTS, axes)}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            *(model, example, str(place)),
            **free,
            input_names=list(INPUTS),
            output_names=["logits"],
            opset_version=18,
            dynamo=dynamo,
        )
    captured = capture.capture(resolve(place), HEAD, parity_feeds())
    assert captured.parity.largest_difference <= captured.parity.tolerance


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("has_weights", [False, True])
def test_checkpoints_with_relative_positions_are_refused(
    golden, checkpoint, tmp_path: Path, kind: str, has_weights: bool
) -> None:
    folder = shutil.copytree(checkpoint("bert", HEAD), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"position_embedding_type": kind}
    (folder / "config.json").write_text(json.dumps(config))
    if has_weights:
        weights = load_file(folder / "model.safetensors")
        name = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
        weights[name] = np.zeros((127, 8), np.float32)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with golden.raises(ModelError):
        _ = resolve(folder).family


@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2", "modernbert"])
def test_every_weight_that_is_missing_is_missed(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(tmp_path / "model", family, HEAD, num_hidden_layers=1)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        rest = {other: array for other, array in weights.items() if other != name}
        save_file(rest, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=r"does not hold|has no weights|are not those of"):
            load_torch(folder, HEAD)


def speech(place: Path, change: Any) -> Path:
    model = onnx.load(any_graphs.write("speech", place))
    change(model)
    onnx.save(model, place)
    return place


def unshaped(model: onnx.ModelProto) -> None:
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def untyped(model: onnx.ModelProto) -> None:
    for value in model.graph.output:
        value.ClearField("type")


def clashing(model: onnx.ModelProto) -> None:
    """An axis has the name of another one, of another size."""
    for value in model.graph.output:
        for size in value.type.tensor_type.shape.dim:
            size.dim_param = "phonemes"


def passed_on(model: onnx.ModelProto) -> None:
    model.graph.output.append(model.graph.input[1])


def constant(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    )


def twice(model: onnx.ModelProto) -> None:
    model.graph.output.append(model.graph.output[0])


@pytest.mark.parametrize("change", [unshaped, untyped, clashing, passed_on, constant, twice])
def test_outputs_in_any_form_that_runs(tmp_path: Path, change: Any) -> None:
    file = speech(tmp_path / "model.onnx", change)
    captured = capture.capture_graph(file, any_graphs.feeds_of("speech", 3))
    operators.save(captured.model, tmp_path / "captured.onnx")
    onnx.checker.check_model(str(tmp_path / "captured.onnx"))
