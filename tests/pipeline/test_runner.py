"""Whole runs on tiny models: results, reuse, resume after kill -9, locks, full disks, and what a package can do."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import octobert
from octobert import targets
from octobert.cli.run import print_report
from octobert.config.loading import parse
from octobert.core.errors import (
    BusyError,
    DataError,
    ModelError,
    OctobertError,
    StorageError,
    TargetError,
)
from octobert.core.lock import locked
from octobert.core.progress import ProgressEvent
from octobert.core.results import Report
from octobert.data import readers
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.engine import events
from octobert.engine.contract import Request, Response
from octobert.engine.executors import inline, local
from octobert.engine.executors.inline import as_sentence
from octobert.engine.store import Store
from octobert.graph import operators
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from tests.support.cli import PROGRAM
from tests.support.cli import octobert as run_command
from tests.support.columns import columns
from tests.support.hostile import hostile_folder, imported_from
from tests.support.pages import markup_of
from tests.support.runs import FAST, TARGETS, pairs_of_sentences, warmed

# Those whose runtimes are not PyTorch; their plans know whether this CPU's 8-bit products saturate.
WITHOUT_TORCH = [name for name in TARGETS if targets.load(name).capabilities.runtime != "torch"]


def recipe_for(checkpoint_folder: Path | str, source: Path | str, **changes: object):
    plain = {
        "model": str(checkpoint_folder),
        "task": "text-classification",
        "data": {"source": str(source), "calibrate": {"from": "train", "samples": 24}},
        "targets": TARGETS,
        "benchmark": FAST,
        "profile": False,
    }
    return parse({**plain, **changes})


class Seen:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.reused: list[str] = []
        self.ran: list[str] = []

    def __call__(self, event: ProgressEvent) -> None:
        if event.state in ("reused", "finished"):
            (self.reused if event.state == "reused" else self.ran).append(event.step)


def test_the_layout_of_the_output(finished) -> None:
    recipe, out, _ = finished
    for target in recipe.targets:
        names = {str(p.relative_to(out / target)) for p in (out / target).rglob("*") if p.is_file()}
        expected = {"config.json", "tokenizer.json", "tokenizer_config.json", "octobert.json"}
        expected |= {"onnx/model.onnx", "onnx/model_quantized.onnx"}
        if target.startswith("openvino"):
            expected |= {"openvino_model.xml", "openvino_model.bin"}
        assert names == expected
    assert {p.name for p in out.iterdir()} == {
        ".octobert",
        "evidence.json",
        "report.html",
        "report.json",
        *recipe.targets,
    }
    assert not list((out / ".octobert").glob("publish-*"))
    assert not list((out / ".octobert" / "store").glob("work-*"))


def test_the_report_has_everything(finished) -> None:
    recipe, out, report = finished
    assert Report.model_validate_json((out / "report.json").read_text()) == report
    names = ["torch-f32", "ort-f32", "openvino-f32", "openvino-bf16", *recipe.targets]
    present = [n for n in names if n not in columns(report).absent]
    # Float models in float32 on the CPU compute the same, and have one score.
    assert set(columns(report).scores) == set(present) - {"torch-f32", "openvino-f32"}
    assert report.reference == "ort-f32"
    assert {one.candidate for one in columns(report).latencies} == set(present)
    for one in columns(report).latencies:
        assert len(one.samples_ms) == 3
        assert all(ms > 0 for ms in one.samples_ms)
    precision = {f.candidate: f.precision for f in columns(report).footprints}
    assert precision["ort-f32"] == precision["torch-f32"] == precision["openvino-f32"] == "f32"
    assert precision.get("openvino-bf16", "bf16") == "bf16"
    for comparison in columns(report).comparisons:
        if comparison.candidate in recipe.targets:
            assert comparison.reference == "ort-f32"
            assert 0.7 <= comparison.fidelity <= 1.0
            assert len(comparison.changed) == round((1 - comparison.fidelity) * 40)
    assert report.model.parity.largest_difference <= report.model.parity.tolerance
    assert report.ranges.provenance.samples == 24
    assert report.model.source_bytes == (Path(recipe.model) / "model.safetensors").stat().st_size
    page = markup_of((out / "report.html").read_text())
    assert "<script" not in page
    assert "://" not in page


def test_running_again_reuses_everything_and_a_change_runs_only_what_depends_on_it(
    finished,
) -> None:
    recipe, out, report = finished
    seen = Seen()
    assert runner.run(recipe, out, seen, executor=inline.run) == report
    assert seen.ran == []
    verdicts = {v.step: v for v in runner.dry_run(recipe, out)}
    assert {v.action for v in verdicts.values()} == {"reuse"}
    changed = recipe.model_copy(
        update={"calibrate": recipe.calibrate.model_copy(update={"name": "percentile"})}
    )
    verdicts = {v.step: v for v in runner.dry_run(changed, out)}
    kept = {"data", "capture", "observe", "evaluate/ort-f32"}
    assert all(verdicts[name].action == "reuse" for name in kept)
    assert verdicts["calibrate"].reason == "not in the store; percentile"
    assert verdicts["quantize/ort-cpu"].reason.startswith("calibrate has to run first; ")


def test_a_damaged_artifact_is_made_again(finished, tmp_path) -> None:
    recipe, out, _ = finished
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    ranges = next((copy / ".octobert" / "store").glob("calibrate-*/ranges.json"))
    ranges.write_text("{}")
    for edited in ("octobert.json", "tuned.json"):
        with (copy / "ort-cpu" / edited).open("a") as stream:
            stream.write(" ")
    seen = Seen()
    edited = str(copy / "ort-cpu" / "octobert.json")
    with pytest.warns(
        octobert.PublishedFileWarning,
        match=f"^{edited} was changed after octobert wrote it, and was left",
    ):
        runner.run(recipe, copy, seen, executor=inline.run)
    # It comes out the same to the byte, so nothing after it has to run; the report tells how long it took, and is made anew.
    assert [name for name in seen.ran if not name.startswith(("report", "package"))] == [
        "calibrate"
    ]
    # So is the package; what the user did to it stays, and harmed nothing in the store.
    assert (copy / "ort-cpu" / "tuned.json").read_text() == " "
    assert (copy / "ort-cpu" / "octobert.json").read_text() == (
        out / "ort-cpu" / "octobert.json"
    ).read_text() + " "


def test_a_package_without_the_float_graph(finished, tmp_path, capsys) -> None:
    recipe, source, _ = finished
    out = warmed(
        source,
        tmp_path / "out",
        "data",
        "capture",
        "transform",
        "observe",
        "calibrate",
        "quantize",
        "export",
    )
    small = recipe.model_copy(
        update={"float_model": False, "targets": ("ort-cpu",), "measure": False}
    )
    report = runner.run(small, out, executor=inline.run)
    package = out / "ort-cpu"
    assert not (package / "onnx" / "model.onnx").exists()
    assert octobert.verify(package).added == ()
    whole, light = (
        sum(each.stat().st_size for each in folder.rglob("*.onnx"))
        for folder in (source / "ort-cpu", package)
    )
    assert light < whole
    list(print_report(report, out))
    assert "the float graph" not in capsys.readouterr().out
    list(print_report(finished[2], source))
    told = capsys.readouterr().out
    assert "MB of it the float graph (--no-float leaves it out)" in told
    assert f"octobert clean {source} removes them" in told
    rows = str(recipe.data.source)
    for command in (
        ["evaluate", str(package), "--data", rows],
        ["benchmark", str(package), "--sequence", "8", "--repeats", "3"],
    ):
        done = run_command(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (
            "There is no float model to compare with: package the model without --no-float"
            in done.stderr
        )


@pytest.mark.parametrize("target", TARGETS)
def test_a_package_predicts_what_was_measured(finished, target: str) -> None:
    recipe, out, report = finished
    rows = readers.read_file(Path(recipe.data.source) / "validation.tsv")
    model = octobert.load(out / target)
    answers = model([(r["sentence1"], r["sentence2"]) for r in rows])
    accuracy = np.mean(
        [
            a["label"] == ("different", "same")[int(r["label"])]
            for a, r in zip(answers, rows, strict=True)
        ]
    )
    measured = next(s.value for s in columns(report).scores[target] if s.metric == "accuracy")
    assert accuracy == pytest.approx(measured)
    assert all(0.5 <= a["score"] <= 1.0 for a in answers)
    assert model([]) == []


@pytest.mark.parametrize("target", WITHOUT_TORCH)
def test_the_onnx_file_gives_the_same_logits_in_both_runtimes(finished, target: str) -> None:
    import openvino

    _, out, _ = finished
    path = out / target / "onnx" / "model_quantized.onnx"
    encoder = Tokenizer(out / target)
    rows = encoder.encode([("the of and", "a to in"), ("you is that it he was for on", "are")])
    feeds = feeds_of(rows, encoder.pad_id)
    session = ort.InferenceSession(str(path))
    feeds = {i.name: feeds[i.name] for i in session.get_inputs()}
    one = session.run(None, feeds)[0]
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(str(path)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    two = compiled(feeds)[0]
    # A float32 sum that lands on the other side of a rounding step moves one 8-bit code: a percent of the logits, at most.
    np.testing.assert_allclose(one, two, atol=0.02 * np.abs(one).max())


def test_predicting_imports_neither_torch_nor_transformers(finished) -> None:
    _, out, _ = finished
    code = f"""
import sys
for name in ("torch", "transformers", "datasets", "onnx", "sklearn", "onnxscript"):
    sys.modules[name] = None
import octobert
for target in {WITHOUT_TORCH!r}:
    print(octobert.load({str(out)!r} + "/" + target)([("the of", "and a")])[0]["label"])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert set(result.stdout.split()) <= {"different", "same"}


def test_a_single_file_of_texts_and_a_users_onnx_file(captured, checkpoint, tmp_path) -> None:
    """No checkpoint, no gold, one file: held apart by itself, judged by fidelity, and PyTorch is absent with a reason."""
    folder = shutil.copytree(checkpoint("bert", "embedding"), tmp_path / "embedder")
    operators.save(captured("bert", "embedding").model, folder / "model.onnx")
    (folder / "model.safetensors").unlink()
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"body": f"the of {i} and a{i}"}) + "\n" for i in range(40))
    )
    recipe = recipe_for(
        folder / "model.onnx", tmp_path / "texts.jsonl", task={"embedding": {"text": "body"}}, targets=["ort-cpu"],
        baselines=["torch-f32"],
    )  # fmt: skip
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert report.data.calibration_rows == 20
    assert report.data.evaluation_rows == 20
    assert "came as ONNX" in columns(report).absent["torch-f32"]
    comparison = next(c for c in columns(report).comparisons if c.candidate == "ort-cpu")
    assert comparison.metric is None
    assert comparison.fidelity_name == "mean cosine"
    assert 0.9 < comparison.fidelity < 1.0
    assert report.model.parity.against == "the original ONNX file"
    assert len(octobert.load(tmp_path / "out" / "ort-cpu")("the of")[0]["embedding"]) == 32


def test_leakage_is_refused_unless_allowed_and_then_reported(checkpoint, pairs, out) -> None:
    same = {"train": str(pairs / "validation.tsv"), "validation": str(pairs / "validation.tsv")}
    recipe = recipe_for(
        checkpoint("bert"), pairs, data={**same, "calibrate": {"from": "train", "samples": 10}}
    )
    with pytest.raises(DataError, match="10 of 10 calibration rows are also evaluated"):
        runner.run(recipe, out, executor=inline.run)
    assert not list((out / ".octobert" / "store").glob("*data*"))
    events = [
        json.loads(line) for line in (out / ".octobert" / "events.jsonl").read_text().splitlines()
    ]
    assert events[-1]["event"] == "failure"
    assert "refuse_leakage" in events[-1]["traceback"]
    allowed = recipe_for(
        checkpoint("bert"), pairs, targets=["ort-cpu"], measure=False,
        data={**same, "calibrate": {"from": "train", "samples": 10}, "allow_leakage": True},
    )  # fmt: skip
    runner.run(allowed, out, executor=inline.run)
    assert "10 calibration rows are also evaluation rows" in (out / "report.html").read_text()


def test_rows_that_are_also_evaluated_can_be_left_out(checkpoint, pairs, out) -> None:
    text = (
        (pairs / "train.tsv").read_text()
        + "\n".join((pairs / "validation.tsv").read_text().splitlines()[1:])
        + "\n"
    )
    (pairs / "train.tsv").write_text(text)
    source = {
        "source": str(pairs),
        "calibrate": {"from": "train", "samples": 200, "drop_evaluated": True},
    }
    recipe = recipe_for(checkpoint("bert"), pairs, data=source, targets=["ort-cpu"], measure=False)
    report = runner.run(recipe, out, executor=inline.run)
    assert (report.data.dropped_rows, report.data.calibration_rows) == (40, 80)


class Enough(Exception):
    """The run came as far as a test wants it to."""


@pytest.mark.parametrize(
    ("stage", "name", "change", "refused"),
    [
        (
            "capture",
            "model/config.json",
            lambda path: path.write_text(path.read_text() + " "),
            True,
        ),
        ("capture", "model/model.safetensors", lambda path: path.unlink(), True),
        (
            "data",
            "data/train.tsv",
            lambda path: path.write_text(path.read_text() + "one\tmore\t1\n"),
            True,
        ),
        ("capture", "model/config.json", lambda path: path.write_text(path.read_text()), False),
        ("data", "data/train.tsv", lambda path: os.utime(path), False),
    ],
)
def test_inputs_that_change_while_they_are_read(
    checkpoint, pairs, tmp_path, stage, name, change, refused
) -> None:
    """Otherwise what was made from the new files would be stored under the key of the old ones."""
    model, out = shutil.copytree(checkpoint("bert"), tmp_path / "model"), tmp_path / "out"

    def changing(request: Request, work: Path, *_: object) -> Response:
        if request.stage == "transform":
            raise Enough
        if request.stage == stage:
            change(tmp_path / name)
        return Response(summary={}, seconds=0.0, peak_memory_bytes=0)

    with pytest.raises(StorageError if refused else Enough) as raised:
        runner.run(recipe_for(model, pairs, targets=["ort-cpu"]), out, executor=changing)
    assert (
        not refused
        or "the files were changed while octobert read them; run the same command again"
        in str(raised.value)
    )
    assert bool(list((out / ".octobert" / "store").glob(f"{stage}-*"))) is not refused


def test_a_line_that_was_cut_short_does_not_spoil_the_next_one(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    log = events.Events(path)
    log.write("one")
    with path.open("ab") as stream:
        stream.write(b'{"event": "tw')
    log.write("three")
    with path.open("ab") as stream:
        stream.write(b'\xff\xfe\n[]\n{"event": 4}\n' + b"[" * 100_000 + b"\n")
    log.write("four")
    assert [event["event"] for event in events.read(path)] == ["one", "three", "four"]
    assert events.read(tmp_path / "none") == []


@pytest.mark.slow
def test_two_runs_at_the_same_time(checkpoint, pairs, tmp_path) -> None:
    recipe = recipe_for(checkpoint("bert"), pairs)
    with locked(tmp_path / "out" / ".octobert"):
        code = "from tests.pipeline.test_runner import *; runner.run(recipe_for(*sys.argv[1:3]), Path(sys.argv[3]))"
        arguments = [str(checkpoint("bert")), str(pairs), str(tmp_path / "out")]
        with pytest.raises(
            BusyError, match=f"another octobert run is at work.*process {os.getpid()}"
        ):
            runner.run(recipe, tmp_path / "out", executor=inline.run)
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True
        )
        assert "BusyError" in result.stderr


def command_for(model: Path, source: Path, folder: Path, *more: str) -> list[str]:
    """`octobert run` on a recipe file written into `folder`, with its output below."""
    recipe = {
        "model": str(model),
        "task": "text-classification",
        "data": {"source": str(source), "calibrate": {"from": "train", "samples": 2000}},
        "measure": False,
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    out = str(folder / "out")
    return [*PROGRAM, "run", str(folder / "recipe.yaml"), "--out", out, *more]


@pytest.mark.slow
def test_kill_in_the_middle_of_calibration_then_the_same_command(checkpoint, out, tmp_path) -> None:
    """Nothing is imported from the folder where the command is given, though Python files lie there, and no file stays."""
    hostile, temporary = hostile_folder(tmp_path / "hostile"), tmp_path / "temporary"
    temporary.mkdir()
    source = tmp_path / "data"
    source.mkdir()
    for name, part in (
        ("train", pairs_of_sentences(6000)),
        ("validation", pairs_of_sentences(20, 9000)),
    ):
        lines = ["sentence1\tsentence2\tlabel"] + [f"{a}\t{b}\t{c}" for a, b, c in part]
        (source / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    command = command_for(checkpoint("bert"), source, tmp_path)
    store, deadline = out / ".octobert" / "store", time.time() + 240
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, cwd=hostile, env=environment, stderr=subprocess.DEVNULL
    ) as child:
        while not list(store.glob("work-observe-*")) and time.time() < deadline:
            time.sleep(0.005)
        assert list(store.glob("work-observe-*")), "the run never reached calibration"
        child.send_signal(signal.SIGKILL)
    assert not list(store.glob("observe-*"))
    assert imported_from(hostile) == ""
    assert not list(temporary.iterdir())
    done = run_command(*command[len(PROGRAM) :], "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranges"]["provenance"]["samples"] == 2000
    events = [
        json.loads(line) for line in (out / ".octobert" / "events.jsonl").read_text().splitlines()
    ]
    second = max(i for i, e in enumerate(events) if e["event"] == "run")
    assert [e["step"] for e in events[second:] if e["event"] == "reused"] == [
        "data",
        "capture",
        "transform",
    ]
    assert not list(store.glob("work-*"))


@pytest.mark.slow
def test_a_disk_that_fills_up(checkpoint, pairs, tmp_path) -> None:
    """A limit on the size of any file stands in for the disk: the kernel refuses the write in the same way."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    out = tmp_path / "out"
    command = command_for(checkpoint("bert"), pairs, tmp_path)
    failed = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert failed.returncode == StorageError.exit_code
    assert "the disk is full" in failed.stderr
    assert "run the same command again" in failed.stderr
    assert not list((out / ".octobert" / "store").glob("*capture*"))
    assert not (out / "ort-cpu").exists()
    assert run_command(*command[len(PROGRAM) :]).returncode == 0


def test_a_stage_that_can_write_nothing_at_all_says_so(checkpoint, pairs, tmp_path) -> None:
    step = next(
        step for step in steps_of(recipe_for(checkpoint("bert"), pairs)) if step.name == "data"
    )
    options = step.options.model_dump(mode="json", by_alias=True)
    request = Request(
        stage=step.stage,
        inputs={},
        options=options,
        scratch=tmp_path / "scratch",
        temporary=tmp_path,
    )
    (tmp_path / "work").mkdir()
    size = len(request.model_dump_json())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(StorageError, match="the disk is full"):
            local.run(request, tmp_path / "work", lambda *_: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_library_that_hides_a_full_disk(tmp_path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        told = as_sentence(RuntimeError("Can't open xml file"), "export", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(told, StorageError)
    assert as_sentence(RuntimeError("Can't open xml file"), "export", tmp_path).exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_system_says_of_which_file(tmp_path) -> None:
    error = FileNotFoundError(2, "No such file or directory", str(tmp_path / "nothing"))
    assert "No such file or directory: " in (told := str(as_sentence(error, "export", tmp_path)))
    assert "nothing" in told


def test_a_stage_that_is_killed_is_an_error_not_a_result(golden, tmp_path) -> None:
    request = Request(
        stage="capture", inputs={}, options={}, scratch=Path("nowhere"), temporary=tmp_path
    )
    with golden.raises(OctobertError):
        local.run(request, tmp_path, lambda *_: None)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "./nowhere"}, ModelError),
        ({"model": "package:no_such_package/x"}, ModelError),
        ({"data": "./nowhere"}, DataError),
        ({"task": {"text-classification": {"max_length": 65}}}, ModelError),
        ({"benchmark": {**FAST, "sequence": [65]}}, ModelError),
        ({"task": {"text-classification": {"text": "sentence"}}}, DataError),
        ({"quantize": {"static": {"disable": ["*"]}}}, OctobertError),
        (
            {"seed": 0, "task": {"text-classification": {"text": ["sentence1", "sentenc2"]}}},
            DataError,
        ),
        ({"task": "embedding"}, ModelError),
    ],
)
def test_bad_input_stops_with_one_sentence(
    golden, checkpoint, pairs, out, change: dict, error: type
) -> None:
    recipe = recipe_for(
        checkpoint("bert"), pairs, **{"targets": ["ort-cpu"], "baselines": ["ort-f32"], **change}
    )
    with golden.raises(error):
        runner.run(recipe, out, executor=inline.run)
    assert not (out / "ort-cpu").exists()
    assert not (out / "report.json").exists()


def test_a_target_that_is_not_installed(golden, checkpoint, pairs, tmp_path, monkeypatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "openvino" else real(name, *a)
    )
    recipe = recipe_for(checkpoint("bert"), pairs, targets=["openvino-cpu"])
    with golden.raises(TargetError):
        runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer(checkpoint, pairs, tmp_path) -> None:
    """transformers would make up an empty vocabulary, to which every word is unknown."""
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "mute")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="there is no tokenizer beside the model"):
        runner.run(
            recipe_for(folder, pairs, targets=["ort-cpu"]), tmp_path / "out", executor=inline.run
        )


def test_a_checkpoint_of_another_head_is_refused_at_once(
    golden, checkpoint, pairs, tmp_path
) -> None:
    recipe = recipe_for(checkpoint("bert", "question-answering"), pairs, targets=["ort-cpu"])
    with golden.raises(ModelError):
        runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert not (tmp_path / "out").exists()


def test_an_output_directory_that_is_something_else(golden, checkpoint, pairs, tmp_path) -> None:
    recipe = recipe_for(checkpoint("bert"), pairs, targets=["ort-cpu"])
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="the output directory is a file"):
        runner.run(recipe, tmp_path / "file", executor=inline.run)
    (tmp_path / "out" / "ort-cpu").mkdir(parents=True)
    (tmp_path / "out" / "ort-cpu" / "thesis.txt").write_text("mine")
    with golden.raises(StorageError):
        runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert (tmp_path / "out" / "ort-cpu" / "thesis.txt").read_text() == "mine"


def test_a_store_ignores_a_manifest_that_does_not_fit(tmp_path) -> None:
    store = Store(tmp_path)
    (tmp_path / "capture-0123456789abcdef").mkdir()
    (tmp_path / "capture-0123456789abcdef" / "artifact.json").write_text("{}")
    assert store.find("capture", "0123456789abcdef") is None
    (tmp_path / "work-capture-0123456789abcdef-1").mkdir()
    assert store.sweep() == ["work-capture-0123456789abcdef-1"]


def test_a_first_run_that_fails_leaves_nothing_behind(checkpoint, pairs, tmp_path) -> None:
    recipe = recipe_for(
        checkpoint("bert"), pairs, task={"text-classification": {"text": "x", "label": "y"}}
    )
    with pytest.raises(DataError, match='no column "x", and there is no column "y"'):
        runner.run(recipe, tmp_path / "new" / "out", executor=inline.run)
    assert list(tmp_path.iterdir()) == [pairs]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="no column"):
        runner.run(recipe, tmp_path / "mine", executor=inline.run)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_run_that_fails_keeps_what_it_has_made(checkpoint, pairs, tmp_path) -> None:
    recipe = recipe_for(
        checkpoint("bert"),
        pairs,
        quantize={"static": {"disable": ["*"]}},
        targets=["ort-cpu"],
        baselines=[],
    )
    with pytest.raises(OctobertError, match="the plan quantizes nothing"):
        runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert list((tmp_path / "out" / ".octobert" / "store").glob("data-*"))


def test_a_dry_run_reads_the_rows(checkpoint, pairs, tmp_path) -> None:
    verdicts = runner.dry_run(
        recipe_for(checkpoint("bert"), pairs), tmp_path / "out", executor=inline.run
    )
    assert verdicts[0].reason == "not in the store: 24 calibration rows, 40 evaluation rows"
    empty = shutil.copytree(pairs, tmp_path / "empty")
    with (empty / "validation.tsv").open("a") as file:
        file.write("one\t\tsame\n")
    with pytest.raises(DataError, match='row 41, column "sentence2": the text is empty'):
        runner.dry_run(recipe_for(checkpoint("bert"), empty), tmp_path / "out", executor=inline.run)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_what_a_run_refuses(checkpoint, pairs, tmp_path) -> None:
    model = shutil.copytree(checkpoint("bert"), tmp_path / "model")
    with pytest.raises(StorageError, match="the run would change the files that it reads"):
        runner.dry_run(recipe_for(model, pairs), model, executor=inline.run)
    with pytest.raises(StorageError, match="the output directory is a file"):
        runner.dry_run(recipe_for(model, pairs), pairs / "train.tsv", executor=inline.run)


def test_a_dry_run_of_training_alone_lists_its_steps(checkpoint, pairs, tmp_path) -> None:
    recipe = recipe_for(checkpoint("bert"), pairs, finetune={"epochs": 1})
    verdicts = octobert.dry_run(recipe, tmp_path / "out", finetune_only=True)
    assert [v.step for v in verdicts] == ["data", "finetune", "capture", "evaluate/torch-f32"]
    assert not (tmp_path / "out").exists()
