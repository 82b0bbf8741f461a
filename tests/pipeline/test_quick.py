"""`quick: true` measures less, leaves the models as they are, and says what was left out."""

from __future__ import annotations

import pytest

from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.pipeline.planner import steps_of
from octobert.pipeline.resolve import quick_recipe, resolve
from tests.support.runs import TARGETS


def quick(recipe: Recipe, **changes: object) -> Recipe:
    """The tiny run, quick, with nothing set about measuring."""
    plain = {
        "model": recipe.model,
        "task": "text-classification",
        "data": recipe.data.source,
        "quick": True,
    }
    return parse({**plain, "targets": ["ort-cpu"], **changes})


def test_a_quick_run_measures_less(finished) -> None:
    steps = {step.name: step for step in steps_of(quick(finished[0]))}
    assert [name for name in steps if name.startswith("evaluate/")] == [
        "evaluate/ort-f32",
        "evaluate/ort-cpu",
    ]
    assert steps["data"].options.evaluate.samples == 128
    timed = steps["benchmark"].options.benchmark
    assert (timed.batch, timed.repeats, timed.sequence) == ((1,), 12, ("data", 64))
    absent = resolve(quick(finished[0]), tune=False).absent
    assert absent["openvino-f32"] == "left out by quick: true"


def test_quick_shortens_throughput_and_timing_by_seconds() -> None:
    plain = {"model": "m", "task": "text-classification", "data": "d", "quick": True}
    for given, seconds in (
        ({"goal": "throughput"}, 4),
        ({"seconds": 60}, 4),
        ({"seconds": 2}, 2),
        ({}, None),
    ):
        assert quick_recipe(parse({**plain, "benchmark": given})).benchmark.seconds == seconds


def test_every_float_form_on_the_runtimes_of_the_targets_stays(finished) -> None:
    full = resolve(finished[0], tune=False)
    short = resolve(quick(finished[0], targets=TARGETS), tune=False)
    # The checkpoint runs on no runtime of a target.
    assert set(full.candidates) - {"torch-f32"} == set(short.candidates)


def test_what_the_recipe_sets_is_an_upper_limit(finished) -> None:
    rows = {"source": finished[0].data.source, "evaluate": {"from": "validation", "samples": 30}}
    given = quick(
        finished[0],
        data=rows,
        benchmark={"batch": [8, 4], "repeats": 5},
        baselines=["openvino-f32"],
    )
    facts = resolve(given, tune=False)
    assert facts.recipe.data.evaluate.samples == 30
    assert (facts.benchmark.batch, facts.benchmark.repeats) == ((4,), 5)
    assert "openvino-f32" in facts.candidates


def test_without_quick_nothing_is_left_out(finished) -> None:
    facts = resolve(finished[0], tune=False)
    assert "left out by quick: true" not in facts.absent.values()
    assert facts.recipe is finished[0]


@pytest.mark.parametrize(
    ("changes", "scored"),
    [
        ({}, ["ort-f32"]),
        ({"baselines": ["torch-f32"]}, ["torch-f32", "ort-f32"]),
        (
            {"session": {"openvino-cpu": {"options": {"INFERENCE_PRECISION_HINT": "bf16"}}}},
            ["ort-f32", "openvino-f32"],
        ),
        ({"session": {"ort-cpu": {"options": {"session.intra_op.allow_spinning": "0"}}}}, None),
    ],
)
def test_float_models_share_a_score_where_they_compute_the_same(
    finished, changes: dict, scored: list[str] | None
) -> None:
    """Options of a session may change what a float model computes; so it has scores of its own."""
    targets = {"targets": ["ort-cpu", "openvino-cpu"], "quick": False}
    run = resolve(quick(finished[0], **targets, **changes), tune=False)
    plain = [name for name in run.answering if name.endswith("-f32")]
    assert plain == (scored or [name for name in run.candidates if name.endswith("-f32")])
