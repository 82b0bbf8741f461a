"""The automatic search on tables of known times and drops, measured with noise: no model runs here."""

from __future__ import annotations

import numpy as np
import pytest

from octobert.config.choosing import Choose
from octobert.pipeline.choosing import choose as module
from tests.pipeline.choosing.tables import DROP_NOISE, REFERENCE, Table, Truth, variant


@pytest.fixture
def search(monkeypatch):
    """Run a search over a table: first variants, what is faster than each, what is nearer to float than each."""

    def run(
        truths,
        first,
        faster=None,
        nearer=None,
        seed=0,
        targets=None,
        final=0.0,
        **settings,
    ):
        faster, nearer = faster or {}, nearer or {}
        monkeypatch.setattr(module.space, "first", lambda _: [REFERENCE, *map(variant, first)])
        monkeypatch.setattr(
            module.space, "faster", lambda _, v: [variant(n) for n in faster.get(v.name, ())]
        )
        monkeypatch.setattr(
            module.space,
            "nearer",
            lambda _, v, minutes: [variant(n) for n in nearer.get(v.name, ())],
        )
        monkeypatch.setattr(module.space, "reach", lambda _, v: 1.3 if faster.get(v.name) else 1.0)
        monkeypatch.setattr(
            module.space, "left_out", lambda _: [(variant("c int8"), "it has no 8-bit units")]
        )
        chosen = Choose(**settings)
        table = Table(truths, chosen.limits, seed, targets)
        table.final_seconds = final
        found, ended = module.choose(table, chosen, lambda *_: None)
        return found, ended, table

    return run


@pytest.mark.parametrize("seed", range(6))
def test_the_winner_is_within_five_percent_of_the_best_that_keeps_the_limits(search, seed) -> None:
    """Random spaces of 30 variants, of which about half keep the limit; the time is a quarter of that for all of them."""
    random = np.random.default_rng(seed)
    first = [f"t{n} int8" for n in range(6)]
    faster = {name: [f"{name} p{k}" for k in range(4)] for name in first}
    nearer = {
        name: [f"{name} n{k}" for k in range(2)]
        for name in (*first, *(f for each in faster.values() for f in each))
    }
    truths = {
        name: Truth(
            float(random.uniform(0.25, 1.2)), float(random.choice([0.0, 0.004, 0.02, 0.05]))
        )
        for name in first
    }
    for name, others in faster.items():
        truths |= {
            n: Truth(
                truths[name].time * float(random.uniform(0.8, 1.1)),
                float(random.choice([0.002, 0.03])),
            )
            for n in others
        }
    for name, others in nearer.items():
        truths |= {
            n: Truth(truths[name].time, truths[name].drop * float(random.uniform(0.1, 1.0)))
            for n in others
        }
    found, _, table = search(truths, first, faster, nearer, seed, minutes=30)
    # Drops within the noise of the limit may be taken for either.
    able = [t.time for t in table.truths.values() if t.drop <= 0.01 - 2 * DROP_NOISE]
    assert found[0].state == "chosen"
    assert table.truths[found[0].variant.name].time <= 1.05 * min(able)
    assert table.truths[found[0].variant.name].drop <= 0.01 + 3 * DROP_NOISE
    every = 12.0 * len(table.truths) + sum(t.time for t in table.truths.values()) * 150 * 0.02
    assert table.seconds < every / 2


def test_float_wins_where_eight_bits_are_slower(search) -> None:
    truths = {"a f32": Truth(0.9, 0.0), "a int8": Truth(1.3, 0.0), "b int8": Truth(1.1, 0.0)}
    found, _, _ = search(truths, list(truths))
    assert (found[0].variant.name, found[0].state) == ("a f32", "chosen")


def test_a_slower_model_is_judged_where_all_faster_ones_miss_a_limit(search) -> None:
    """It left the races before anything was judged."""
    truths = {"a int8": Truth(0.3, 0.2), "b int8": Truth(0.5, 0.0), "a f32": Truth(0.9, 0.0)}
    found, _, _ = search(truths, list(truths))
    assert (found[0].variant.name, found[0].state) == ("b int8", "chosen")


@pytest.mark.parametrize(("time", "races"), [(0.45, 0), (0.301, 1)])
def test_only_models_whose_order_is_not_clear_are_timed_once_more(
    search, monkeypatch, time: float, races: int
) -> None:
    monkeypatch.setattr(module.limits, "as_good", lambda _: True)  # So that both are judged.
    truths = {"a int8": Truth(0.3, 0.0), "b int8": Truth(time, 0.0)}
    found, _, table = search(truths, list(truths))
    assert {each.state for each in found[:2]} == {"chosen", "admissible"}
    last = [race for race in table.races if len(race["a int8"]) == module.LAST_ROUNDS]
    assert len(last) == races


def test_between_equals_the_more_accurate_one_wins(search) -> None:
    found, _, _ = search(
        {"a int8": Truth(0.4, 0.008), "a bf16": Truth(0.402, 0.0)},
        ["a int8", "a bf16"],
        limits={"max_drop": 0.02},
    )
    assert found[0].variant.name == "a bf16"


def test_a_model_that_loses_too_much_is_repaired_before_it_is_given_up(search) -> None:
    truths = {
        "a int8": Truth(0.3, 0.2),
        "a f32": Truth(0.8, 0.0),
        "a int8 mse": Truth(0.3, 0.1),
        "a int8 layers": Truth(0.4, 0.0),
    }
    found, _, _ = search(
        truths, ["a int8", "a f32"], nearer={"a int8": ["a int8 mse", "a int8 layers"]}
    )
    assert found[0].variant.name == "a int8 layers"
    states = {each.variant.name: each.state for each in found}
    assert states["a int8"] == states["a int8 mse"] == "excluded"


def test_nothing_keeps_the_limits_so_the_nearest_is_taken(search) -> None:
    wanted = ({"max_drop": 0.01}, {"of": "latency", "at_most": 0.1})
    found, _, _ = search(
        {"a int8": Truth(0.2, 0.0), "b int8": Truth(0.15, 0.0)}, ["a int8", "b int8"], limits=wanted
    )
    assert (found[0].variant.name, found[0].state) == ("b int8", "excluded")
    assert [part.limit.of for part in found[0].checks] == ["latency"]


def test_a_search_without_time_still_gives_the_first_model_that_keeps_the_limits(search) -> None:
    truths = {"a int8": Truth(0.3, 0.0), "b int8": Truth(0.5, 0.0)}
    found, _, _ = search(truths, list(truths), minutes=0.01)
    assert found[0].state == "chosen"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("minutes", "final"), [(3, 0.0), (3, 60.0), (5, 150.0), (8, 120.0)])
def test_the_search_and_the_final_run_keep_the_time_limit_within_a_trial(
    search, seed, minutes: float, final: float
) -> None:
    random = np.random.default_rng(seed)
    first = [f"t{n} int8" for n in range(8)]
    faster = {name: [f"{name} p{k}" for k in range(4)] for name in first}
    nearer = {
        name: [f"{name} n{k}" for k in range(3)]
        for name in (*first, *(f for each in faster.values() for f in each))
    }
    names = {
        *first,
        *(f for each in faster.values() for f in each),
        *(n for each in nearer.values() for n in each),
    }
    truths = {
        name: Truth(float(random.uniform(0.25, 1.2)), float(random.choice([0.0, 0.004, 0.05])))
        for name in sorted(names)
    }
    found, _, table = search(truths, first, faster, nearer, seed, minutes=minutes, final=final)
    assert found[0].state == "chosen"
    # Making, timing and judging one variant.
    assert table.seconds + final <= 60 * minutes + 4 + 8 + 5


def test_a_search_that_is_over_judges_its_fastest_model_and_then_only_float(search) -> None:
    truths = {f"a int8 {n}": Truth(0.2 + n / 100, 0.2) for n in range(20)} | {
        "a f32": Truth(0.9, 0.0)
    }
    found, _, table = search(truths, list(truths), minutes=1, final=60.0)
    assert (found[0].variant.precision, found[0].state) == ("f32", "chosen")
    assert table.seconds < 60
    judged = [each for each in found if each.drops and each.variant.precision == "int8"]
    assert len(judged) <= 1


def test_a_search_without_time_makes_a_model_in_8_bits_first(search) -> None:
    truths = {"a f32": Truth(0.9, 0.0), "b f32": Truth(0.95, 0.0), "b int8": Truth(0.4, 0.0)}
    found, _, _ = search(truths, list(truths), minutes=0.01)
    assert (found[0].variant.name, found[0].state) == ("b int8", "chosen")


def test_size_is_a_goal(search) -> None:
    truths = {
        "a int8": Truth(0.3, 0.0, 0.25),
        "a weights": Truth(1.0, 0.0, 0.2),
        "a f32": Truth(0.9, 0.0, 1.0),
    }
    found, _, _ = search(truths, list(truths), goal="size")
    assert found[0].variant.name == "a weights"


def test_a_metric_is_a_goal_within_a_limit_on_time(search) -> None:
    wanted = ({"of": "latency", "at_most": 0.5},)
    truths = {"a int8": Truth(0.3, 0.02), "b int8": Truth(0.42, 0.004), "a f32": Truth(0.9, 0.0)}
    found, _, _ = search(truths, list(truths), goal="metric", limits=wanted)
    assert found[0].variant.name == "b int8"


def test_the_float_reference_is_not_chosen_for_a_target_that_nobody_named(search) -> None:
    truths = {"a int8": Truth(1.4, 0.0), "a f32": Truth(1.2, 0.0)}
    found, _, _ = search(truths, list(truths), targets={"a"})
    assert (found[0].variant.name, found[0].state) == ("a f32", "chosen")
