"""The recipe of ONNX Runtime's SQuAD examples on a tiny model: the graph of the TensorRT script has the expected form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from octobert.config import loading
from octobert.pipeline import runner
from octobert.pipeline.executors import inline
from octobert.quantization import tables
from tests.support.columns import columns
from tests.support.runs import squad_file

RECIPE = Path(__file__).parents[2] / "recipes" / "migraphx-squad.yaml"
# Correlation of 8-bit and float outputs. Random weights are wide, so this only shows that the function is the same. Without
# optimizations, the worse output has 0.980 with 8 bits, 0.978 where products would saturate, and 0.973 with 7 bits.
FLOAT_CORRELATION = 0.975
# Correlation of outputs with and without ONNX Runtime's optimizer. It is 0.96 where products saturate.
OPTIMIZED_CORRELATION = 0.999
SMALL = (
    "task.squad.max_length=40",
    "task.squad.step=8",
    "task.squad.max_query_length=8",
    "measure=false",
)


@pytest.fixture(scope="module")
def package(tmp_path_factory, checkpoint) -> Path:
    """The package of the reference recipe."""
    folder = tmp_path_factory.mktemp("reference")
    squad_file(folder / "train-v1.1.json", 30, 0)
    squad_file(folder / "dev-v1.1.json", 10, 100)
    changes = [
        f"model={checkpoint('bert', 'question-answering')}",
        f"data.source={folder}",
        "data.calibrate.samples=20",
        # The script for TensorRT also quantizes residual adds and heads.
        "quantize.static.placement=tensorrt",
        "targets=[ort-cpu]",
        *SMALL,
    ]
    runner.run(loading.load(RECIPE, changes), folder / "out", executor=inline.run)
    return folder / "out" / "ort-cpu"


def test_the_graph_has_the_form_that_tensorrt_and_migraphx_read(package: Path) -> None:
    graph = onnx.load(package / "onnx" / "model_quantized.onnx").graph
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
        # The float weight is exactly the dequantized integer.
        np.testing.assert_array_equal(np.clip(np.rint(array / scale), -127, 127) * scale, array)
    readers = {name: node for node in graph.node for name in node.input}
    for node in graph.node:
        if node.op_type == "Add":
            feeds_norm = (
                readers[node.output[0]].op_type == "LayerNormalization"
                and "embeddings" not in node.name
            )
            inputs = [producer[name].op_type if name in producer else "" for name in node.input]
            assert (inputs == ["DequantizeLinear"] * 2) == feeds_norm, node.name
    for output in graph.output:
        assert producer[output.name].op_type != "DequantizeLinear"


def test_it_runs_and_follows_the_float_model(package: Path) -> None:
    ids = np.random.default_rng(0).integers(4, 90, (2, 30))
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    ours, theirs = (
        ort.InferenceSession(package / "onnx" / name).run(None, feeds)
        for name in ("model_quantized.onnx", "model.onnx")
    )
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    written = ort.InferenceSession(package / "onnx" / "model_quantized.onnx", plain).run(
        None, feeds
    )
    for a, b, c in zip(ours, theirs, written, strict=True):
        assert np.isfinite(a).all()
        assert np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1] > FLOAT_CORRELATION
        assert np.corrcoef(a.reshape(-1), c.reshape(-1))[0, 1] > OPTIMIZED_CORRELATION


def test_its_ranges_are_a_calibration_table(package: Path, tmp_path: Path) -> None:
    from octobert.inference.package_files import read_manifest

    intervals = read_manifest(package).ranges.intervals
    tables.write(intervals, tmp_path)
    table = tables.read(tmp_path / tables.FLATBUFFERS)
    bounds = {name: float(np.float32(interval.bound)) for name, interval in intervals.items()}
    assert {name: interval.bound for name, interval in table.items()} == bounds


def test_the_report_says_that_nothing_was_measured(package: Path) -> None:
    from octobert.core.results import Report
    from octobert.report import terminal

    report = Report.model_validate_json((package.parent / "report.json").read_text())
    assert columns(report).scores == {}
    assert columns(report).latencies == ()
    rendered = terminal.render(report)
    assert "Nothing was measured" in str(rendered.renderables[0])
    assert "Quality" not in (package.parent / "report.html").read_text()


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
    part = loading.load(RECIPE, [change])
    for name in place:
        part = part[name] if isinstance(part, dict) else getattr(part, name)
    assert part == value


@pytest.mark.parametrize(
    "change", ["seed", "sed=3", "targets.first=ort-cpu", "seed=[", "task.squad.step=400"]
)
def test_a_wrong_change_is_an_error(golden, change: str) -> None:
    from octobert.core.errors import RecipeError

    with golden.raises(RecipeError):
        loading.load(RECIPE, [change])
