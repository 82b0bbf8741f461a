"""A whole search with the tiny classifier: what is published, and that it comes to the same choice again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import octobert
from octobert import targets
from octobert.config import loading
from octobert.core.errors import OctobertError, RecipeError
from octobert.core.limits import Limit
from octobert.core.results import Report
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.pipeline.choosing import winner
from octobert.report import judged, summary
from tests.support.columns import columns
from tests.support.runs import FAST
from tests.support.selections import final_run, found, selection


@pytest.mark.slow
def test_what_a_search_publishes(finished, out: Path, monkeypatch) -> None:
    recipe = loading.parse(
        {
            "model": finished[0].model,
            "task": "text-classification",
            "data": {
                "source": finished[0].data.source,
                "calibrate": {"samples": 24},
                "tune": {"samples": 40},
            },
            "quantize": "dynamic",
            "transforms": [],
            "targets": ["ort-cpu"],
            "choose": {"limits": {"max_drop": 1}, "tune": False, "minutes": 0.01},
            "quick": True,
            "benchmark": FAST,
            "profile": False,
            "baselines": ["ort-f32"],
        }
    )
    report = runner.run(recipe, out, executor=inline.run)
    assert report.choice is not None
    assert report.choice.met
    tried = sorted(
        each.number for each in report.choice.found if each.state != "not tried" and each.number
    )
    assert tried == sorted(set(tried)), "each was tried at a time of its own"
    assert report.choice.best.number in tried
    stored = Report.model_validate_json((out / "report.json").read_text(encoding="utf-8"))
    assert stored.choice == report.choice
    # The package says why it was chosen, and its recipe can be run from anywhere.
    assert octobert.manifest(out / "best").chosen == report.choice.sentence
    assert octobert.packages(out) == [out / "best"]
    plain = loading.load(out / "best.yaml")
    assert (plain.choose, plain.targets) == (None, (report.choice.best.variant.target,))
    assert Path(plain.model).is_absolute()
    # The best so far was at hand all the time.
    assert loading.load(out / ".octobert" / "best.yaml").targets == plain.targets
    # What ran once is found again, and the recipe of the search is kept as it was written.
    assert loading.parse(report.choice.recipe) == loading.parse(loading.as_written(recipe))
    before = {path.name for path in (out / ".octobert" / "store").iterdir()}
    published = {path: path.read_bytes() for path in (out / "best").rglob("*") if path.is_file()}
    # The choice is stored too: a run that was killed in its last part does not choose again, on another clock.
    monkeypatch.setattr(
        winner.choose, "choose", lambda *_: pytest.fail("the choice was made before")
    )
    shutil.rmtree(out / "best")
    again = runner.run(recipe, out, executor=inline.run)
    assert again.choice == report.choice
    assert {path.name for path in (out / ".octobert" / "store").iterdir()} - before == set()
    assert {
        path: path.read_bytes() for path in (out / "best").rglob("*") if path.is_file()
    } == published
    # Another time limit goes on from what was found.
    monkeypatch.setattr(winner.choose, "choose", lambda *_: (_ for _ in ()).throw(InterruptedError))
    longer = recipe.model_copy(
        update={"choose": recipe.choose.model_copy(update={"minutes": 0.02})}
    )
    with pytest.raises(OctobertError):
        runner.run(longer, out, executor=inline.run)


@pytest.mark.slow
def test_a_target_that_cannot_run_here_does_not_vanish_from_a_search(finished, out: Path) -> None:
    missing = targets.load("openvino-ep").probe().missing
    if missing is None:
        pytest.skip("this build of onnxruntime has OpenVINO")
    recipe = loading.parse(
        {
            "model": finished[0].model,
            "task": "text-classification",
            "data": {"source": finished[0].data.source, "calibrate": {"samples": 24}},
            "transforms": [],
            "corrections": [],
            "targets": ["ort-cpu", "openvino-ep"],
            "search": {"space": {"calibrate": ["minmax"]}, "sampler": "exhaustive"},
            "quick": True,
            "benchmark": FAST,
            "profile": False,
            "baselines": ["ort-f32"],
        }
    )
    report = runner.run(recipe, out, executor=inline.run)
    assert columns(report).absent["openvino-ep"] == missing
    assert f"openvino-ep was not measured: {missing}." in summary.limitations(report)


def test_figures_are_checked_before_anything_runs(golden, finished, out: Path) -> None:
    recipe = loading.parse(
        {
            "model": finished[0].model,
            "task": "text-classification",
            "data": finished[0].data.source,
            "choose": {"limits": [{"of": "throughputs", "at_least": 2}]},
        }
    )
    with golden.raises(RecipeError):
        runner.run(recipe, out, executor=inline.run)
    assert not (out / "best").exists()


def test_all_that_limits_say_is_checked_again_but_the_drop_of_a_float_model() -> None:
    """Its drop is zero by definition; a smallest value in the same limit is not."""
    limits = (Limit(max_drop=0.01, at_least=0.9), Limit(of="size", at_most=9))
    floating = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "chosen")
    for best, count in ((floating, 2), (selection().best, 3)):
        chosen = (best, floating) if best is floating else ()
        run = final_run(choice=selection(*chosen, limits=limits))
        assert len(judged.checks_of(run, best.variant.target)) == count
