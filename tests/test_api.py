"""octobert as a library: recipes in every form, progress, results as tables, and what is stored."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import octobert
from octobert.core.estimate import Estimate
from octobert.core.frozen import Tabular
from octobert.core.progress import ignore
from octobert.core.session import Setting, Tried, Tuned
from octobert.engine.telling import Teller, earlier_seconds
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from octobert.report import progress
from tests.support.columns import columns
from tests.support.runs import TARGETS
from tests.support.selections import selection

RECIPE = {"model": "m", "task": "mrpc", "data": "d"}


def test_a_recipe_is_a_file_a_mapping_or_a_recipe(tmp_path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("{model: m, task: mrpc, data: d}")
    recipe = octobert.parse_recipe(RECIPE)
    assert (
        octobert.parse_recipe(path)
        == octobert.parse_recipe(str(path))
        == octobert.load_recipe(path)
        == recipe
    )
    assert octobert.parse_recipe(recipe) == recipe
    for form in (recipe, RECIPE, path):
        assert octobert.parse_recipe(form, changes=["seed=3"]).seed == 3


@pytest.mark.parametrize(
    "function", [octobert.run, octobert.dry_run, octobert.finetune, octobert.calibrate]
)
def test_a_bad_recipe_is_refused(function, tmp_path) -> None:
    with pytest.raises(octobert.RecipeError, match='there is no task "mrcp"'):
        function({**RECIPE, "task": "mrcp"}, tmp_path)
    with pytest.raises(octobert.RecipeError, match="the recipe file does not exist"):
        function(tmp_path / "none.yaml", tmp_path)


def test_quantize_checks_keys_of_the_recipe(tmp_path) -> None:
    with pytest.raises(octobert.RecipeError, match='targts: unknown key; did you mean "targets"'):
        octobert.quantize("m", task="mrpc", data=tmp_path, out=tmp_path, targts=["ort-cpu"])


def test_a_run_tells_what_it_does(finished, tmp_path) -> None:
    recipe, out, report = finished
    events: list[octobert.ProgressEvent] = []
    again = octobert.run(recipe, shutil.copytree(out, tmp_path / "out"), progress=events.append)
    assert columns(again).scores == columns(report).scores
    note, planned = events.pop(0), events.pop(0)
    assert (note.step, note.state) == ("disk", "note")
    assert planned.state == "planned"
    assert list(planned.plan) == [event.step for event in events]
    assert set(planned.plan["export/ort-cpu"]) == {"quantize/ort-cpu"}
    assert {event.step for event in events if event.state == "reused"} >= {
        "data",
        "capture",
        "export/ort-cpu",
    }
    assert [(event.number, event.steps) for event in events] == [
        (n, len(events)) for n in range(1, len(events) + 1)
    ]
    assert [v.action for v in octobert.dry_run(recipe, out)] == ["reuse"] * len(events)


def test_stored_results_can_be_removed(finished, tmp_path) -> None:
    _, out, _ = finished
    copy = shutil.copytree(out, tmp_path / "out")
    store = copy / ".octobert" / "store"
    (store / "capture-0123456789abcdef").mkdir()
    (store / "capture-0123456789abcdef" / "model.onnx").write_bytes(b"12345")
    stored = octobert.stored(copy)
    assert stored["capture-0123456789abcdef"] == 5
    with (copy / ".octobert" / "events.jsonl").open("ab") as stream:
        stream.write(b'7\n{"event": "done", "entr')  # as a full disk leaves it
    assert octobert.clean(copy, keep_last=True) == {"capture-0123456789abcdef": 5}
    assert octobert.clean(copy) == {name: size for name, size in stored.items() if size != 5}
    assert octobert.stored(copy) == {}
    assert (copy / "ort-cpu" / "octobert.json").is_file()
    with pytest.raises(octobert.StorageError, match="not an output directory of octobert"):
        octobert.clean(tmp_path)
    with pytest.raises(octobert.StorageError, match="File name too long"):
        octobert.clean(tmp_path / ("x" * 300))


def test_packages_and_manifests(golden, finished) -> None:
    _, out, _ = finished
    assert [octobert.manifest(package).target for package in octobert.packages(out)] == sorted(
        TARGETS
    )
    assert octobert.packages(out / "ort-cpu") == [out / "ort-cpu"]
    (lint,) = octobert.check(out / "ort-cpu")
    assert (lint.target, lint.passes) == ("ort-cpu", True)
    with pytest.raises(octobert.RecipeError, match='there is no target "ort-cpuu"'):
        octobert.check(out / "ort-cpu", "ort-cpuu")
    with pytest.raises(octobert.ModelError, match="not a package"):
        octobert.load(out)
    with golden.raises(octobert.ModelError):
        octobert.load("nowhere")
    with golden.raises(octobert.DataError):
        octobert.load(out / "ort-cpu")(["hello"])
    with pytest.raises(octobert.RecipeError, match="unknown goal"):
        octobert.load(out / "ort-cpu", goal="speed")


def test_a_report_is_a_table(finished) -> None:
    _, _, report = finished
    rows = report.to_rows()
    assert {row["model"] for row in rows} == {one.candidate for one in columns(report).latencies}
    frame = report.to_dataframe()
    assert list(frame.columns)[:3] == ["model", "precision", "accuracy"]
    scored = frame.set_index("model")["accuracy"].dropna()
    assert set(scored.index) == set(columns(report).scores)
    assert f"<Report: {len(rows)} rows>" == repr(report) == str(report)
    page = report._repr_html_()
    assert all(row["model"] in page for row in rows)


def test_other_results_are_tables_too() -> None:
    tried = (
        Tried(setting=Setting(), ratio=1.0),
        Tried(setting=Setting(streams=2), ratio=None, problem="<none>"),
    )
    same = Estimate.exactly(1.0)
    tuned = Tuned(
        goal="latency", setting=Setting(), rows=8, tried=tried, ratio=same, default_ms=2.0
    )
    assert [row["streams"] for row in tuned.to_rows()] == [1, 2]
    assert "&lt;none&gt;" in tuned._repr_html_()
    assert "&lt;Tuned: 2 rows&gt;" in tuned._repr_html_()
    for kind in Tabular.__subclasses__():
        assert "to_rows" in vars(kind), kind


def test_a_table_without_rows_has_no_columns() -> None:
    class Nothing(Tabular):
        def to_rows(self) -> list:
            return []

    assert repr(Nothing()) == "<Nothing: 0 rows>"
    assert "<tbody></tbody>" in Nothing()._repr_html_()


def test_progress_outside_a_terminal_is_one_line_for_each_step(capsys) -> None:
    with octobert.ProgressBar() as progress:
        for state in ("started", "running", "finished"):
            progress(octobert.ProgressEvent("export/ort-cpu", state, "writing", 1, 2, seconds=1.25))
        progress(octobert.ProgressEvent("data", "reused"))
        progress(
            octobert.ProgressEvent("evaluate/[b]ort-f32", "finished", seconds=2, number=5, steps=19)
        )
        progress(octobert.ProgressEvent("a", "note", "[b]a sentence"))
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "export/ort-cpu 1.2 s",
        "data reused",
        "5/19 evaluate/[b]ort-f32 2.0 s",
        "! [b]a sentence",
    ]


def test_the_clock_of_a_terminal_moves_while_a_step_goes_on(monkeypatch, capsys) -> None:
    """A benchmark reaches its last round once for each shape; the clock does not stop there."""
    now = 0.0
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "100", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
    with octobert.ProgressBar() as bar:
        bar._drawn.get_time = lambda: now
        bar(
            octobert.ProgressEvent(
                "run", "planned", plan={"export/ort-cpu": (), "benchmark": ("export/ort-cpu",)}
            )
        )
        event = functools.partial(octobert.ProgressEvent, "benchmark", number=2, steps=2)
        bar(event("started", left_seconds=200.0))
        for now, done in ((5.0, 3), (65.0, 3), (66.0, 1)):
            bar(event("running", "timing 8 × 128", done, 3))
            bar._drawn.refresh()
            seen = capsys.readouterr().err
            assert f"about {int(200 - now) // 60}:{int(200 - now) % 60:02} left" in seen
            assert f"0:0{int(now) // 60}:{int(now) % 60:02}" in seen
        assert "0 of 2 steps" in seen
        assert "timing 8 × 128 1/3" in seen


def test_a_notebook_shows_progress_unless_a_callback_is_given(
    finished, monkeypatch, capsys
) -> None:
    _, out, _ = finished
    rows = out.parent / "data" / "validation.tsv"
    judged = octobert.evaluate(out / "ort-cpu", rows.parent, split="validation[:8]")
    assert {score.rows for scores in judged.scores.values() for score in scores} == {8}
    assert capsys.readouterr().err == ""
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    octobert.evaluate(out / "ort-cpu", rows, samples=8)
    assert capsys.readouterr().err.split()[0] == "evaluate"
    events: list[octobert.ProgressEvent] = []
    octobert.evaluate(out / "ort-cpu", rows, samples=8, progress=events.append)
    assert capsys.readouterr().err == ""
    assert [(e.detail, e.done, e.total) for e in events if e.done == e.total > 0] == [
        ("evaluating ort-cpu", 8, 8),
        ("evaluating ort-f32", 8, 8),
    ]


def test_the_time_left_is_that_of_an_earlier_run_and_of_steps_that_run_again(
    finished, tmp_path
) -> None:
    recipe, out, report = finished
    steps = {step.name: step for step in steps_of(recipe)}

    def estimate(folder: Path) -> Teller:
        made = Teller(ignore, folder)
        made.planned(list(steps.values()))
        return made

    seconds = {name: facts.seconds for name, facts in report.stages.items()}
    again = sum(
        seconds[name]
        for name in ("calibrate", *(n for n in seconds if n.partition("/")[2] in TARGETS))
    )
    left = estimate(out).left_from(steps["calibrate"])
    # What depends on the calibration runs again, also the report and the packages; float baselines do not.
    everything, baselines = (
        sum(earlier_seconds(out).values()),
        [name for name in seconds if name.endswith("-f32")],
    )
    assert again <= left + 0.01
    assert left <= everything - sum(seconds[name] for name in baselines) + 0.01
    known = estimate(out)
    assert known.left_from(steps["report"]) < known.left_from(steps["benchmark"])
    (tmp_path / ".octobert").mkdir()
    (tmp_path / ".octobert" / "events.jsonl").write_text(
        '{}\nnot json\n{"event": "finished", "step": "report", "seconds": 1}\n'
    )
    assert estimate(tmp_path).left_from(steps["data"]) is None


def test_a_search_tells_how_far_it_is_and_its_steps_have_no_place(finished, tmp_path) -> None:
    first, second, *_ = steps = steps_of(finished[0])
    events: list[octobert.ProgressEvent] = []
    teller = Teller(events.append, tmp_path)
    choice = selection()
    teller.started(first)
    runner.tell_search(teller, None, 0, 18, 0.0, None)
    runner.tell_search(teller, choice.best, 12, 18, 190.0, 20)
    teller.planned(steps)
    teller.started(second)
    assert [(e.step, e.state, e.number, e.best) for e in events] == [
        (first.name, "started", 0, ""),
        ("search", "searching", 0, ""),
        ("search", "searching", 0, "openvino-cpu int8"),
        ("run", "planned", 0, ""),
        (second.name, "started", 2, ""),
    ]
    assert (events[1].left_seconds, events[2].left_seconds) == (None, 1010.0)
    assert (
        events[2].detail
        == "best so far: openvino-cpu int8, 3.5 ×, drop 0.1 points (12 of 18 variants, 3:10 of 20:00)"
    )


def test_the_package_is_typed() -> None:
    assert (Path(octobert.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    "call",
    [
        lambda: octobert.run(RECIPE, None),
        lambda: octobert.run([RECIPE], "out"),
        lambda: octobert.load(3),
        lambda: octobert.load("p", threads="2"),
        lambda: octobert.evaluate("p", [{"text": "a"}]),
        lambda: octobert.evaluate("p", "d", samples=0),
        lambda: octobert.benchmark([]),
        lambda: octobert.benchmark("p", batch=[1, True]),
        lambda: octobert.tune("p", "d", goals="fast"),
        lambda: octobert.tune("p", "d", trials=0),
        lambda: octobert.quantize(None, task="mrpc", data="d", out="o"),
        lambda: octobert.quantize("m", task="mrpc", data=[1], out="o"),
        lambda: octobert.run(RECIPE, "out", progress=True),
        lambda: octobert.clean(3),
    ],
)
def test_a_wrong_type_is_a_sentence_that_names_the_argument(golden, call) -> None:
    with golden.raises(octobert.RecipeError):
        call()


def test_everything_has_a_short_repr(finished) -> None:
    recipe, out, report = finished
    with octobert.load(out / "ort-cpu") as model:
        shown = [repr(each) for each in (recipe, report, octobert.manifest(out / "ort-cpu"), model)]
    assert all(text.startswith("<") and len(text) < 200 for text in shown), shown
    assert octobert.load_recipe(RECIPE, changes="seed=3").seed == 3
