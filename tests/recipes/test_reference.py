"""The reference workflow for SQuAD, as its recipe is shipped, on a tiny model: what is in the graph it writes, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from octobert.config import loading
from octobert.pipeline import runner
from octobert.quantization import tables
from tests.support.checkpoints import WORDS, reduces

RECIPE = Path(__file__).parents[2] / "recipes" / "squad-reference.yaml"
SMALL = ("task.squad.max_length=40", "task.squad.doc_stride=8", "task.squad.max_query_length=8", "measure=false")


def squad_file(path: Path, paragraphs: int, start: int) -> Path:
    """An official file whose answers are single words."""
    found = []
    for number in range(start, start + paragraphs):
        context = " ".join(WORDS[(number * 5 + i * 3) % len(WORDS)] for i in range(12 + number % 30)) + f" x{number}"
        answer = context.split()[number % 10]
        qas = [
            {
                "id": f"{number}",
                "question": f"{answer} of x{number}?",
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
        ]
        found.append({"context": context, "qas": qas})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": found}]}))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory, checkpoint) -> Path:
    """The package of the reference recipe."""
    folder = tmp_path_factory.mktemp("reference")
    squad_file(folder / "train-v1.1.json", 30, 0)
    squad_file(folder / "dev-v1.1.json", 10, 100)
    changes = [
        f"model={checkpoint('bert', 'question-answering')}",
        f"data.source={folder}",
        "data.calibrate.samples=20",
        *SMALL,
    ]
    runner.run(loading.load(RECIPE, changes), folder / "out")
    return folder / "out" / "ort-cpu"


def test_the_graph_has_the_form_that_tensorrt_and_migraphx_read(made: Path) -> None:
    graph = onnx.load(made / "onnx" / "model_quantized.onnx").graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    producer = {name: node for node in graph.node for name in node.output}
    quantizes = [n for n in graph.node if n.op_type == "QuantizeLinear"]
    assert quantizes
    for node in quantizes:
        zero = constants[node.input[2]]
        assert zero.dtype == np.int8
        assert not zero.any()
    products = [n for n in graph.node if n.op_type == "MatMul"]
    # Two layers of six linear layers and two attention products, and the head.
    assert len(products) == 2 * 8 + 1
    for node in products:
        assert [producer[name].op_type for name in node.input] == ["DequantizeLinear"] * 2
    weights = [n for n in quantizes if n.input[0] in constants]
    assert len(weights) == 13
    for node in weights:
        array, scale = constants[node.input[0]], constants[node.input[1]]
        assert array.dtype == np.float32
        assert next(a.i for a in node.attribute if a.name == "axis") == 1
        assert scale.shape == (array.shape[1],)
        # What the pair stands for is what is stored.
        np.testing.assert_array_equal(np.clip(np.rint(array / scale), -127, 127) * scale, array)
    readers = {name: node for node in graph.node for name in node.input}
    for node in graph.node:
        if node.op_type == "Add":
            feeds_norm = readers[node.output[0]].op_type == "LayerNormalization" and "embeddings" not in node.name
            inputs = [producer[name].op_type if name in producer else "" for name in node.input]
            assert (inputs == ["DequantizeLinear"] * 2) == feeds_norm, node.name
    for output in graph.output:
        assert producer[output.name].op_type != "DequantizeLinear"


def test_it_runs_and_follows_the_float_model(made: Path) -> None:
    ids = np.random.default_rng(0).integers(4, 90, (2, 30))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    ours, theirs = (
        ort.InferenceSession(made / "onnx" / name).run(None, feeds) for name in ("model_quantized.onnx", "model.onnx")
    )
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    written = ort.InferenceSession(made / "onnx" / "model_quantized.onnx", plain).run(None, feeds)
    for a, b, c in zip(ours, theirs, written, strict=True):
        assert np.isfinite(a).all()
        # Random weights are wide; the point is that it is the same function. 7-bit weights have steps twice as wide: in a
        # session that computes what is written, the worse output has 0.9803 with 8 bits, and 0.9729 with 7.
        assert np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1] > (0.97 if reduces() else 0.98)
        # Where products saturate this is 0.96; here not one was rounded otherwise.
        assert np.corrcoef(a.reshape(-1), c.reshape(-1))[0, 1] > 0.999


def test_its_ranges_are_a_calibration_table(made: Path, tmp_path: Path) -> None:
    from octobert.inference.predictor import read_manifest

    intervals = read_manifest(made).ranges.intervals
    tables.write(intervals, tmp_path)
    found = tables.read(tmp_path / tables.FLATBUFFERS)
    assert {name: one.bound for name, one in found.items()} == {n: float(np.float32(i.bound)) for n, i in intervals.items()}


def test_nothing_measured_is_said(made: Path) -> None:
    from octobert.core.results import Report
    from octobert.report import terminal

    report = Report.model_validate_json((made.parent / "report.json").read_text())
    assert report.scores == {}
    assert report.latencies == ()
    rendered = terminal.render(report)
    assert "Nothing was measured" in str(rendered.renderables[0])
    assert "Quality" not in (made.parent / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "place", "value"),
    [
        ("seed=3", ("seed",), 3),
        ("benchmark.batch=[1, 4]", ("benchmark", "batch"), (1, 4)),
        ("calibrate.percentile.keep=99.9", ("calibrate", "options"), {"keep": 99.9}),
        ("task=squad_v2", ("task", "name"), "squad-v2"),
        ("quantize.static.float_parts=float16", ("quantize", "options", "float_parts"), "float16"),
    ],
)
def test_a_part_of_a_recipe_is_changed(change: str, place: tuple[str, ...], value: object) -> None:
    found = loading.load(RECIPE, [change])
    for name in place:
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed", "a change is a path, an equals sign and a value"),
        ("sed=3", 'unknown key; did you mean "seed"'),
        ("targets.first=ort-cpu", "the recipe has no part of that name in it"),
        ("seed=[", "the value is not YAML"),
        ("task.squad.doc_stride=400", "doc_stride must be less than the 317 tokens of context in a window"),
    ],
)
def test_a_change_that_cannot_be(change: str, message: str) -> None:
    from octobert.core.errors import RecipeError

    with pytest.raises(RecipeError, match=message):
        loading.load(RECIPE, [change])
