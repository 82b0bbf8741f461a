"""Attention in blocks computes what all pairs of tokens at once do, and holds nothing for each pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from octobert.config.loading import parse
from octobert.core import budget, environment
from octobert.core.errors import DataError, TargetError
from octobert.core.session import SHORT_METADATA, ExportOptions, SessionOptions, WrittenOpset
from octobert.engine.executors import inline
from octobert.graph import operators, parity, qdq
from octobert.graph.capture.capture import capture
from octobert.graph.passes import cpu, first_token, long_texts
from octobert.inference.opened import open_model
from octobert.models.source import resolve
from octobert.pipeline import runner
from octobert.targets import ort_cpu
from tests.support.checkpoints import FEW_HEADS, batch, make_checkpoint, pad_of, parity_feeds
from tests.support.graphs import plan_for
from tests.support.runs import brief, write_pairs

# Float sums in another order; of eight bits, relative to the largest output, where they round to the next integer.
SAME, ROUNDED = 1e-5, 0.05
# Nothing in MobileBERT divides by the size of its states: the last digit of its constants moves its answers by 3.7e-5.
NOISY = {"mobilebert": parity.TOLERANCE}
SHORT = 16
# Scores with terms of positions, or with the mask of a decoder.
LEFT_ALONE = ("deberta", "deberta-v2", "mpnet", "qwen3")
# Of windows of 4 tokens on both sides, blocks have 8 tokens. The last one of each batch is padded most.
LENGTHS = (1, 15, 16, 17, 23, 24, 25, 31, 32, 33, 48, 60)
PADDED = ([17, 9, 3], [60, 33, 32, 17, 16, 1])


def blocks(model: ir.Model, short: int = SHORT) -> tuple[ir.Model, int]:
    copy = model.clone()
    return copy, long_texts.bound_memory_(copy, short=short)


def assert_same(model: ir.Model, other: ir.Model, tolerance: float, pad_id: int = 0) -> None:
    """On texts of many lengths, alone and padded."""
    feeds = [batch([length], pad_id=pad_id, seed=length) for length in LENGTHS]
    feeds += [batch(lengths, pad_id=pad_id) for lengths in PADDED]
    named = [parity.only(each, model) for each in feeds]
    ours, theirs = (parity.onnx_outputs(each, named) for each in (model, other))
    for each, a, b in zip(feeds, ours, theirs, strict=True):
        real = each["attention_mask"].astype(bool)
        for x, y in zip(a, b, strict=True):
            rows = real if x.shape[:2] == real.shape else ...
            np.testing.assert_allclose(x[rows], y[rows], atol=tolerance * np.abs(y).max())


@pytest.mark.parametrize(("name", "head"), FEW_HEADS)
def test_outputs_stay_the_same(captured, checkpoint, name: str, head: str) -> None:
    model = captured(name, head).model
    ours, count = blocks(model)
    softmaxes = len(operators.of_type(model.graph, "Softmax"))
    assert count == (0 if name in LEFT_ALONE else softmaxes)
    assert (SHORT_METADATA in ours.metadata_props) == bool(count)
    if count:
        assert not operators.of_type(ours.graph, "Softmax")
        assert_same(ours, model, NOISY.get(name, SAME), pad_of(checkpoint(name, head)))
    else:
        assert ir.to_proto(ours) == ir.to_proto(model)


@pytest.mark.parametrize(
    ("family", "setting", "size", "short"),
    [
        ("modernbert", "local_attention", 8, 16),
        ("modernbert", "local_attention", 10, 20),
        ("modernbert", "local_attention", 30, 60),
        ("modernbert", "local_attention", 32, None),
        ("modernbert", "local_attention", 64, None),
        ("gemma3-text", "sliding_window", 16, 32),
        ("gemma3-text", "sliding_window", 28, 56),
        ("gemma3-text", "sliding_window", 32, None),
    ],
)
def test_windows_of_any_width(
    tmp_path: Path, family: str, setting: str, size: int, short: int | None
) -> None:
    """Blocks begin beyond four windows: those of EmbeddingGemma are half as wide as `SHORT`. Wider ones than `SHORT` stay."""
    source = make_checkpoint(tmp_path, family, "embedding", **{setting: size})
    model = capture(resolve(source), "embedding", parity_feeds(pad_of(source))).model
    ours, count = blocks(model)
    assert ours.metadata_props.get(SHORT_METADATA) == (None if short is None else str(short))
    assert bool(count) == (short is not None)
    assert_same(ours, model, SAME, pad_of(source))


def finished_form(got) -> ir.Model:
    """A graph as `ort-cpu` has it: 8 bits, the last layer for the first token alone, norms and products rewritten."""
    model = got.model.clone()
    qdq.write(model, plan_for(model, got.family))
    assert first_token.slice_first_token_(model)
    cpu.vectorize_norms_(model)
    cpu.rewrite_products_(model)
    return model


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_eight_bits(captured, name: str) -> None:
    model = finished_form(captured(name))
    ours, count = blocks(model)
    # The other one computes the first token only, whose scores are one row.
    assert count == 1
    assert_same(ours, model, ROUNDED)


def test_quantized_probabilities_are_left_alone(captured) -> None:
    got = captured("bert")
    model = got.model.clone()
    qdq.write(model, plan_for(model, got.family, placement="whole"))
    assert blocks(model)[1] == 0


@pytest.mark.parametrize("form", ["float", "8 bits"])
def test_nothing_is_held_for_each_pair(checkpoint, captured, tmp_path: Path, form: str) -> None:
    got = captured("modernbert")
    model, _ = blocks(got.model if form == "float" else finished_form(got))
    length = 2000
    found = shapes_of(model, length, tmp_path)
    assert max(sum(size >= length for size in shape) for shape in found) == 1
    assert max(np.prod(shape) for shape in found) < 100 * length
    whole = shapes_of(got.model, 50, tmp_path)
    assert max(sum(size >= 50 for size in shape) for shape in whole) == 2


def shapes_of(model: ir.Model, length: int, folder: Path) -> list[list[int]]:
    """The shapes of all that operators compute for a text, those in branches included."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / f"profile-{length}")
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, parity.only(batch([length]), model))
    events = json.loads(Path(session.end_profiling()).read_text())
    outputs = [e["args"].get("output_type_shape", []) for e in events if e["cat"] == "Node"]
    found = [shape for each in outputs for output in each for shape in output.values()]
    assert len(found) > 100
    return found


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A package of a tiny encoder that reads 2,048 tokens."""
    folder = tmp_path_factory.mktemp("long")
    model = make_checkpoint(
        folder / "model", "modernbert", "embedding", max_position_embeddings=2048
    )
    recipe = parse(
        {
            "model": str(model),
            "task": {"embedding": {"text": "sentence1"}},
            "data": str(write_pairs(folder / "data")),
            "targets": ["ort-cpu"],
            "token_states": True,
            "measure": False,
        }
    )
    runner.run(brief(recipe), folder / "out", executor=inline.run)
    return folder / "out" / "ort-cpu"


def test_the_package_of_a_model_for_long_texts(package: Path) -> None:
    file = open_model(package).file
    model = ir.load(file)
    assert model.metadata_props[SHORT_METADATA] == "512"
    assert {node.op_type for node in model.graph} >= {"If", "MatMulIntegerToFloat"}
    session = open_model(package).session(SessionOptions(heads=4))
    texts = batch([700, 512, 30, 1500, 513])
    together = session.run(texts)
    for row, tokens in enumerate(texts["attention_mask"].sum(axis=1)):
        alone = session.run({name: a[row : row + 1, :tokens] for name, a in texts.items()})
        for name, array in alone.items():
            kept = together[name][row : row + 1]
            np.testing.assert_array_equal(kept[:, : array.shape[1]], array)


@pytest.mark.parametrize("shape", ["tokens", "first row"])
def test_answers_without_a_row_for_each_text_are_one_sentence(
    package: Path, tmp_path: Path, shape: str
) -> None:
    """A file of unknown origin that says of itself that it computes in blocks."""
    model = ir.load(open_model(package).file)
    chain = operators.Chain(model.graph, "edited")
    output = model.graph.outputs[-1]
    if shape == "tokens":
        edited = chain.ReduceMax("answer", output, keepdims=0)
    else:
        zero, one = (operators.initializer(model.graph, f"at.{i}", [i]) for i in (0, 1))
        edited = chain.Slice("answer", output, zero, one, zero)
    model.graph.extend(chain.nodes)
    edited.name, output.name = output.name, "kept"
    model.graph.outputs[-1] = edited
    operators.save(model, tmp_path / "model.onnx")
    session = ort_cpu.TARGET.open_session(tmp_path / "model.onnx", SessionOptions())
    with pytest.raises(TargetError, match="the model does not answer each text"):
        session.run(batch([700, 30, 20]))


@pytest.mark.parametrize("stated", ["0x200", "५१२", "9999999", "-1", ""])
def test_a_length_that_is_none_is_not_read(package: Path, tmp_path: Path, stated: str) -> None:
    model = ir.load(open_model(package).file)
    model.metadata_props[SHORT_METADATA] = stated
    operators.save(model, tmp_path / "model.onnx")
    session = ort_cpu.TARGET.open_session(tmp_path / "model.onnx", SessionOptions())
    assert len(session.run(batch([700, 30]))["sentence_embedding"]) == 2


def test_short_models_stay_as_they_are(captured, tmp_path: Path) -> None:
    path = tmp_path / "model_quantized.onnx"
    operators.save(captured("modernbert").model, path)
    for long in (False, True):
        ort_cpu.export(path, tmp_path / str(long), ExportOptions(long_texts=long))
        graph = ir.load(tmp_path / str(long) / "onnx" / "model_quantized.onnx").graph
        assert bool(operators.of_type(graph, "If")) == long
    for other in ({"float_parts": "float16"}, {"opset": WrittenOpset(opset=18)}):
        assert long_texts.BLOCKS.options(ExportOptions(long_texts=True, **other)) is None


def test_less_is_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(environment, "memory", lambda: environment.Memory(1 << 33, 1 << 30))
    with pytest.raises(DataError, match="or take the target openvino-cpu, which needs less"):
        budget.AttentionMemory(12).rows_at_once(1, 8192)
    blocks = budget.AttentionMemory(12, short=512)
    assert blocks.rows_at_once(1, 8192) == 1
    with pytest.raises(DataError, match="or take a machine with more memory"):
        blocks.rows_at_once(1, 100_000)
