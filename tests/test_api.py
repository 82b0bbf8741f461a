"""octobert as a library: recipes in every form, progress, results as tables, and what is stored."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import octobert
from octobert.core.settings import Setting, Tried, Tuned
from octobert.core.tabular import Tabular
from tests.support.runs import TARGETS

RECIPE = {"model": "m", "task": "mrpc", "data": "d"}


def test_a_recipe_is_a_file_a_mapping_or_a_recipe(tmp_path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("{model: m, task: mrpc, data: d}")
    recipe = octobert.parse_recipe(RECIPE)
    assert octobert.parse_recipe(path) == octobert.parse_recipe(str(path)) == octobert.load_recipe(path) == recipe
    assert octobert.parse_recipe(recipe) is recipe
    for form in (recipe, RECIPE, path):
        assert octobert.parse_recipe(form, changes=["seed=3"]).seed == 3


@pytest.mark.parametrize("function", [octobert.run, octobert.dry_run, octobert.finetune, octobert.calibrate])
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
    assert again.scores == report.scores
    assert {event.step for event in events if event.state == "reused"} >= {"data", "capture", "export/ort-cpu"}
    assert [v.action for v in octobert.dry_run(recipe, out)] == ["reuse"] * len(events)


def test_stored_results_can_be_removed(finished, tmp_path) -> None:
    _, out, _ = finished
    copy = shutil.copytree(out, tmp_path / "out")
    store = copy / ".octobert" / "store"
    (store / "capture-0123456789abcdef").mkdir()
    (store / "capture-0123456789abcdef" / "model.onnx").write_bytes(b"12345")
    stored = octobert.stored(copy)
    assert stored["capture-0123456789abcdef"] == 5
    assert octobert.clean(copy, keep_last=True) == {"capture-0123456789abcdef": 5}
    assert octobert.clean(copy) == {name: size for name, size in stored.items() if size != 5}
    assert octobert.stored(copy) == {}
    assert (copy / "ort-cpu" / "octobert.json").is_file()
    with pytest.raises(octobert.StorageError, match="not an output directory of octobert"):
        octobert.clean(tmp_path)


def test_packages_and_manifests(finished) -> None:
    _, out, _ = finished
    assert [octobert.manifest(package).target for package in octobert.packages(out)] == sorted(TARGETS)
    assert octobert.packages(out / "ort-cpu") == [out / "ort-cpu"]
    (lint,) = octobert.check(out / "ort-cpu")
    assert (lint.target, lint.passes) == ("ort-cpu", True)
    with pytest.raises(octobert.RecipeError, match='there is no target "ort-cpuu"'):
        octobert.check(out / "ort-cpu", "ort-cpuu")
    with pytest.raises(octobert.ModelError, match="not a package"):
        octobert.load(out)
    with pytest.raises(octobert.RecipeError, match="unknown goal"):
        octobert.load(out / "ort-cpu", goal="speed")


def test_a_report_is_a_table(finished) -> None:
    _, _, report = finished
    rows = report.to_rows()
    assert {row["model"] for row in rows} == set(report.scores)
    frame = report.to_dataframe()
    assert list(frame.columns)[:3] == ["model", "precision", "accuracy"]
    assert frame["accuracy"].notna().all()
    assert f"<Report: {len(rows)} rows>" == repr(report) == str(report)
    page = report._repr_html_()
    assert page.count("<tr>") == len(rows) + 1
    assert "&lt;Report" in page


def test_other_results_are_tables_too() -> None:
    tried = (Tried(setting=Setting(), ratio=1.0), Tried(setting=Setting(streams=2), ratio=None, problem="<none>"))
    ratios = {"ratio": 1.0, "low": 1.0, "high": 1.0, "default_ms": 2.0}
    tuned = Tuned(goal="latency", setting=Setting(), rows=8, tried=tried, **ratios)
    assert [row["streams"] for row in tuned.to_rows()] == [1, 2]
    assert "&lt;none&gt;" in tuned._repr_html_()
    for kind in Tabular.__subclasses__():
        assert "to_rows" in vars(kind), kind


def test_a_table_without_rows_has_no_columns() -> None:
    class Nothing(Tabular):
        def to_rows(self) -> list:
            return []

    assert repr(Nothing()) == "<Nothing: 0 rows>"
    assert "<tbody></tbody>" in Nothing()._repr_html_()


def test_data_frames_need_pandas(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    tuned = Tuned(goal="latency", setting=Setting(), ratio=1, low=1, high=1, default_ms=1, rows=1, tried=())
    with pytest.raises(octobert.OctobertError, match="to_dataframe needs pandas; pip install pandas"):
        tuned.to_dataframe()


def test_progress_outside_a_terminal_is_one_line_for_each_step(capsys) -> None:
    with octobert.ProgressBar() as progress:
        for state in ("started", "running", "finished"):
            progress(octobert.ProgressEvent("export/ort-cpu", state, "writing", 1, 2, seconds=1.25))
        progress(octobert.ProgressEvent("data", "reused"))
    lines = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert lines == [["export/ort-cpu", "1.2", "s"], ["data", "reused"]]


def test_the_package_is_typed() -> None:
    assert (Path(octobert.__file__).parent / "py.typed").is_file()
