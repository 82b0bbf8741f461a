"""`tune` in a recipe: a step for each target that can run here, its result beside the model, and a sentence in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octobert.config.loading import parse
from octobert.core.errors import ModelError, RecipeError
from octobert.core.estimate import Estimate
from octobert.core.results import TUNED_FILE
from octobert.core.session import KEEP_FLOAT, Setting, Tuned
from octobert.inference import package_files
from octobert.pipeline import artifacts
from octobert.pipeline.planner import steps_of
from octobert.pipeline.stages import tune
from octobert.report import summary
from tests.support.columns import with_columns
from tests.support.stages import call_of, stored


def result(ratio: float, goal: str = "latency", **setting: Any) -> Tuned:
    interval = Estimate(value=ratio, low=ratio - 0.1, high=ratio + 0.05)
    plain = {"goal": goal, "setting": Setting(**setting), "ratio": interval}
    return Tuned.model_validate({**plain, "default_ms": 3.0, "rows": 8, "tried": ()})


def recipe_of(finished: Any, **keys: Any) -> Any:
    plain = finished[0].model_dump(by_alias=True, exclude_unset=True)
    return parse({**plain, "task": plain["task"]["name"], **keys})


def test_a_step_for_each_target_that_can_run_here(finished) -> None:
    entries = {"ort-cpu": {"options": {"intra_op_num_threads": 1}}}
    recipe = recipe_of(
        finished,
        targets=["ort-cpu", "tensorrt"],
        tune=["throughput", "latency"],
        session=entries,
        quick=True,
    )
    steps = {step.name: step for step in steps_of(recipe)}
    assert [name for name in steps if name.startswith("tune/")] == ["tune/ort-cpu"]
    options = steps["tune/ort-cpu"].options
    assert (options.goals, options.quick) == (("latency", "throughput"), True)
    assert options.entries.options == {**KEEP_FLOAT, "intra_op_num_threads": 1}
    assert "tune/ort-cpu" in steps["report"].inputs.steps
    assert (
        list(steps).index("tune/ort-cpu")
        < list(steps).index("report")
        < list(steps).index("package/ort-cpu")
    )


def test_the_stage_keeps_the_default_where_nothing_was_tried(
    finished, tmp_path: Path, monkeypatch
) -> None:
    """One process with the real model; without trials the default stays."""
    monkeypatch.setattr(tune, "TRIALS", (0, 0))
    steps = {step.name: step for step in steps_of(recipe_of(finished, tune=["latency"]))}
    out = finished[1]
    made = {
        "capture": stored(out, "capture"),
        "data": stored(out, "data"),
        "export/ort-cpu": stored(out, "export", "ort-cpu"),
    }
    context = call_of(steps["tune/ort-cpu"], tmp_path / "stage", made)
    assert context.run() == {"latency": 1.0}
    (found,) = artifacts.TunedResults.model_validate_json(
        (context.work / artifacts.TUNED).read_bytes()
    ).results
    assert (found.goal, found.setting, found.tried) == ("latency", Setting(), ())
    assert found.default_ms > 0


def test_what_the_user_has_tuned_since_then_stays(tmp_path: Path) -> None:
    package_files.write_tuned(tmp_path, result(0.9, threads=1))
    package_files.write_tuned(tmp_path, result(0.8, threads=2), replace=False)
    package_files.write_tuned(tmp_path, result(0.7, goal="throughput", streams=2), replace=False)
    found = package_files.read_tuned(tmp_path, {})
    assert (found["latency"].setting.threads, found["throughput"].setting.streams) == (1, 2)
    package_files.write_tuned(tmp_path, result(0.8, threads=2))
    assert package_files.read_tuned(tmp_path, {})["latency"].setting.threads == 2
    (tmp_path / TUNED_FILE).write_text("[]")
    with pytest.raises(ModelError, match="the results of tuning cannot be used"):
        package_files.write_tuned(tmp_path, result(0.8))


def test_the_report_names_settings_and_targets_that_were_not_tuned(finished) -> None:
    report = with_columns(
        finished[2],
        {
            "recipe": {**finished[2].recipe, "tune": ["latency"]},
            "tuned": {
                "ort-cpu": (
                    result(
                        0.8, threads=2, runtime_options={"session.intra_op.allow_spinning": False}
                    ),
                    result(1.0, goal="throughput"),
                )
            },
            "plans": {name: finished[2].plans["ort-cpu"] for name in ("ort-cpu", "qnn")},
            "absent": {"qnn": "the package onnxruntime-qnn is not installed"},
        },
    )
    assert summary.outcomes(report)[-3:] == [
        "ort-cpu: tuned for latency: streams 1, threads 2, session.intra_op.allow_spinning False takes 0.800 [0.700, 0.850] × the default time, and is "
        "stored beside the model.",
        "ort-cpu: tuned for throughput: the default setting stays, no other of 0 is significantly faster.",
        "qnn: not tuned, because it cannot run here: the package onnxruntime-qnn is not installed.",
    ]


@pytest.mark.parametrize("goals", [["speed"], ["latency", "latency"]])
def test_goals_that_there_are_not(golden, goals: list[str]) -> None:
    with golden.raises(RecipeError):
        parse({"model": "m", "task": "mrpc", "data": "d", "tune": goals})
