"""Model files that octobert did not write: opened with their own names, types and shapes, and asked like packages."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime import quantization
from sklearn.metrics import accuracy_score, f1_score
from typer.testing import CliRunner

import octobert
from octobert import targets
from octobert.cli.main import app
from octobert.core.errors import DataError, ModelError, OctobertError, RecipeError, TargetError
from octobert.core.heads import HEADS
from octobert.core.onnx_files import TensorInfo, integers_of
from octobert.core.session import SessionOptions, Setting
from octobert.data import readers
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.evaluation import worker
from octobert.graph import operators
from octobert.graph.passes import npu
from octobert.inference import package_files
from octobert.inference.opened import open_model
from octobert.models.heads import outputs_of
from octobert.targets.runtimes import openvino as openvino_runtime
from tests.support.endless import FLOAT, constant, filling, looping
from tests.support.reports import tuned
from tests.support.runs import TARGETS, write_pairs

TASK = "text-classification"
# Sums of the same float products in another order.
SUM_ORDER = 1e-5
# Weights of 11 bits; logits of the tiny model are below 1.
HALF = 5e-3
# Where such a sum rounds to the next integer, a logit changes by some steps; its scale here is 0.014.
ROUNDED = 0.2
NEEDS_OPENVINO = pytest.mark.skipif(
    "openvino-cpu" not in TARGETS, reason="openvino is not installed"
)


class Reader(quantization.CalibrationDataReader):
    """Three batches of random ids."""

    def __init__(self) -> None:
        self._left = list(range(3))

    def get_next(self) -> dict[str, np.ndarray] | None:
        if not self._left:
            return None
        ids = np.random.default_rng(self._left.pop()).integers(5, 80, (2, 9))
        return {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }


def quantized(source: Path, path: Path, **options: Any) -> None:
    """A file as ONNX Runtime's tools write it."""
    quantization.quantize_static(source, path, Reader(), **options)


def half(source: Path, path: Path) -> None:
    """A file as ONNX Runtime's converter writes it, with its outputs in float16 too."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=False), path)


def fixed(source: Path, path: Path) -> None:
    """A file for two rows of 24 tokens."""
    model = ir.load(source)
    npu.make_static_(model, batch=2, sequence=24)
    operators.save(model, path)


def renamed(source: Path, path: Path) -> None:
    """A file with the names and types of TensorFlow's export: int32 inputs, the numbers of rows, and a third output."""
    proto = onnx.load(source)
    names = {
        "input_ids": "input_ids:0",
        "attention_mask": "input_mask:0",
        "token_type_ids": "segment_ids:0",
    }
    casts = []
    for value in proto.graph.input:
        own, value.name = value.name, names[value.name]
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
        casts.append(onnx.helper.make_node("Cast", [value.name], [own], to=onnx.TensorProto.INT64))
    for node in reversed(casts):
        proto.graph.node.insert(0, node)
    number = onnx.helper.make_tensor_value_info(
        "unique_ids_raw_output___9:0", onnx.TensorProto.INT64, ["batch"]
    )
    proto.graph.input.insert(0, number)
    proto.graph.node.append(onnx.helper.make_node("Identity", [number.name], ["unique_ids:0"]))
    proto.graph.output.insert(
        0, onnx.helper.make_tensor_value_info("unique_ids:0", onnx.TensorProto.INT64, ["batch"])
    )
    proto.graph.node.append(onnx.helper.make_node("Identity", ["logits"], ["dense_2"]))
    proto.graph.output[1].name = "dense_2"
    onnx.save(proto, path)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "dynamic.onnx": quantization.quantize_dynamic,
    "qdq.onnx": lambda source, path: quantized(
        source, path, quant_format=quantization.QuantFormat.QDQ
    ),
    "qoperator.onnx": lambda source, path: quantized(
        source, path, quant_format=quantization.QuantFormat.QOperator
    ),
    "half.onnx": half,
    "fixed.onnx": fixed,
    "renamed.onnx": renamed,
}


@pytest.fixture(scope="module")
def folder(bert, checkpoint, tmp_path_factory) -> Path:
    """Files of one model, as different tools write them, beside its config and tokenizer."""
    found = tmp_path_factory.mktemp("files")
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(checkpoint("bert") / name, found / name)
    operators.save(bert.model, found / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in MAKERS.items():
            make(found / "model.onnx", found / name)
    if "openvino-cpu" in TARGETS:
        import openvino

        openvino.save_model(
            openvino.Core().read_model(found / "model.onnx"),
            found / "model.xml",
            compress_to_fp16=False,
        )
    write_pairs(found / "data")
    return found


def plain_logits(folder: Path, path: Path, longest: int | None) -> np.ndarray:
    """What ONNX Runtime alone computes of the validation rows, one row at a time, cut to the longest."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    tokenizer, names = Tokenizer(folder, longest), [i.name for i in session.get_inputs()]
    rows = readers.read_file(folder / "data" / "validation.tsv")
    encoded = tokenizer.encode([(row["sentence1"], row["sentence2"]) for row in rows])
    return np.concatenate(
        [session.run(["logits"], {n: feeds_of([e], 0)[n] for n in names})[0] for e in encoded]
    )


@NEEDS_OPENVINO
@pytest.mark.parametrize("static_up_to", [0, 16])
def test_openvino_takes_one_row_of_any_arrays_under_any_names(
    folder: Path, static_up_to: int
) -> None:
    options = SessionOptions(threads=1, static_up_to=static_up_to, outputs={"logits": "dense_2"})
    session = targets.load("openvino-cpu").open_session(folder / "renamed.onnx", options)
    plain = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    ids = np.arange(5, 37, dtype=np.int64).reshape(1, 32)[:, ::2]
    feeds = {
        "input_ids": ids,
        "attention_mask": np.broadcast_to(np.int64(1), ids.shape),
        "token_type_ids": np.zeros_like(ids),
    }
    (expected,) = plain.run(["logits"], feeds)
    assert np.abs(session.run(feeds)["logits"] - expected).max() <= SUM_ORDER


@pytest.mark.parametrize(
    ("name", "same", "tolerance"),
    [
        ("model.onnx", "model.onnx", SUM_ORDER),
        # Ranges are those of a whole batch, so that rows alone have others.
        ("dynamic.onnx", "dynamic.onnx", None),
        ("qdq.onnx", "qdq.onnx", ROUNDED),
        ("qoperator.onnx", "qoperator.onnx", ROUNDED),
        ("half.onnx", "model.onnx", HALF),
        ("fixed.onnx", "model.onnx", SUM_ORDER),
        ("renamed.onnx", "model.onnx", SUM_ORDER),
        pytest.param("model.xml", "model.onnx", SUM_ORDER, marks=NEEDS_OPENVINO),
    ],
)
def test_files_of_all_tools_score_as_the_runtime_and_scikit_learn_say(
    folder, name, same, tolerance
) -> None:
    data = folder / "data" / "validation.tsv"
    found = octobert.evaluate(folder / name, data, task=TASK)
    assert found.comparison is None
    assert list(found.scores) == [name]
    scores = {score.metric: score.value for score in found.scores[name]}
    rows = readers.read_file(data)
    with octobert.load(folder / name, task=TASK) as model:
        encoded = model.opened.tokenizer(model.task).encode(
            [(r["sentence1"], r["sentence2"]) for r in rows]
        )
        logits = model.outputs(encoded)["logits"]
    if tolerance is not None:
        # A file of a fixed shape reads as many tokens as it takes.
        expected = plain_logits(folder, folder / same, 24 if name == "fixed.onnx" else None)
        np.testing.assert_allclose(logits, expected, atol=tolerance)
        assert tolerance != ROUNDED or np.mean(np.abs(logits - expected) <= SUM_ORDER) > 0.8
    gold, predicted = [int(row["label"]) for row in rows], logits.argmax(1)
    assert scores["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert scores["f1"] == pytest.approx(f1_score(gold, predicted, zero_division=0))


def test_a_file_beside_its_float_model(folder) -> None:
    found = octobert.evaluate(
        folder / "qdq.onnx",
        folder / "data",
        task=TASK,
        reference=folder / "renamed.onnx",
        samples=8,
    )
    assert list(found.scores) == ["qdq.onnx", "ort-f32"]
    assert found.comparison is not None
    assert (found.comparison.candidate, found.comparison.reference) == ("qdq.onnx", "ort-f32")
    assert 0 < found.comparison.output_error < 1
    timed = octobert.benchmark(
        folder / "qdq.onnx",
        reference=folder / "model.onnx",
        batch=[1],
        sequence=[8],
        repeats=3,
        threads=1,
    )
    assert {latency.candidate for latency in timed.latencies} == {"ort-f32", "qdq.onnx"}
    assert {speedup.reference for speedup in timed.speedups} == {"ort-f32"}
    sizes = {footprint.candidate: footprint.size_bytes for footprint in timed.footprints}
    assert sizes["qdq.onnx"] >= (folder / "qdq.onnx").stat().st_size
    assert timed.precisions == {"qdq.onnx": "int8 + f32"}
    assert {row["model"]: row["precision"] for row in timed.to_rows()} == {
        "qdq.onnx": "int8 + f32",
        "ort-f32": "f32",
    }


def test_only_files_with_quantized_operators_are_called_int8(folder, tmp_path) -> None:
    assert open_model(folder / "renamed.onnx").precision("f32") == "f32"
    assert open_model(folder / "dynamic.onnx").precision("f32") == "int8 + f32"
    proto = onnx.load(folder / "model.onnx")
    weights = {
        "a": np.zeros((1, 8), np.float32),
        "b": np.zeros((8, 1, 8), np.uint8),
        "c": np.zeros(8, np.float32),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    names = {"N": 8, "K": 8, "bits": 4, "block_size": 16}
    proto.graph.node.append(
        onnx.helper.make_node(
            "MatMulNBits", ["a", "b", "c"], ["d"], domain="com.microsoft", **names
        )
    )
    onnx.save(proto, tmp_path / "four.onnx")
    assert integers_of(tmp_path / "four.onnx") == "int4"


@NEEDS_OPENVINO
def test_only_irs_with_quantized_weights_are_called_int8(folder, tmp_path) -> None:
    import openvino

    assert open_model(folder / "model.xml").precision("bf16") == "bf16"
    openvino.save_model(
        openvino.Core().read_model(folder / "qdq.onnx"),
        tmp_path / "qdq.xml",
        compress_to_fp16=False,
    )
    assert openvino_runtime.integers_of(tmp_path / "qdq.xml") == "int8"


def test_a_file_is_inspected_and_checked(folder) -> None:
    found = octobert.inspect(folder / "fixed.onnx", repeats=3, threads=1)
    assert (found.batch, found.sequence, found.target) == (2, 24, "ort-cpu")
    assert found.floating is None
    (lint,) = octobert.check(folder / "qdq.onnx")
    assert (lint.target, lint.products > 0) == ("ort-cpu", True)


@pytest.fixture(params=["loops", "grows"])
def endless(folder, tmp_path, request, monkeypatch) -> tuple[Path, str]:
    """A file of a graph that has no end, or asks for 64 GiB; and what is said about it."""
    # Enough to import a runtime on a machine that does something else.
    monkeypatch.setattr(worker, "_TIMEOUT_S", 10)
    model = onnx.load(folder / "model.onnx")
    loops = request.param == "loops"
    nodes, constants = looping() if loops else filling("ConstantOfShape", 2**34)
    for node in model.graph.node:
        node.output[:] = [name.replace("logits", "own") for name in node.output]
    make, one = onnx.helper.make_node, constant("one.long", np.ones(1, np.int64))
    first = [
        make("Cast", ["attention_mask"], ["cast.mask"], to=FLOAT),
        make("ReduceMax", ["cast.mask"], ["most"], keepdims=0),
        make("Reshape", ["most", "one.long"], ["speed"]),
    ]
    model.graph.node.extend([*first, *nodes, make("Add", ["own", "extra"], ["logits"])])
    model.graph.initializer.extend([*constants, one])
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(folder / name, tmp_path / name)
    onnx.save(model, tmp_path / "model.onnx")
    said = "does not answer .got 10 s of silence" if loops else "onnxruntime cannot run the model"
    return tmp_path / "model.onnx", said


def test_a_file_without_an_end_is_one_sentence(endless, folder, tmp_path) -> None:
    path, said = endless
    uses: list[Callable[[], object]] = [
        lambda: octobert.load(path, task=TASK),
        lambda: octobert.evaluate(path, folder / "data", task=TASK),
        lambda: octobert.evaluate(
            folder / "model.onnx", folder / "data", task=TASK, reference=path
        ),
        lambda: octobert.benchmark(path),
        lambda: octobert.inspect(path),
        lambda: octobert.embed(
            path, tmp_path / "rows.parquet", tmp_path / "out.parquet", task=TASK
        ),
    ]
    # All open it in one way; one that waits is enough.
    for use in uses[: 1 if "silence" in said else None]:
        with pytest.raises(TargetError, match=said):
            use()


def test_tuned_settings_lie_beside_the_file_and_are_used(folder, tmp_path) -> None:
    for name in ("config.json", "tokenizer.json", "model.onnx"):
        shutil.copyfile(folder / name, tmp_path / name)
    setting = Setting(threads=1, tokens=64)
    result = tuned(setting)
    package_files.write_tuned(tmp_path / "model.onnx", result)
    assert (tmp_path / "model.onnx.tuned.json").is_file()
    assert octobert.load(tmp_path / "model.onnx", task=TASK).setting == setting
    assert octobert.load(folder / "model.onnx", task=TASK).setting != setting


def test_token_states_are_pooled_as_the_files_beside_the_model_say(
    captured, checkpoint, tmp_path
) -> None:
    source = checkpoint("bert", "embedding")
    for path in source.iterdir():
        if path.is_file() and path.suffix == ".json":
            shutil.copyfile(path, tmp_path / path.name)
    model = ir.from_proto(ir.to_proto(captured("bert", "embedding").model))
    operators.save(model, tmp_path / "both.onnx")
    model.graph.outputs[:] = [
        value for value in model.graph.outputs if value.name == "last_hidden_state"
    ]
    model.graph.outputs[0].name = "token_embeddings"
    operators.save(model, tmp_path / "states.onnx")
    texts = ["the of and", "it"]
    both, states = (
        octobert.load(tmp_path / name, task="embedding")(texts)
        for name in ("both.onnx", "states.onnx")
    )
    np.testing.assert_allclose(
        [a["embedding"] for a in states], [a["embedding"] for a in both], atol=SUM_ORDER
    )


def test_rows_of_a_data_set_are_answered_by_number(folder, tmp_path) -> None:
    command = [
        "predict",
        str(folder / "model.onnx"),
        "--task",
        TASK,
        "--data",
        str(folder / "data"),
        "--row",
        "3",
        "--row",
        "1",
    ]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    rows = readers.read_file(folder / "data" / "validation.tsv")
    assert [line["row"] for line in told] == [3, 1]
    assert told[0]["input"] == [rows[2]["sentence1"], rows[2]["sentence2"]]
    octobert.evaluate(
        folder / "model.onnx", folder / "data", task=TASK, predictions=tmp_path / "all.jsonl"
    )
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(lines) == len(rows)
    for one in told:
        assert lines[one["row"] - 1] == {**one, "score": pytest.approx(one["score"], abs=SUM_ORDER)}


def test_float_files_and_files_with_pairs_are_fused(folder, tmp_path) -> None:
    proto = onnx.load(folder / "model.onnx")
    del proto.metadata_props[:]
    proto.graph.input[1].name = "input_mask"
    for node in proto.graph.node:
        node.input[:] = ["input_mask" if name == "attention_mask" else name for name in node.input]
    onnx.save(proto, folder / "mask.onnx")
    quantized(folder / "model.onnx", folder / "matmul.onnx", op_types_to_quantize=["MatMul"])
    for name in ("mask.onnx", "matmul.onnx"):
        found = octobert.fuse(folder / name, tmp_path / f"fused-{name}")
        assert found.counts.get("SkipLayerNormalization", 0) >= 4, name
        proto = onnx.load(tmp_path / f"fused-{name}")
        assert {value.name for value in proto.graph.input} == {
            "input_ids",
            "attention_mask",
            "token_type_ids",
        }
    for name, message in (
        ("dynamic.onnx", "integer operators"),
        ("qoperator.onnx", "integer operators"),
        ("half.onnx", "half"),
    ):
        with pytest.raises(ModelError, match=message):
            octobert.fuse(folder / name, tmp_path / "none.onnx")
    assert not (tmp_path / "none.onnx").exists()


WRONG: dict[str, tuple[type[OctobertError], list[str], str]] = {
    "no task": (
        RecipeError,
        ["evaluate", "model.onnx", "--data", "data"],
        r"model file does not say what it is for; add --task",
    ),
    "unknown task": (
        RecipeError,
        ["evaluate", "model.onnx", "--data", "data", "--task", "mrcp"],
        r'no --task "mrcp"; did you mean',
    ),
    "another head": (
        ModelError,
        ["evaluate", "model.onnx", "--data", "data", "--task", "squad"],
        r"outputs are not those of a question-answering model \(got logits float32",
    ),
    "too long": (
        ModelError,
        [
            "evaluate",
            "fixed.onnx",
            "--data",
            "data",
            "--task",
            "{text-classification: {max_length: 32}}",
        ],
        r"the file takes fewer tokens \(got 32, expected at most 24",
    ),
    "no such row": (
        DataError,
        ["predict", "model.onnx", "--task", TASK, "--data", "data", "--row", "41"],
        r"there is no such row \(got 41, expected 1 to 40\)",
    ),
    "rows without data": (
        DataError,
        ["predict", "model.onnx", "--task", TASK, "--row", "4"],
        r"--row without --data",
    ),
    "n-best of classes": (
        RecipeError,
        ["evaluate", "model.onnx", "--task", TASK, "--data", "data", "--nbest", "n.json"],
        r"only answers to questions have n-best lists",
    ),
    "half an IR": (
        ModelError,
        ["inspect", "alone.xml"],
        r"the weights of the IR are missing; copy alone\.bin beside it",
    ),
    "another runtime's file": (
        TargetError,
        ["inspect", "alone.xml", "--target", "ort-cpu"],
        r"does not open such files",
    ),
    "an IR to check": (
        ModelError,
        ["check", "alone.xml"],
        r"an IR is not checked \(expected an \.onnx file\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked_of_a_file_is_one_sentence(folder, name: str, monkeypatch) -> None:
    kind, command, message = WRONG[name]
    monkeypatch.chdir(folder)
    (folder / "alone.xml").touch()
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, kind), done.output
    assert re.search(message, str(done.exception)), str(done.exception)


def test_packages_have_their_own_task(golden, finished) -> None:
    with golden.raises(RecipeError):
        open_model(finished[1] / "ort-cpu", task=TASK)


def test_a_mask_of_four_axes_is_refused_by_name(golden, folder, tmp_path) -> None:
    proto = onnx.load(folder / "model.onnx")
    shape = proto.graph.input[1].type.tensor_type.shape
    for _ in range(2):
        shape.dim.add().dim_value = 1
    onnx.save(proto, tmp_path / "mask.onnx")
    with golden.raises(ModelError):
        open_model(tmp_path / "mask.onnx")


def test_outputs_are_found_by_name_then_by_shape(golden) -> None:
    def ports(*named: tuple[str, tuple[int, ...]]) -> list[TensorInfo]:
        return [TensorInfo(name=name, dtype="float32", shape=shape) for name, shape in named]

    answers = HEADS["question-answering"]
    squad = ports(("unstack:1", (-1, 256)), ("unstack:0", (-1, 256)), ("unique_ids:0", (-1,)))
    assert outputs_of(answers, squad, where="m") == {
        "start_logits": "unstack:0",
        "end_logits": "unstack:1",
    }
    two = ports(("a", (-1, -1)), ("b", (-1, -1)))
    assert outputs_of(answers, two, where="m") == {"start_logits": "a", "end_logits": "b"}
    classes = HEADS["sequence-classification"]
    encoder = ports(("last_hidden_state", (-1, -1, 32)), ("pooler_output", (-1, 32)))
    with golden.raises(ModelError):
        outputs_of(classes, encoder, where="m")
    with pytest.raises(ModelError, match="not those of a sequence-classification model"):
        outputs_of(classes, ports(("x", (-1, 7))), classes=2, where="m")
    assert outputs_of(classes, [*encoder, *ports(("x", (-1, 2)))], classes=2, where="m") == {
        "logits": "x"
    }
    assert outputs_of(HEADS["embedding"], encoder, where="m") == {
        "last_hidden_state": "last_hidden_state"
    }
