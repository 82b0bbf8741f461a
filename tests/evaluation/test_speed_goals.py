"""A goal of speed: judged by intervals, shape by shape, and said in the report and by the exit code."""

from __future__ import annotations

import pytest

import octobert
from octobert.config.loading import parse
from octobert.core.errors import RecipeError, SpeedError
from octobert.core.estimate import Estimate
from octobert.core.measurements import Speedup
from octobert.report import judged, summary
from tests.support.columns import with_columns

PLAIN = {"model": "m", "task": "mrpc", "data": "d"}


def speedup(low: float, high: float, sequence: int = 128, reference: str = "ort-f32") -> Speedup:
    ratio = Estimate(value=(low + high) / 2, low=low, high=high)
    return Speedup(
        candidate="ort-cpu", reference=reference, batch=1, sequence=sequence, ratio=ratio
    )


@pytest.mark.parametrize(
    ("found", "state", "shape"),
    [
        ([speedup(1.3, 1.5), speedup(1.25, 1.4, 64)], "kept", "1 row of 64 tokens"),
        ([speedup(1.3, 1.5), speedup(1.2, 1.4, 64)], "unclear", "1 row of 64 tokens"),
        ([speedup(1.1, 1.2), speedup(1.2, 1.4, 64)], "missed", "1 row of 128 tokens"),
        ([speedup(1.2, 1.24), speedup(0.9, 1.4, 64)], "missed", "1 row of 128 tokens"),
        ([speedup(1.3, 1.5), speedup(1.0, 1.4, 64)], "missed", "1 row of 64 tokens"),
        # Another float model is not the baseline.
        ([speedup(1.3, 1.5), speedup(0.9, 1.0, 64, "ort-bf16")], "kept", "1 row of 128 tokens"),
        ([], "unmeasured", ""),
    ],
    ids=["kept", "unclear", "missed", "one missed", "perhaps missed", "baseline", "unmeasured"],
)
def test_intervals_decide(golden, finished, found: list[Speedup], state: str, shape: str) -> None:
    recipe = {**finished[2].recipe, "speed": {"min_speedup": 1.25}}
    whole = with_columns(finished[2], {"recipe": recipe, "speedups": tuple(found)})
    (goal,) = judged.speed_checks(whole, "ort-cpu")
    assert (goal.state, goal.shape) == (state, shape)
    assert goal in judged.checked(whole)["ort-cpu"]
    assert summary.goal_text(whole, "ort-cpu", goal) in summary.outcomes(whole)
    if state in ("kept", "unmeasured"):
        octobert.check_criteria(whole)
        return
    with golden.raises(SpeedError) as caught:
        octobert.check_criteria(whole)
    assert caught.value.exit_code == 9


def test_every_target_of_a_recipe_is_judged(finished) -> None:
    made = with_columns(finished[2], {"speedups": (speedup(1.1, 1.2),)})
    assert judged.checked(made) == {}
    wanted = {**made.recipe, "speed": parse({**PLAIN, "speed": {"min_speedup": 2}}).speed}
    whole = made.model_copy(update={"recipe": wanted})
    states = {
        target: [part.state for part in parts] for target, parts in judged.checked(whole).items()
    }
    assert states == {"ort-cpu": ["missed"], "openvino-cpu": ["unmeasured"]}


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
