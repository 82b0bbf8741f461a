"""Capture: every family and head becomes the same canonical form, and computes what PyTorch computes."""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert.core import plugins
from octobert.core.errors import ModelError, ParityError
from octobert.core.family import part_of
from octobert.core.heads import HEADS
from octobert.core.onnx_files import read_onnx
from octobert.core.plan import ROLES
from octobert.core.results import Sizes
from octobert.graph import branches, operators, parity, parts, sites
from octobert.graph.capture import canonical, capture, lowering, shapes, structure
from octobert.models import checkpoint
from octobert.models.checkpoint import load_torch
from octobert.models.source import resolve
from octobert.quantization import placements
from tests.support.checkpoints import (
    FAMILY_HEADS,
    PRETRAINED_HEADS,
    batch,
    make_checkpoint,
    pad_of,
    parity_feeds,
)
from tests.support.graphs import sites_of
from tests.support.pooling import reference, write_modules

FAMILIES = plugins.names("families")
BERT_LIKE = ("bert", "distilbert", "electra", "roberta")
# The type of a module that a layer lacks.
ABSENT = ("NoneType", "Identity")
# Both are float32; the graphs differ only in the order of additions.
RTOL = 5e-5


def duplicates(graph: ir.Graph) -> list[str]:
    """Names of more than one value."""
    counts = Counter(v.name for node in graph for v in node.outputs)
    return sorted(str(name) for name, count in counts.items() if count > 1)


def batches() -> list[dict[str, np.ndarray]]:
    return parity_feeds()


@pytest.mark.parametrize(("family", "head"), [*FAMILY_HEADS, *PRETRAINED_HEADS])
def test_every_family_and_head_follows_pytorch(captured, family: str, head: str) -> None:
    result = captured(family, head)
    assert result.parity.against == "PyTorch"
    assert result.parity.largest_difference <= RTOL
    assert result.parity.batches == ((3, 9), (1, 2), (2, 30))
    assert [v.name for v in result.model.graph.outputs] == list(HEADS[head].outputs)
    assert result.sizes == Sizes(
        layers=2 if (family, head) in FAMILY_HEADS else 1, heads=4, hidden=32
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "head"),
    [
        *((family, "late-interaction") for family in FAMILIES),
        *((family, "sparse-embedding") for family, head in PRETRAINED_HEADS if head == "masked-lm"),
    ],
)
def test_sparse_and_token_vectors_of_every_family_follow_pytorch(
    tmp_path: Path, family: str, head: str
) -> None:
    """What lies behind the encoder is named alike in all of them, so that recipes can name it."""
    # The models of `captured` with the heads `embedding` and `masked-lm`, which are exported once.
    layers = {"num_hidden_layers": 1} if head == "sparse-embedding" else {}
    folder = make_checkpoint(tmp_path / "model", family, head, **layers)
    result = capture.capture(resolve(folder), head, parity_feeds(pad_of(folder)))
    assert result.parity.largest_difference <= RTOL
    assert [v.name for v in result.model.graph.outputs] == list(HEADS[head].outputs)
    placed = sites.find_sites(result.model.graph, result.family)
    assert any(site.kind.startswith("head.weight@") for site in placed)


@pytest.mark.parametrize(
    "family", [family for family, head in PRETRAINED_HEADS if head == "masked-lm"]
)
def test_a_decoder_over_the_vocabulary_is_a_layer_of_the_head(captured, family: str) -> None:
    """It has the word embeddings as weights; both have their own names, and the decoder is the last layer and a part of its own."""
    result = captured(family, "masked-lm")
    placed = sites.find_sites(result.model.graph, result.family)
    (table,) = [site for site in placed if site.role == "embedding.weight"]
    assert table.module in (
        "embeddings.word_embeddings",
        "embeddings.tok_embeddings",
        "embed_tokens",
    )
    (decoder,) = [site for site in placed if site.kind == "head.weight@decoder"]
    ours, theirs = (
        result.model.graph.initializers[site.value].const_value.numpy() for site in (table, decoder)
    )
    assert theirs.shape[1] == len(ours) == 120
    tied = family not in ("eurobert", "rembert")
    assert np.array_equal(theirs[: ours.shape[1]], ours.T) == tied
    # The layer that transforms the states before, which no family names as a part of its encoder.
    modules = [site.module for site in placed if site.role == "head.weight"]
    assert len({*modules}) == len(modules) >= (1 if family == "eurobert" else 2)
    taken = {
        site.module
        for site in placed
        if site.role == "head.weight" and placements.load("matmul").takes(site)
    }
    assert taken == {modules[-1]} == {decoder.module}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_is_canonical(captured, family: str) -> None:
    result = captured(family, "sequence-classification")
    model = result.model
    counts = Counter(node.op_type for node in model.graph)
    layers = structure.find_layers(model.graph)
    assert counts["Softmax"] == len(layers) == 2
    feed_forwards = sum(len(layer.feed_forwards) for layer in layers)
    activations = counts["Erf"] + counts["Relu"] + counts["Tanh"] + counts["Sigmoid"]
    assert activations >= feed_forwards
    # RMS norms have no operator in this opset; a window, or an order of tokens, is looked up by positions.
    own = {
        "eurobert": {"ReduceMean"},
        "gemma3-text": {"GatherND", "ReduceMean"},
        "modernbert": {"GatherND"},
        "qwen3": {"GatherND", "ReduceMean"},
    }
    absent = {"Gemm", "IsNaN", "GatherND", "ReduceMean", "Dropout", "Identity"}
    assert not (absent - own.get(family, set())) & set(counts)
    if family in BERT_LIKE:
        assert counts["LayerNormalization"] == 5
        assert "Where" not in counts
        assert "Expand" not in counts or family != "distilbert"
    assert model.opset_imports[""] == canonical.OPSET
    assert not duplicates(model.graph)
    for index, layer in enumerate(layers):
        chain = layer.attention.softmax.inputs[0].producer()
        assert chain.op_type == "Add"
        # One of the two layers sees the whole text, the other one a window.
        two = family in ("modernbert", "gemma3-text") and index
        assert chain.inputs[1].name == ("attention_mask.bias_1" if two else "attention_mask.bias")
        for _ in range({"mpnet": 1, "deberta-v2": 1, "deberta": 1}.get(family, 0)):
            chain = chain.inputs[0].producer()
            assert chain.op_type == "Add"
        assert chain.inputs[0].producer().op_type == "Mul"
        assert chain.inputs[0].producer().inputs[0].producer().op_type == "MatMul"
        # Four heads; DeBERTa divides by the root of three products instead of one, the first version before the product.
        products = 3 if family == "deberta-v2" else 1
        scale = 1.0 if family == "deberta" else (products * layer.attention.width / 4) ** -0.5
        assert layer.attention.scale == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mask_is_bounded_everywhere(captured, family: str) -> None:
    graph = captured(family, "sequence-classification").model.graph
    arrays = [v.const_value.numpy() for v in graph.initializers.values()]
    floats = [a for a in arrays if a.dtype == np.float32 and a.size]
    assert min(float(a.min()) for a in floats) == canonical.MASK_VALUE
    assert all(np.isfinite(a).all() for a in floats)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_the_module_paths_of_transformers(captured, checkpoint, family: str) -> None:
    result = captured(family, "sequence-classification")
    from octobert.models.checkpoint import load_torch

    torch_model = load_torch(
        checkpoint(family, "sequence-classification"), "sequence-classification"
    )
    encoder = result.family
    # What DeBERTa projects relative positions with is folded: they are the same for all texts.
    modules = {
        encoder.strip_prefix(name): module
        for name, module in torch_model.named_modules()
        if ".pos_" not in name
    }
    values = {v.name for node in result.model.graph for v in node.outputs}
    for index in range(2):
        # The first layer of ModernBERT has no norm of its own; MobileBERT may have more feed-forwards than it has here.
        roles = {
            role
            for role in encoder.parts
            if type(modules.get(encoder.module(index, role))).__name__ not in ABSENT
        }
        assert {part_of(role) for role in encoder.parts} - {part_of(role) for role in roles} <= {
            "attention_norm"
        }
        for role in roles - {"attention"}:
            assert encoder.part(index, role) in values, role
        paths = {encoder.module(index, role) for role in roles}
        layer = (encoder.shared_layer or encoder.layer).format(index)
        assert {
            n
            for n, m in modules.items()
            if n.startswith(f"{layer}.") and type(m).__name__ == "Linear"
        } <= paths
    assert encoder.embeddings_norm in modules
    assert not encoder.final_norm or encoder.final_norm in modules
    checked = 0
    for name, value in result.model.graph.initializers.items():
        stem, _, kind = name.rpartition(".")
        if (
            kind == "weight"
            and stem in modules
            and len(value.shape) == 2
            and type(modules[stem]).__name__ == "Linear"
        ):
            theirs = modules[stem].weight.detach().numpy()
            np.testing.assert_array_equal(value.const_value.numpy(), theirs.T)
            checked += 1
    assert checked == sum(type(module).__name__ == "Linear" for module in modules.values())


def test_every_site_is_found_once(captured) -> None:
    result = captured("bert", "sequence-classification")
    placed = sites.find_sites(result.model.graph, result.family)
    counts = Counter(site.role for site in placed)
    assert set(counts) == set(ROLES)
    assert counts["linear.input"] == counts["linear.weight"] == 12
    assert counts["scores.query"] == counts["context.value"] == 2
    assert counts["residual.branch"] == counts["residual.skip"] == 4
    assert counts["head.weight"] == 2
    assert len({(s.node, s.input) for s in placed}) == len(placed)
    skips = [s.value for s in placed if s.role == "residual.skip"]
    assert skips[0] == "embeddings.LayerNorm"


def test_value_shapes_say_which_axes_are_batch_and_sequence(captured) -> None:
    graph = captured("bert", "sequence-classification").model.graph
    shape = {v.name: [str(d) for d in v.shape] for node in graph for v in node.outputs}
    assert shape["encoder.layer.0.attention.self.probs"] == ["batch", "4", "sequence", "sequence"]
    assert shape["encoder.layer.1.intermediate.dense"] == ["batch", "sequence", "64"]
    assert shape["pooler.dense"] == ["batch", "32"]


def test_padding_does_not_change_a_row(captured) -> None:
    model = captured("bert", "sequence-classification").model
    alone, padded = batch([9], seed=3), batch([9, 25], seed=3)
    first = parity.onnx_outputs(model, [parity.only(alone, model), parity.only(padded, model)])
    np.testing.assert_allclose(first[0][0][0], first[1][0][0], rtol=RTOL, atol=RTOL)


def test_the_modules_of_an_embedding_are_in_the_graph(tmp_path: Path) -> None:
    import torch

    dense = {
        "in_features": 64,
        "out_features": 12,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    modules = [
        ("Pooling", {"pooling_mode": ["mean", "lasttoken"]}),
        ("Dense", dense),
        ("Normalize", {}),
    ]
    folder = write_modules(
        make_checkpoint(tmp_path / "model", "bert", "embedding"), modules, truncate_dim=9
    )
    result = capture.capture(resolve(folder), "embedding", batches())
    assert result.pooling is not None
    assert result.pooling.folders == ("2_Dense",)
    encoder = checkpoint.load_torch(folder, "embedding")
    feeds = [parity.only(b, result.model) for b in batches()]
    for batch_feeds, (_, ours) in zip(feeds, parity.onnx_outputs(result.model, feeds), strict=True):
        with torch.inference_mode():
            states = encoder(
                **{n: torch.from_numpy(a) for n, a in batch_feeds.items()}
            ).last_hidden_state.numpy()
        np.testing.assert_allclose(
            ours, reference(folder, states, batch_feeds["attention_mask"]), rtol=0, atol=RTOL
        )
    # Its own file is a source too: the vector is there, and truncated already.
    (folder / "onnx").mkdir()
    operators.save(result.model, folder / "onnx" / "model.onnx")
    again = capture.capture(resolve(folder / "onnx" / "model.onnx"), "embedding", batches())
    np.testing.assert_allclose(
        *(parity.onnx_outputs(m, feeds)[0][-1] for m in (again.model, result.model)),
        rtol=0,
        atol=RTOL,
    )


@pytest.mark.parametrize("family", ["bert", "distilbert", "eurobert"])
def test_a_feed_forward_in_two_parts_is_one(captured, checkpoint, tmp_path, family) -> None:
    """A user's file that computes some neurons apart, as `branches.split_` writes them: the sites are those of the whole graph."""
    whole = captured(family, "embedding")
    shutil.copytree(checkpoint(family, "embedding"), tmp_path / "model")
    operators.save(whole.model, tmp_path / "model" / "model.onnx")
    model = ir.load(tmp_path / "model" / "model.onnx")
    modules = branches.separable(model.graph, whole.family)
    branches.split_(model, whole.family, {module: np.array([1, 4, 9]) for module in modules})
    operators.save(model, tmp_path / "model" / "model.onnx")
    assert len([node for node in model.graph if node.name.endswith(parts.WITH_APART)]) == 2
    again = capture.capture(resolve(tmp_path / "model" / "model.onnx"), "embedding", batches())
    assert sites_of(again) == sites_of(whole)
    ours, theirs = (
        [linear.sizes for linear in parts.all_linears(one.model.graph)] for one in (again, whole)
    )
    assert ours == theirs
    feeds = batches()
    for one, other in zip(
        *(parity.onnx_outputs(m, feeds) for m in (again.model, whole.model)), strict=True
    ):
        np.testing.assert_allclose(one[-1], other[-1], rtol=0, atol=RTOL)


def onnx_of(
    folder: Path,
    target: Path,
    *,
    attention: str,
    legacy: bool,
    external: bool = False,
    equal: bool = False,
    head: str = "sequence-classification",
) -> Path:
    """A user's export: SDPA attention from the current exporter, or the old exporter with decomposed norms.

    Args:
        external: the weights are in a file beside the graph, as the current exporter writes them without being asked.
        equal: all biases are zero and all norms one, as in a new model.
    """
    import torch

    model = checkpoint.load_torch(folder, head, attention=attention)
    for name, parameter in model.named_parameters() if equal else ():
        if parameter.ndim == 1:
            torch.nn.init.constant_(parameter, float(name.endswith("Norm.weight")))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    target.parent.mkdir(exist_ok=True)
    example = tuple(torch.ones(2, 7, dtype=torch.int64) for _ in names)
    axes = {name: {0: "b", 1: "s"} for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if legacy:
            torch.onnx.export(
                model, example, target, input_names=names, output_names=["logits"], dynamic_axes=axes,
                opset_version=14, dynamo=False,
            )  # fmt: skip
        else:
            dynamic = {n: {0: "b", 1: "s"} for n in names}
            kwargs = dict(zip(names, example, strict=True))
            program = torch.onnx.export(
                model,
                (),
                kwargs=kwargs,
                dynamo=True,
                opset_version=20,
                dynamic_shapes=dynamic,
                verbose=False,
            )
            program.save(target, external_data=external)
    for name in ("tokenizer.json", "config.json"):
        (target.parent / name).write_bytes((folder / name).read_bytes())
    return target


def test_weights_may_be_in_a_file_beside_the_graph(checkpoint, tmp_path) -> None:
    folder = checkpoint("bert", "sequence-classification")
    path = onnx_of(
        folder, tmp_path / "user" / "model.onnx", attention="sdpa", legacy=False, external=True
    )
    assert (tmp_path / "user" / "model.onnx.data").exists()
    result = capture.capture(resolve(path), "sequence-classification", batches())
    assert result.parity.largest_difference <= RTOL
    (tmp_path / "elsewhere").mkdir()
    operators.save(read_onnx(path), tmp_path / "elsewhere" / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "elsewhere" / "model.onnx"))


def test_token_states_need_no_name(checkpoint, tmp_path) -> None:
    """PyTorch's exporter names outputs after operators; the pooler's output beside them has two axes."""
    path = onnx_of(
        checkpoint("bert", "embedding"),
        tmp_path / "user" / "model.onnx",
        attention="sdpa",
        legacy=False,
        head="embedding",
    )
    names = [output.name for output in onnx.load(path).graph.output]
    assert len(names) == 2
    assert "last_hidden_state" not in names
    result = capture.capture(resolve(path), "embedding", batches())
    assert result.parity.largest_difference <= RTOL


def test_equal_parameters_that_the_exporter_shares_are_parameters_of_their_own(
    checkpoint, captured, tmp_path
) -> None:
    folder = checkpoint("bert", "sequence-classification")
    path = onnx_of(
        folder, tmp_path / "user" / "model.onnx", attention="eager", legacy=True, equal=True
    )
    assert any(node.op_type == "Identity" for node in onnx.load(path).graph.node)
    result = capture.capture(resolve(path), "sequence-classification", batches())
    assert result.parity.largest_difference <= RTOL
    reference = captured("bert", "sequence-classification").model.graph
    parameters = {name for name in reference.initializers if name.endswith((".weight", ".bias"))}
    assert parameters <= set(result.model.graph.initializers)


@pytest.mark.parametrize(
    ("attention", "legacy"), [("sdpa", False), ("eager", False), ("eager", True), ("sdpa", True)]
)
def test_a_users_onnx_file_gets_the_same_form(
    checkpoint, captured, tmp_path, attention: str, legacy: bool
) -> None:
    folder = checkpoint("bert", "sequence-classification")
    path = onnx_of(folder, tmp_path / "user" / "model.onnx", attention=attention, legacy=legacy)
    result = capture.capture(resolve(path), "sequence-classification", batches())
    reference = captured("bert", "sequence-classification")
    assert result.parity.largest_difference <= RTOL
    ours = [parity.only(b, result.model) for b in batches()]
    a = parity.onnx_outputs(result.model, ours)
    b = parity.onnx_outputs(reference.model, ours)
    for ours, theirs in zip(a, b, strict=True):
        np.testing.assert_allclose(ours[0], theirs[0], rtol=RTOL, atol=RTOL)
    layers = structure.find_layers(result.model.graph)
    assert [layer.attention.query.matmul.name for layer in layers] == [
        f"encoder.layer.{i}.attention.self.query.matmul" for i in range(2)
    ]
    assert not {"IsNaN", "Where", "ReduceMean"} & {n.op_type for n in result.model.graph}
    roles = Counter(s.role for s in sites.find_sites(result.model.graph, result.family))
    assert roles["linear.weight"] == 12
    assert roles["head.weight"] == 2
    assert roles["embedding.weight"] == 1


def test_a_graph_that_computes_something_else_is_refused(golden, captured) -> None:
    result = captured("bert", "sequence-classification")
    feeds = [parity.only(b, result.model) for b in batches()]
    wrong = [[np.ones((len(f["input_ids"]), 2), dtype=np.float32)] for f in feeds]
    with golden.raises(ParityError):
        parity.compare(result.model, feeds, wrong, "PyTorch")


def test_a_graph_of_fixed_shape_is_refused(captured, tmp_path) -> None:
    model = captured("bert", "sequence-classification").model
    path = tmp_path / "fixed.onnx"
    operators.save(model, path)
    fixed = ir.load(path)
    table = fixed.graph.initializers["embeddings.position_embeddings.weight"]
    gather = next(n for n in fixed.graph if n.op_type == "Gather" and n.inputs[0] is table)
    constant = operators.initializer(fixed.graph, "frozen", table.const_value.numpy()[None, :7])
    ir.convenience.replace_all_uses_with(gather.outputs[0], constant)
    with pytest.raises(ModelError, match=r"does not run on 3 rows of 11 tokens.*dynamic axes"):
        shapes.measure(fixed, list(fixed.graph.outputs))


def test_measured_shapes_follow_the_inputs(captured) -> None:
    model = captured("distilbert", "sequence-classification").model
    names = {v.name: v for n in model.graph for v in n.outputs}
    value = names["transformer.layer.0.attention.key_heads"]
    assert shapes.measure(model, [value]) == {value.name: ("batch", 4, 8, "sequence")}


def test_the_captured_file_runs_in_plain_onnxruntime(captured, tmp_path) -> None:
    result = captured("roberta", "sequence-classification")
    operators.save(result.model, tmp_path / "model.onnx")
    session = ort.InferenceSession(str(tmp_path / "model.onnx"))
    assert [i.shape for i in session.get_inputs()] == [["batch", "sequence"]] * 2


def test_a_captured_graph_can_be_captured_again(captured, checkpoint, tmp_path) -> None:
    first = captured("bert", "sequence-classification")
    operators.save(first.model, tmp_path / "model.onnx")
    (tmp_path / "config.json").write_bytes((checkpoint("bert") / "config.json").read_bytes())
    again = capture.capture(resolve(tmp_path / "model.onnx"), "sequence-classification", batches())
    assert [n.name for n in again.model.graph] == [n.name for n in first.model.graph]
    assert not duplicates(again.model.graph)


def test_a_graph_without_any_names_still_has_sites(captured, tmp_path) -> None:
    """All node names removed, as some tools do: the parts are recognized by structure."""
    operators.save(captured("bert", "sequence-classification").model, tmp_path / "model.onnx")
    bare = ir.load(tmp_path / "model.onnx")
    for index, node in enumerate(bare.graph):
        node.name = None
        for value in node.outputs:
            value.name = value.name if value.is_graph_output() else f"v{index}"
    operators.save(bare, tmp_path / "bare.onnx")
    result = capture.capture(resolve(tmp_path / "bare.onnx"), "sequence-classification", batches())
    placed = sites.find_sites(result.model.graph, result.family)
    assert all(site.node for site in placed)
    assert Counter(s.role for s in placed)["embedding.weight"] == 1


def test_half_precision_weights_are_refused(golden, captured, tmp_path) -> None:
    operators.save(captured("bert", "sequence-classification").model, tmp_path / "model.onnx")
    half = ir.load(tmp_path / "model.onnx")
    weight = half.graph.initializers["classifier.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy().astype(np.float16), name=weight.name)
    with golden.raises(ModelError):
        lowering.prepare_(half)


@pytest.mark.parametrize("content", [b"this is no model", b""])
def test_files_that_are_not_onnx(golden, tmp_path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with golden.raises(ModelError):
        capture.capture(resolve(tmp_path / "model.onnx"), "sequence-classification", batches())


def test_a_truncated_onnx_file(captured, tmp_path) -> None:
    operators.save(captured("bert", "sequence-classification").model, tmp_path / "model.onnx")
    whole = (tmp_path / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="the file is not a complete ONNX model"):
        capture.capture(resolve(tmp_path / "model.onnx"), "sequence-classification", batches())


def test_an_onnx_file_without_an_encoder(golden, tmp_path) -> None:
    x = ir.Value(
        name="input_ids", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["b", "s"])
    )
    node = ir.node("Cast", [x], {"to": ir.DataType.FLOAT})
    node.outputs[0].name = "logits"
    node.outputs[0].type, node.outputs[0].shape = (
        ir.TensorType(ir.DataType.FLOAT),
        ir.Shape(["b", "s"]),
    )
    graph = ir.Graph([x], [node.outputs[0]], nodes=[node], opset_imports={"": 18}, name="g")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx")
    with golden.raises(ModelError):
        capture.capture(resolve(tmp_path / "model.onnx"), "sequence-classification", batches())


def test_a_quantized_onnx_file_is_refused(captured, tmp_path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    operators.save(captured("bert", "sequence-classification").model, tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"the model is quantized already \(got .*MatMulInteger"):
        capture.capture(resolve(tmp_path / "model.onnx"), "sequence-classification", batches())


def test_pickle_weights_are_refused_unless_allowed(golden, checkpoint, tmp_path) -> None:
    import shutil

    import torch
    from safetensors.torch import load_file

    folder = shutil.copytree(checkpoint("bert"), tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with golden.raises(ModelError):
        capture.capture(resolve(folder), "sequence-classification", batches())
    allowed = capture.capture(
        resolve(folder), "sequence-classification", batches(), allow_pickle=True
    )
    assert allowed.parity.largest_difference <= RTOL
    assert load_torch(checkpoint("bert"), "sequence-classification", allow_pickle=True)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="the checkpoint has no weights"):
        capture.capture(resolve(folder), "sequence-classification", batches())


def test_remote_code_is_refused(golden, checkpoint, tmp_path) -> None:
    import shutil

    folder = shutil.copytree(checkpoint("bert"), tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "auto_map": {"AutoModel": "modeling.MyModel"}})
    )
    with golden.raises(ModelError):
        capture.capture(resolve(folder), "sequence-classification", batches())


@pytest.mark.parametrize("model_type", ["robertson", "gemma4_text", "modernbert-decoder"])
def test_another_model_type_is_refused_with_all_that_are_supported(
    golden, checkpoint, tmp_path, model_type: str
) -> None:
    import shutil

    folder = shutil.copytree(checkpoint("bert"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    with golden.raises(ModelError):
        capture.capture(resolve(folder), "sequence-classification", batches())


def test_a_checkpoint_without_the_head_is_refused(golden, checkpoint) -> None:
    with golden.raises(ModelError):
        capture.capture(
            resolve(checkpoint("bert", "question-answering")), "sequence-classification", batches()
        )


def test_nan_never_passes_for_parity(captured) -> None:
    model = captured("bert", "sequence-classification").model
    feeds = [parity.only(b, model) for b in batches()]
    broken = [[np.full((len(f["input_ids"]), 2), np.nan, dtype=np.float32)] for f in feeds]
    with pytest.raises(ParityError):
        parity.compare(model, feeds, broken, "PyTorch")


def test_a_digest_is_of_content_not_of_names(checkpoint, tmp_path) -> None:
    import shutil

    folder = shutil.copytree(checkpoint("bert"), tmp_path / "copy")
    assert resolve(folder).digest == resolve(checkpoint("bert")).digest
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert resolve(folder).digest != resolve(checkpoint("bert")).digest


def test_weights_beside_an_onnx_file_are_part_of_its_digest(captured, tmp_path) -> None:
    model = captured("bert", "sequence-classification").model
    ir.save(model, tmp_path / "model.onnx", external_data="weights.bin")
    before = resolve(tmp_path / "model.onnx").digest
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert resolve(tmp_path / "model.onnx").digest != before
