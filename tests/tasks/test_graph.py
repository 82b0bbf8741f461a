"""Any ONNX graph: its encoder layers in 8 bits and nothing else, outputs beside float, rows of every origin, and bad inputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import octobert
from octobert.config.loading import parse
from octobert.core.errors import DataError, ModelError, OctobertError, RecipeError
from octobert.core.results import Report
from octobert.data import formats
from octobert.data.encoded import FeedRow, feeds_of, outputs_of
from octobert.data.tokenization import NoTokenizer
from octobert.engine.executors import inline
from octobert.graph import operators
from octobert.graph.capture import capture
from octobert.pipeline import runner
from octobert.tasks import Result
from tests.support import any_graphs
from tests.support.graphs import plain_session
from tests.support.runs import made_once
from tests.support.tasks import build

SHAPES = {"tokens": 20, "words": 6, "spans": 8}
# Sums of float32 in another order.
SAME_FLOAT = 1e-5
# Random weights, all linear layers of one to two encoder layers in 8 bits: measured 0.92 to 0.9999.
LEAST_COSINE = 0.97
LAYERS = {"spans": 2, "towers": 3, "speech": 2, "branching": 2}
TARGETS = {
    "spans": ["ort-cpu", "openvino-cpu"],
    "towers": ["ort-cpu", "openvino-cpu", "tensorrt", "ort-dml"],
    "speech": ["ort-cpu", "openvino-cpu", "openvino-gpu"],
    "branching": ["ort-cpu"],
}
FIXED = ["qnn", "vitisai", "migraphx", "openvino-npu"]


def write_feeds(folder: Path, feeds: list[dict[str, np.ndarray]]) -> Path:
    folder.mkdir(parents=True)
    for index, feed in enumerate(feeds):
        np.savez(folder / f"{index:03}.npz", **feed)
    return folder


def recipe(model: Path, data: object, targets: list[str], **keys: object):
    options = keys.pop("options", {})
    return parse(
        {
            "model": str(model),
            "task": {"graph": options},
            "data": {"source": str(data), "calibrate": {"samples": 20}},
            "targets": targets,
            "benchmark": {"repeats": 3},
            "allow_code": True,
            **keys,
        }
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made("spans")` → the folder of a graph, its feeds and a run, made once."""

    def get(kind: str) -> Path:
        def make(folder: Path) -> None:
            model = any_graphs.write(kind, folder / "model.onnx")
            feeds = write_feeds(folder / "feeds", any_graphs.feeds_of(kind, 50))
            options = {"scores": ["logits"]} if kind == "spans" else {}
            asked = recipe(model, feeds, TARGETS[kind], options=options)
            runner.run(asked, folder / "out", executor=inline.run)

        return made_once(tmp_path_factory, f"any-graph-{kind}", make)

    return get


def outputs(
    path: Path, feed: dict[str, np.ndarray], *, written: bool = False
) -> dict[str, np.ndarray]:
    """What a file computes on this CPU; or what is written in it, which is what other devices compute: their 8-bit products may
    saturate here."""
    session = (
        plain_session(path)
        if written
        else ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    )
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("kind", any_graphs.KINDS)
def test_encoder_layers_are_in_8_bits_and_all_else_is_as_it_was(made, kind: str) -> None:
    root = made(kind)
    before = ir.load(root / "model.onnx")
    after = ir.load(root / "out/ort-cpu/onnx/model_quantized.onnx")
    quantized = [
        node
        for node in operators.of_type(after.graph, "MatMul")
        if operators.producer(node.inputs[1], "DequantizeLinear")
    ]
    # Q, K, V, the output projection and two of the feed-forward in each layer; products of attention stay in float here.
    assert len(quantized) == 6 * LAYERS[kind]
    assert all(node.name.startswith("encoder.") for node in quantized)
    for op_type in ("LSTM", "Conv", "Einsum", "GatherElements", "If"):
        count = len(operators.of_type(before.graph, op_type))
        assert len(operators.of_type(after.graph, op_type)) == count
    # Weights outside of the layers, bit for bit: of LSTM and convolutions, and of linear layers.
    own = {
        value.const_value.numpy().tobytes()
        for node in before.graph
        if node.op_type in ("LSTM", "Conv")
        for value in node.inputs
        if value is not None and value.const_value is not None and value.const_value.size > 8
    }
    left = {v.const_value.numpy().tobytes() for v in after.graph.initializers.values()}
    assert own <= left
    assert bool(own) == (kind in ("spans", "speech"))
    assert [v.name for v in before.graph.inputs] == [v.name for v in after.graph.inputs]
    assert [v.name for v in before.graph.outputs] == [v.name for v in after.graph.outputs]


@pytest.mark.parametrize("kind", any_graphs.KINDS)
def test_every_output_is_compared_with_float(made, kind: str) -> None:
    """Beside NumPy, on rows that nothing was fitted to."""
    root = made(kind)
    report = Report.model_validate_json((root / "out/report.json").read_text())
    pair = report.of("ort-cpu").against_float
    stored = next((root / "out/.octobert/store").glob("data-*/evaluation.json"))
    rows = json.loads(stored.read_text())["inputs"]
    assert len(rows) == report.data.evaluation_rows == 30
    task = build("graph", {})
    feeds = [feeds_of([row], 0) for row in task.encode(NoTokenizer(), rows).flat]
    ours, floats = (
        [outputs(path, feed) for feed in feeds]
        for path in (root / "out/ort-cpu/onnx/model_quantized.onnx", root / "model.onnx")
    )
    found = {one.output: one for one in pair.outputs}
    assert set(found) == set(floats[0])
    for name, one in found.items():
        a, b = (
            np.concatenate([each[name].ravel() for each in side]).astype(np.float64)
            for side in (ours, floats)
        )
        relative = np.sqrt(np.mean((a - b) ** 2)) / np.sqrt(np.mean(b**2))
        assert one.relative_error == pytest.approx(relative, rel=0.05)
        if floats[0][name].size == 1:
            # The cosine of one number is its sign.
            assert one.cosine is None
            continue
        mean = np.mean([cosine(x[name], y[name]) for x, y in zip(ours, floats, strict=True)])
        assert one.cosine == pytest.approx(mean, abs=1e-3)
        assert mean > LEAST_COSINE
    if kind == "spans":
        same = [
            x["logits"].argmax(-1) == y["logits"].argmax(-1)
            for x, y in zip(ours, floats, strict=True)
        ]
        share = np.mean(np.concatenate([each.ravel() for each in same]))
        assert found["logits"].same_largest == pytest.approx(share, abs=0.02)
        assert len(pair.changed) == pytest.approx(sum(not each.all() for each in same), abs=2)
    text = octobert.page(root / "out", out=root / "report.md", format="markdown").read_text()
    assert "### Outputs beside float" in text
    rest = {
        "spans": "2 Einsum, 1 LSTM, 3 linear layers",
        "towers": "nothing that takes time",
        "branching": "in float: 1 If.",
    }
    layers = f"{LAYERS[kind]} encoder layers were found and quantized"
    assert layers in text
    assert rest.get(kind, "1 Conv, 1 linear layer") in text


def test_rows_of_one_source_are_in_one_part(made) -> None:
    root = made("spans")
    (data,) = (root / "out/.octobert/store").glob("data-*")
    parts = [
        json.loads((data / f"{name}.json").read_text())["inputs"]
        for name in ("calibration", "evaluation")
    ]
    calibrated, evaluated = ({text for (text,) in part} for part in parts)
    assert (len(calibrated), len(evaluated)) == (20, 30)
    assert not calibrated & evaluated


@pytest.mark.parametrize("kind", any_graphs.KINDS)
def test_a_package_answers_feeds_in_every_form(made, kind: str) -> None:
    root = made(kind)
    (feed,) = any_graphs.feeds_of(kind, 1, seed=5)
    np.savez(root / "one.npz", **feed)
    nested = {name: array.tolist() for name, array in feed.items()}
    expected = outputs(root / "out/ort-cpu/onnx/model_quantized.onnx", feed)
    with octobert.load(root / "out/ort-cpu") as model:
        answers = model([feed, nested, json.dumps(nested), str(root / "one.npz")])
        streamed = list(model.stream([feed, nested]))
    missing = dict(list(feed.items())[:-1])
    with (
        octobert.load(root / "out/ort-cpu") as model,
        pytest.raises(DataError, match=r'the feed has no input "\w+" \(got'),
    ):
        model([missing])
    for answer in (*answers, *streamed):
        assert answer.keys() == expected.keys()
        for name, array in expected.items():
            assert np.shape(answer[name]) == array.shape
            np.testing.assert_allclose(answer[name], array, atol=SAME_FLOAT)


@pytest.mark.parametrize("target", ["tensorrt", "ort-dml", "openvino-cpu"])
def test_other_targets_write_it(made, target: str) -> None:
    """float16 has no room for the masks of exporters, so those of encoder layers are bounded."""
    folder = made("towers") / "out" / target
    (feed,) = any_graphs.feeds_of("towers", 1, seed=5)
    found = outputs(folder / "onnx/model_quantized.onnx", feed, written=True)
    expected = outputs(made("towers") / "model.onnx", feed)
    for name in ("query", "document"):
        assert cosine(found[name], expected[name]) > LEAST_COSINE


@pytest.mark.parametrize("target", FIXED)
def test_targets_of_one_shape_need_the_sizes_of_all_axes(made, tmp_path: Path, target: str) -> None:
    model = made("spans") / "model.onnx"
    free = recipe(model, made("spans") / "feeds", [target], measure=False)
    with pytest.raises(
        OctobertError, match=r"takes files of one shape, and an input has free axes .*axes: \{NAME"
    ):
        runner.run(free, tmp_path / "free", executor=inline.run)
    generator = np.random.default_rng(0)
    same = [any_graphs.span_feeds(generator, (20, 6)) for _ in range(40)]
    feeds = write_feeds(tmp_path / "feeds", same)
    fixed = recipe(model, feeds, [target], options={"axes": SHAPES}, measure=False)
    runner.run(fixed, tmp_path / "out", executor=inline.run)
    path = tmp_path / "out" / target / "onnx/model_quantized.onnx"
    graph = ir.load(path).graph
    assert all(value.shape.is_static() for value in (*graph.inputs, *graph.outputs))
    # Nothing is computed from a shape any more.
    assert not operators.of_type(graph, "Shape")
    found = outputs(path, same[0], written=True)["logits"]
    assert cosine(found, outputs(model, same[0])["logits"]) > LEAST_COSINE


def test_rows_of_a_function_and_a_metric_of_ones_own(tmp_path: Path) -> None:
    model = any_graphs.write("speech", tmp_path / "model.onnx")
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def rows(split):\n"
        "    generator = np.random.default_rng(len(split))\n"
        "    for _ in range(30):\n"
        "        n = int(generator.integers(5, 30))\n"
        "        yield {'phonemes': generator.integers(0, 50, (1, n)), 'speed': np.ones(1, np.float32), 'wanted': n}\n"
        "def metric(predictions, references):\n"
        "    pairs = zip(predictions, references)\n"
        "    return {'right': float(np.mean([p['durations'].size == r['wanted'] for p, r in pairs]))}\n"
    )
    asked = recipe(
        model,
        f"{tmp_path / 'mine.py'}:rows",
        ["ort-cpu"],
        options={"references": ["wanted"]},
        metric=f"{tmp_path / 'mine.py'}:metric",
    )
    report = runner.run(asked, tmp_path / "out", executor=inline.run)
    (score,) = report.of("ort-cpu").scores
    assert (score.value, report.data.evaluation_rows) == (1.0, 30)


def test_json_lines_are_rows_too(made, tmp_path: Path) -> None:
    root = made("speech")
    feeds = any_graphs.feeds_of("speech", 40)
    lines = [{name: array.tolist() for name, array in feed.items()} for feed in feeds]
    (tmp_path / "feeds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = recipe(root / "model.onnx", tmp_path / "feeds.jsonl", ["ort-cpu"], measure=False)
    runner.run(asked, tmp_path / "out", executor=inline.run)
    assert (tmp_path / "out/ort-cpu/octobert.json").is_file()


def test_a_finished_package_is_verified_evaluated_and_not_exported(made, tmp_path: Path) -> None:
    package = made("spans") / "out/ort-cpu"
    verified = octobert.verify(package)
    assert verified.batches is None
    assert verified.probe is None
    scores = octobert.evaluate(package, made("spans") / "feeds")
    assert scores.comparison.fidelity_name == "mean cosine of outputs"
    assert {one.output for one in scores.comparison.outputs} == {"logits"}
    with pytest.raises(ModelError, match="does not open models of this kind"):
        octobert.export(package, "sentence-transformers", tmp_path / "st")


def test_numbers_of_all_types_and_shapes_are_kept() -> None:
    generator = np.random.default_rng(0)
    rows = [
        {
            "a": generator.normal(size=(1, n, 3)).astype(np.float32),
            "flags": generator.random(n) > 0.5,
            "none": np.zeros((0, 4), np.float32),
            "one": np.float32(n),
        }
        for n in (2, 5, 1)
    ]
    ids = np.zeros(1, np.int64)
    kept = [FeedRow(ids, ids, truncated=False, feeds={}).kept(row) for row in rows]
    joined = {name: np.concatenate([each[name] for each in kept]) for name in kept[0]}
    for row, found in zip(rows, outputs_of(joined), strict=True):
        for name, array in row.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == np.asarray(array).dtype


# --- bad inputs, one sentence each


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.pop("words_mask"),
            r'feed 1: the feed has no input "words_mask" \(got input_ids',
        ),
        (
            lambda f: f.update(span_mask=f["span_mask"][0]),
            r'the input "span_mask" is of another type or shape \(got float32 \[\d',
        ),
        (lambda f: f.update(words_mask=f["words_mask"].astype(np.float64)), r"got float64"),
        (lambda f: f.update(input_ids=f["input_ids"].astype(np.int32)), r"got int32"),
    ],
)
def test_feeds_that_do_not_fit_the_graph(made, change, message: str) -> None:
    feeds = any_graphs.feeds_of("spans", 2)
    change(feeds[0])
    with pytest.raises(ModelError, match=message):
        capture.capture_graph(made("spans") / "model.onnx", feeds)


def test_an_axis_that_no_input_has(made) -> None:
    path, feeds = made("spans") / "model.onnx", any_graphs.feeds_of("spans", 1)
    with pytest.raises(
        ModelError,
        match=r'task.graph.axes: no input of the graph has a free axis "token" .*did you mean',
    ):
        capture.capture_graph(path, feeds, {"token": 8})


def test_a_graph_without_an_encoder_layer(tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, "n"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, "n"])
    node = onnx.helper.make_node("Softmax", ["x"], ["y"], name="only")
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [x], [y]),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="the graph has no encoder layer"):
        capture.capture_graph(tmp_path / "m.onnx", [{"x": np.ones((1, 3), np.float32)}])


def test_outputs_whose_shapes_differ_from_float() -> None:
    task = build("graph", {})
    encoded = task.encode(NoTokenizer(), [task.parse({"x": [1.0]}, where="")])
    ours, reference = (
        Result(encoded.flat[0].kept({"y": np.ones(shape, np.float32)}), encoded)
        for shape in ((1, 3), (1, 2))
    )
    with pytest.raises(
        DataError,
        match=r'row 1: the output "y" has another shape than that of the float model \(got \[1, 3\]',
    ):
        task.fidelity(ours, reference)


@pytest.mark.parametrize("cell", ["a", None, [[1], [1, 2]], {"a": 1}])
def test_cells_that_are_no_arrays(cell: object) -> None:
    task = build("graph", {})
    with pytest.raises(
        DataError, match=r'rows.jsonl, row 1, "x": the cell is not an array of numbers'
    ):
        task.inputs([{"x": cell}], where="rows.jsonl")
    with pytest.raises(DataError, match="the input is not a feed of the graph"):
        task.parse("a text", where="input 1")


def test_files_that_hold_no_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([object()], dtype=object))
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 nothing")
    for name in ("a", "b"):
        path = tmp_path / f"{name}.npz"
        with pytest.raises(DataError, match=rf"{name}.npz: the file holds no arrays of numbers"):
            formats.arrays_of(path, path.read_bytes())


def test_outputs_that_are_no_scores(made, tmp_path: Path) -> None:
    root = made("spans")
    asked = recipe(root / "model.onnx", root / "feeds", ["ort-cpu"], options={"scores": ["logit"]})
    with pytest.raises(
        RecipeError, match=r'task.graph.scores: the graph has no output "logit" .*did you mean'
    ):
        runner.run(asked, tmp_path / "out", executor=inline.run)


def test_a_package_is_timed_on_rows_alone(made) -> None:
    package = made("spans") / "out/ort-cpu"
    with pytest.raises(RecipeError, match="data: a graph is timed on rows of its own"):
        octobert.benchmark(package)
    timed = octobert.benchmark(package, data=str(made("spans") / "feeds"), repeats=3)
    assert {(one.batch, one.sequence) for one in timed.latencies} == {(1, "data")}


def test_an_encoder_alone_is_a_graph_too(captured, tmp_path: Path) -> None:
    """Its one row is neither padded nor cut, and neurons that stand out are moved as in any encoder."""
    model = ir.load(operators_file(captured("bert", "embedding").model, tmp_path))
    feeds = []
    generator = np.random.default_rng(0)
    for _ in range(40):
        ids = generator.integers(4, 90, (1, int(generator.integers(5, 30))))
        feeds.append(
            {
                v.name: ids
                if v.name == "input_ids"
                else np.ones_like(ids) * (v.name == "attention_mask")
                for v in model.graph.inputs
            }
        )
    asked = recipe(
        tmp_path / "model.onnx",
        write_feeds(tmp_path / "feeds", feeds),
        ["ort-cpu", "openvino-cpu"],
        measure=False,
    )
    runner.run(asked, tmp_path / "out", executor=inline.run)
    with octobert.load(tmp_path / "out/ort-cpu") as loaded:
        (answer,) = loaded([feeds[0]])
    assert np.shape(answer["last_hidden_state"]) == (*feeds[0]["input_ids"].shape, 32)
    expected = outputs(tmp_path / "model.onnx", feeds[0])["sentence_embedding"]
    assert cosine(np.array(answer["sentence_embedding"]), expected) > LEAST_COSINE


def operators_file(model: ir.Model, folder: Path) -> Path:
    operators.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"accuracy": {"max_drop": 0.01}}, "the task graph has no accuracy"),
        ({"opset": 17}, "the task graph has no opset"),
        ({"shape": {"sequence": 8}}, "the task graph has no shape"),
        ({"targets": ["ort-cuda"]}, "ort-cuda takes fused operators of whole encoders only"),
    ],
)
def test_what_the_task_does_not_have(made, tmp_path: Path, keys: dict, message: str) -> None:
    root = made("spans")
    asked = recipe(root / "model.onnx", root / "feeds", **({"targets": ["ort-cpu"]} | keys))
    with pytest.raises(RecipeError, match=message):
        runner.run(asked, tmp_path / "out", executor=inline.run)


def test_a_checkpoint_is_no_graph(made, checkpoint, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert", "embedding"), tmp_path / "model")
    with pytest.raises(ModelError, match="the task graph takes an ONNX file"):
        runner.run(
            recipe(folder, made("spans") / "feeds", ["ort-cpu"]),
            tmp_path / "out",
            executor=inline.run,
        )
