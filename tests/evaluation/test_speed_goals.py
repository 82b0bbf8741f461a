"""A goal of speed: judged by intervals, shape by shape, and said in the report and by the exit code."""

from __future__ import annotations

import pytest

import octobert
from octobert.config.loading import parse
from octobert.core.errors import RecipeError, SpeedError
from octobert.core.estimate import Estimate
from octobert.core.measurements import Speedup
from octobert.evaluation.latency import speed_goals
from octobert.pipeline.stages import report
from octobert.report import summary

PLAIN = {"model": "m", "task": "mrpc", "data": "d"}


def speedup(low: float, high: float, sequence: int = 128, reference: str = "ort-f32") -> Speedup:
    ratio = Estimate(value=(low + high) / 2, low=low, high=high)
    return Speedup(
        candidate="ort-cpu", reference=reference, batch=1, sequence=sequence, ratio=ratio
    )


@pytest.mark.parametrize(
    ("found", "state", "slowest"),
    [
        ([speedup(1.3, 1.5), speedup(1.25, 1.4, 64)], "met", 64),
        ([speedup(1.3, 1.5), speedup(1.2, 1.4, 64)], "not clear", 64),
        ([speedup(1.1, 1.2), speedup(1.2, 1.4, 64)], "missed", 128),
        # Another float model is not the baseline.
        ([speedup(1.3, 1.5), speedup(0.9, 1.0, 64, "ort-bf16")], "met", 128),
        ([], "not measured", None),
    ],
)
def test_intervals_decide(
    golden, finished, found: list[Speedup], state: str, slowest: int | None
) -> None:
    (goal,) = speed_goals(found, {"ort-cpu": "ort-f32"}, 1.25)
    assert goal.state == state
    assert (goal.slowest and goal.slowest.sequence) == slowest
    whole = finished[2].model_copy(update={"speed_goals": (goal,)})
    assert summary.goal_text(goal) in summary.verdicts(whole)
    if state in ("met", "not measured"):
        octobert.check_criteria(whole)
        return
    with golden.raises(SpeedError) as caught:
        octobert.check_criteria(whole)
    assert caught.value.exit_code == 9


def test_the_report_judges_every_target_of_a_recipe() -> None:
    recipe = parse({**PLAIN, "speed": {"min_speedup": 2}}).model_dump(mode="json")
    goals = report._speed_goals(
        recipe, ("ort-cpu", "qnn"), ("ort-f32", "ort-cpu"), [speedup(1.3, 1.5)]
    )
    assert [(goal.target, goal.state) for goal in goals] == [
        ("ort-cpu", "missed"),
        ("qnn", "not measured"),
    ]
    assert (
        report._speed_goals({"speed": None}, ("ort-cpu", "qnn"), ("ort-f32", "ort-cpu"), []) == ()
    )


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"speed": {"min_speedup": 0}}, "speed.min_speedup: input should be greater than 0"),
        ({"speed": {}}, "speed.min_speedup: missing"),
        (
            {"speed": {"min_speedup": 2}, "measure": False},
            "a speedup has to be measured; remove measure: false",
        ),
    ],
)
def test_goals_that_cannot_be(keys: dict[str, object], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse({**PLAIN, **keys})
    assert text in str(caught.value)
