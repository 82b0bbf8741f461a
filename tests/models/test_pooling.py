"""sentence-transformers folders: every module is computed as that library does, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert.core.errors import ModelError
from octobert.core.heads import HEADS
from octobert.core.model_config import Dense, Normalize, Pooling
from octobert.graph import operators
from octobert.graph.capture.pooling import append_pooling_
from octobert.models.pooling import pooler_of, pooling_of
from octobert.models.sentence_transformers import copy_modules, module_files
from octobert.models.source import resolve
from octobert.models.torch_pooling import pool
from tests.support.pooling import reference, write_modules

# float32 against float64, relative to values around 1.
ATOL = 2e-6
WIDTH = 8
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
MEAN: tuple[str, dict[str, Any]] = (
    "Pooling",
    {"embedding_dimension": WIDTH, "pooling_mode": "mean"},
)

EMBEDDING = HEADS["embedding"]


def dense(
    into: int, outof: int, activation: str = TANH, **more: object
) -> tuple[str, dict[str, Any]]:
    return "Dense", {
        "in_features": into,
        "out_features": outof,
        "activation_function": activation,
        **more,
    }


def encoder() -> ir.Model:
    """A graph whose token states are rows of a table, not less than 0 nor more."""
    ids, mask = (
        ir.Value(
            name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["batch", "sequence"])
        )
        for name in ("input_ids", "attention_mask")
    )
    graph = ir.Graph([ids, mask], [], nodes=[], opset_imports={"": 18}, name="encoder")
    table = np.random.default_rng(0).standard_normal((50, WIDTH)).astype(np.float32)
    node = operators.make_node(
        "Gather", [operators.initializer(graph, "table", table), ids], "states"
    )
    graph.extend([node])
    graph.outputs.append(node.outputs[0])
    return ir.Model(graph, ir_version=9)


def feeds() -> dict[str, np.ndarray]:
    """Rows of one token and of several, with padding that no mode may read."""
    lengths = np.array([1, 6, 3])
    mask = (np.arange(6) < lengths[:, None]).astype(np.int64)
    return {
        "input_ids": np.random.default_rng(1).integers(0, 50, mask.shape),
        "attention_mask": mask,
    }


def run(model: ir.Model) -> np.ndarray:
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds())[0]


def both(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(vectors of the graph, of PyTorch, of the reference)."""
    import torch

    states, mask = run(encoder()), feeds()["attention_mask"]
    model, pooler = encoder(), pooler_of(folder, EMBEDDING)
    append_pooling_(model, model.graph.outputs[0], pooler, "sentence_embedding")
    assert [str(value.name) for value in model.graph.outputs] == ["sentence_embedding"]
    in_torch = pool(torch.from_numpy(states), torch.from_numpy(mask), pooler).numpy()
    return run(model), in_torch, reference(folder, states, mask)


@pytest.mark.parametrize(
    "modules",
    [
        *([("Pooling", {"pooling_mode": mode})] for mode in MODES),
        [("Pooling", {"pooling_mode": list(reversed(MODES))}), ("Normalize", {})],
        [
            (
                "Pooling",
                {
                    f"pooling_mode_{key}": True
                    for key in ("mean_tokens", "lasttoken", "cls_token", "max_tokens")
                },
            )
        ],
        *(
            [MEAN, dense(WIDTH, 5, f"torch.nn.modules.activation.{name}")]
            for name in ("Tanh", "ReLU", "Sigmoid", "GELU")
        ),
        [
            MEAN,
            ("Normalize", None),
            dense(WIDTH, 12, IDENTITY, bias=False),
            ("LayerNorm", {"dimension": 12}),
            dense(12, 3),
        ],
        [
            MEAN,
            ("Dropout", {"dropout": 0.5}),
            dense(WIDTH, 4, use_residual=True),
            ("Normalize", {}),
        ],
    ],
    ids=lambda modules: (
        "-".join(kind for kind, _ in modules) + str(modules[0][1].get("pooling_mode", ""))[:12]
    ),
)
def test_every_module_computes_what_the_reference_does(
    tmp_path: Path, modules: list[tuple[str, dict[str, Any] | None]]
) -> None:
    folder = write_modules(tmp_path, modules)
    graph, in_torch, expected = both(folder)
    np.testing.assert_allclose(graph, expected, rtol=0, atol=ATOL)
    np.testing.assert_allclose(in_torch, expected, rtol=0, atol=ATOL)


def test_vectors_are_truncated_last(tmp_path: Path) -> None:
    folder = write_modules(
        tmp_path, [MEAN, ("Normalize", {})], truncate_dim=3, similarity_fn_name="dot"
    )
    graph, in_torch, expected = both(folder)
    assert graph.shape == (3, 3)
    np.testing.assert_allclose(graph, expected, rtol=0, atol=ATOL)
    np.testing.assert_allclose(in_torch, expected, rtol=0, atol=ATOL)
    assert pooling_of(folder, EMBEDDING) == Pooling(
        steps=(Normalize(),), truncate_dim=3, similarity="dot"
    )


def test_a_file_that_pools_by_itself_is_only_truncated(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, [MEAN, ("Normalize", {})], truncate_dim=3)
    model = encoder()
    append_pooling_(model, model.graph.outputs[0], pooler_of(folder, EMBEDDING), "states")
    np.testing.assert_array_equal(run(model), run(encoder())[..., :3])


def test_names_of_modules_in_every_version(tmp_path: Path) -> None:
    new = "sentence_transformers.sentence_transformer.modules.pooling.Pooling"
    folder = write_modules(
        tmp_path,
        [
            (new, {"pooling_mode": "max"}),
            ("sentence_transformers.base.modules.dense.Dense", dense(WIDTH, 2)[1]),
        ],
    )
    step = Dense(folder="2_Dense", in_features=WIDTH, out_features=2)
    assert pooling_of(folder, EMBEDDING) == Pooling(modes=("max",), steps=(step,))
    assert pooling_of(folder, EMBEDDING).folders == ("2_Dense",)


def test_a_plain_encoder_is_averaged(tmp_path: Path) -> None:
    assert pooling_of(tmp_path, EMBEDDING) == Pooling()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_chat_template_is_used_only_without_modules(golden, tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text('{"chat_template": "{{ messages }}"}')
    with golden.raises(ModelError):
        pooling_of(tmp_path, EMBEDDING)
    assert pooling_of(write_modules(tmp_path, [MEAN]), EMBEDDING) == Pooling()


@pytest.mark.parametrize(
    ("modules", "about"),
    [
        ([MEAN, ("CNN", {})], {}),
        ([MEAN, ("custom_code.Pooling", {})], {}),
        ([("Pooling", {"pooling_mode": "median"})], {}),
        ([("Pooling", {"pooling_mode_new_tokens": True})], {}),
        ([("WordWeights", {}), MEAN], {}),
        ([MEAN, dense(WIDTH, 2, "my.Swish")], {}),
        ([MEAN, ("Normalize", {"module_input_name": "token_embeddings"})], {}),
        ([MEAN, ("Dense", {"in_features": "x", "out_features": 2})], {}),
        ([("Pooling", {"pooling_mode": 5})], {}),
        ([MEAN, dense(WIDTH + 1, 2)], {}),
        ([MEAN, dense(WIDTH, 4), dense(5, 2)], {}),
        ([MEAN], {"truncate_dim": "x"}),
        ([MEAN], {"truncate_dim": -1}),
        ([MEAN], {"model_type": "SparseEncoder"}),
        (
            [("Pooling", {"pooling_mode": "mean", "include_prompt": False})],
            {"prompts": {"query": "q: "}},
        ),
    ],
)
def test_what_is_not_supported_is_named(
    golden, tmp_path: Path, modules: list[Any], about: dict[str, Any]
) -> None:
    folder = write_modules(tmp_path, modules, **about)
    with golden.raises(ModelError):
        pooling_of(folder, EMBEDDING)


def test_a_prompt_that_would_be_left_out_matters_only_where_there_is_one(tmp_path: Path) -> None:
    folder = write_modules(
        tmp_path,
        [("Pooling", {"pooling_mode": "mean", "include_prompt": False})],
        prompts={"query": ""},
    )
    assert not pooling_of(folder, EMBEDDING).include_prompt


def test_an_encoder_elsewhere_or_with_another_output(golden, tmp_path: Path) -> None:
    folder = write_modules(tmp_path, [MEAN])
    for stated in ({"transformer_task": "fill-mask"}, {"query_length": 8}):
        (folder / "sentence_bert_config.json").write_text(json.dumps(stated))
        with golden.raises(ModelError):
            pooling_of(folder, EMBEDDING)
    entries = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(
        json.dumps([entries[0] | {"path": "0_Transformer"}, entries[1]])
    )
    with golden.raises(ModelError):
        pooling_of(folder, EMBEDDING)
    (folder / "modules.json").unlink()
    with golden.raises(ModelError):
        pooling_of(folder, EMBEDDING)


def test_weights_of_modules_are_checked(golden, tmp_path: Path) -> None:
    folder = write_modules(tmp_path, [MEAN, dense(WIDTH, 2)])
    own = folder / "2_Dense"
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"out_features": 3}))
    with golden.raises(ModelError):
        pooler_of(folder, EMBEDDING)
    (own / "model.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(ModelError, match=r"2_Dense/model\.safetensors: the weights cannot be read"):
        pooler_of(folder, EMBEDDING)
    (own / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"2_Dense: the module has no weights"):
        pooler_of(folder, EMBEDDING)


def test_weights_in_a_pickle_are_opened_only_if_that_is_allowed(golden, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = write_modules(tmp_path, [MEAN, dense(WIDTH, 2)])
    own, expected = folder / "2_Dense", pooler_of(folder, EMBEDDING)
    torch.save(load_file(own / "model.safetensors"), own / "pytorch_model.bin")
    (own / "model.safetensors").unlink()
    with golden.raises(ModelError):
        pooler_of(folder, EMBEDDING)
    loaded = pooler_of(folder, EMBEDDING, allow_pickle=True).weights
    assert all(np.array_equal(loaded[name], array) for name, array in expected.weights.items())


def test_modules_belong_to_a_model(tmp_path: Path) -> None:
    """They are copied with it, and its digest covers them."""
    folder = write_modules(
        tmp_path / "model", [MEAN, dense(WIDTH, 2), ("Normalize", None)], prompts={}
    )
    (folder / "config.json").write_text('{"model_type": "bert"}')
    expected = ["modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"]
    assert list(module_files(folder)) == [
        *expected,
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ]
    copy_modules(folder, tmp_path / "copy")
    assert pooler_of(tmp_path / "copy", EMBEDDING).pooling == pooler_of(folder, EMBEDDING).pooling
    before = resolve(folder).digest
    weights = folder / "2_Dense" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert resolve(folder).digest != before
