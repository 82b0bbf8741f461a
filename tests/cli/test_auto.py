"""`octobert auto`: options become a recipe that chooses; what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import octobert
from octobert.api.choosing import settings
from octobert.cli import _show, run
from octobert.config import loading
from octobert.config.choosing import Choose
from octobert.core.errors import RecipeError
from octobert.pipeline.choosing import space
from tests.support.cli import octobert as octobert_cli

GIVEN = ("m", "--task", "mrpc", "--data", "d", "--out", "o")
DROP = {"of": "metric", "max_drop": 0.01}


@pytest.mark.parametrize(
    ("given", "goal", "limits"),
    [
        ({}, "latency", [DROP]),
        ({"latency": "p90"}, "latency@p90", [DROP]),
        ({"latency": "20ms"}, "latency", [DROP, {"of": "latency", "at_most": 20}]),
        (
            {"latency": "7.5ms@p99.9"},
            "latency@p99.9",
            [DROP, {"of": "latency@p99.9", "at_most": 7.5}],
        ),
        (
            {"latency": "20ms@p90", "size": True},
            "size",
            [DROP, {"of": "latency@p90", "at_most": 20}],
        ),
        ({"throughput": True, "max_drop": 0}, "throughput", [{"of": "metric", "max_drop": 0}]),
        ({"memory": True, "at_least": 0.9}, "memory", [{"of": "metric", "at_least": 0.9}]),
        (
            {"relative": True, "min_speedup": 1.2},
            "latency",
            [DROP | {"relative": True}, {"of": "speedup", "at_least": 1.2}],
        ),
    ],
)
def test_limits_and_goals(given: dict[str, Any], goal: str, limits: list[dict[str, Any]]) -> None:
    made = settings(**given)
    assert (made["goal"], made["limits"], made["minutes"]) == (goal, limits, 20)
    assert Choose.model_validate(made).goal == goal


@pytest.mark.parametrize(
    ("limit", "doubted"),
    [
        ({"max_drop": 1}, "a drop of 1 accepts the loss of 100 points; 0.01 is one point"),
        (
            {"max_drop": 0.5, "relative": True},
            "the loss of 50 % of the float model's value; 0.01 is one percent",
        ),
        ({"at_least": 90}, "metric is to be at least 90; most metrics are between 0 and 1"),
        ({"of": "speedup", "at_least": 100}, "a speedup of 100 is wanted"),
        ({"max_drop": 0.02}, None),
        ({"of": "throughput", "at_least": 500}, None),
    ],
)
def test_a_limit_that_is_hardly_meant_is_questioned(
    monkeypatch, capsys, limit: dict[str, Any], doubted: str | None
) -> None:
    recipe = loading.parse({"model": "m", "task": "mrpc", "data": "d", "choose": {"limits": limit}})
    run._question_limits(recipe)
    told = capsys.readouterr().err
    assert (doubted in told) if doubted else not told
    monkeypatch.setattr(_show, "asks", lambda: True)
    monkeypatch.setattr(_show, "confirmed", lambda question: False)
    if doubted:
        with pytest.raises(RecipeError, match="the limit is not what you want"):
            run._question_limits(recipe)
    else:
        run._question_limits(recipe)


def test_the_drop_of_a_search_for_a_plan_is_questioned(capsys) -> None:
    run._question_limits(
        loading.parse({"model": "m", "task": "mrpc", "data": "d", "accuracy": {"max_drop": 1}})
    )
    assert "the loss of 100 points" in capsys.readouterr().err


@pytest.mark.parametrize(
    "limit",
    [
        {"of": "latency", "at_least": 20},
        {"of": "accuracy", "at_most": 0.9},
        {"of": "size", "min_gain": 100},
    ],
)
def test_a_limit_of_the_wrong_sign_is_refused(golden, limit: dict[str, Any]) -> None:
    with golden.raises(RecipeError):
        loading.parse({"model": "m", "task": "mrpc", "data": "d", "choose": {"limits": limit}})


def test_options_become_a_recipe_that_chooses(tmp_path: Path) -> None:
    options = (
        "--latency",
        "20ms@p90",
        "--max-drop",
        "0.02",
        "--minutes",
        "5",
        "--calibrate",
        "mse",
        "--samples",
        "32",
    )
    done = octobert_cli(
        "auto",
        *GIVEN,
        *options,
        "--set",
        "choose.ties=[size]",
        "--save-recipe",
        "saved.yaml",
        cwd=tmp_path,
    )
    # Nothing runs, because there is no such model.
    assert done.returncode == octobert.ModelError.exit_code
    saved = loading.load(tmp_path / "saved.yaml")
    assert yaml.safe_load(done.stderr.partition("octobert: ")[0])["choose"] == {
        "goal": "latency@p90",
        "limits": [{"max_drop": 0.02}, {"of": "latency@p90", "at_most": 20.0}],
        "ties": ["size"],
        "minutes": 5.0,
    }
    assert saved.data.calibrate.samples == 32
    assert "targets" not in saved.model_fields_set
    # A key that the user sets is not varied.
    start = space.variant_of(saved, {"targets": "ort-cpu"})
    keys = {axis.key for axis in space.axes_of(saved, start)}
    assert "calibrate" not in keys
    assert "transforms" in keys
    opened = saved.model_copy(
        update={"choose": saved.choose.model_copy(update={"vary": ("calibrate",)})}
    )
    assert {axis.key for axis in space.axes_of(opened, start)} == {"calibrate"}


WRONG = [
    [*GIVEN, "--latency", "fast"],
    [*GIVEN, "--latency", "20"],
    [*GIVEN, "--latency", "0ms"],
    [*GIVEN, "--latency", "20ms@90"],
    [*GIVEN, "--size", "--throughput"],
    [*GIVEN, "--size", "--latency", "p90"],
    [*GIVEN, "--at-least", "0.9", "--relative"],
    ["m", "--task", "mrpc"],
]


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_options_are_one_sentence(golden, tmp_path: Path, arguments: list[str]) -> None:
    done = octobert_cli("auto", *arguments, cwd=tmp_path)
    assert done.returncode in (RecipeError.exit_code, octobert.ModelError.exit_code)
    golden(done.stderr.splitlines()[-1])
    assert not list(tmp_path.iterdir())
