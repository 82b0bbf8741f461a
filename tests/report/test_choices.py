"""How a choice is shown: the sentence, reasons, and the table in a terminal. `test_frontier` tests the chart."""

from __future__ import annotations

import io

import pytest

from octobert.core.estimate import Estimate
from octobert.core.limits import Limit, check
from octobert.core.selection import Selection, VariantResult
from octobert.report import choices, contents, judged, terminal
from octobert.report.tables import PlainConsole
from octobert.report.words import Phrasing
from tests.support.selections import (
    WITHIN_A_POINT,
    figure,
    final_run,
    found,
    selection,
    speedup,
    without,
)

CHOICE = without(selection(), "not tried")
REFERENCE = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "admissible")
WORDS = Phrasing("f1", REFERENCE.values)


def said(choice: Selection = CHOICE, **report: object) -> str:
    """The sentence of a search and its final run."""
    return choices.sentence(choice, final_run(**report, choice=choice))


def won_by(precision: str, *others: VariantResult) -> Selection:
    """A search that ort-cpu in float32 or openvino-cpu in bf16 has won."""
    if precision == "f32":
        winner = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "chosen")
        return selection(winner, *others)
    return selection(
        found("openvino-cpu bf16", 37.7, 0.02, 0.1, 418.0, "chosen"), REFERENCE, *others
    )


def test_8_bits_win(golden) -> None:
    golden(said())


def test_a_faster_float_form_is_named_and_rows_of_the_data_come_first(golden) -> None:
    faster = speedup(1.31, 1.28, 1.36, "openvino-bf16")
    fixed = speedup(3.0, 2.9, 3.1, sequence=128)
    golden(said(speedups=(fixed, speedup(2.4, 2.31, 2.52), faster)))
    golden(said(speedups=(speedup(1.01, 0.97, 1.04),)))
    golden(said(speedups=(speedup(1 / 1.2, 1 / 1.3, 1 / 1.1),)))
    golden(said(speedups=()))


@pytest.mark.parametrize(
    "difference",
    [
        (-0.014, -0.019, -0.0075),
        (0.002, -0.001, 0.004),
        (0.0, -0.004, 0.004),
        (-0.0003, -0.0004, -0.0001),
        None,
    ],
    ids=["clear", "better", "none", "tiny", "without labels"],
)
def test_the_loss_is_that_on_the_evaluation_rows(
    golden, difference: tuple[float, float, float] | None
) -> None:
    golden(said(difference=difference))


def test_a_limit_that_only_the_tuning_rows_kept_is_said_first_to_be_missed(golden) -> None:
    for missed in ((-0.023, -0.029, -0.017), (-0.013, -0.019, -0.007), (-0.009, -0.019, 0.0)):
        golden(said(difference=missed))

    def states(difference: tuple[float, float, float], limit: Limit) -> list[str]:
        run = final_run(difference, choice=without(selection(limits=(limit,)), "not tried"))
        return [part.state for part in judged.checks_of(run, "openvino-cpu")]

    assert states((-0.0091, -0.02, -0.009), Limit(max_drop=0.01, relative=True)) == ["missed"]
    assert states((-0.001, -0.006, 0.003), WITHIN_A_POINT) == ["kept"]


def test_a_float_model_wins(golden) -> None:
    slow = found("openvino-cpu int8", 81.0, 0.1, 0.4, 110.0, "admissible")
    damaged = found("openvino-cpu int8", 21.0, 2.4, 0.4, 110.0, "excluded")
    late = found("ort-cpu int8", 150.0, None, 0.0, 110.0, "slower")
    for others in ((slow,), (damaged,), (late, damaged), (late,), ()):
        golden(said(won_by("f32", *others)))
    other = found("openvino-cpu f32", 64.6, 0.0, 0.0, 418.0, "chosen")
    golden(said(selection(other, REFERENCE)))


def test_bfloat16_wins_because_8_bits_gain_nothing_more(golden) -> None:
    level = found("openvino-cpu int8", 37.5, 0.42, 0.4, 110.0, "admissible")
    golden(said(won_by("bf16", level), difference=(0.0, -0.003, 0.003)))


def test_models_that_were_not_tried_are_not_judged(golden) -> None:
    level = found("openvino-cpu int8", 60.0, 0.42, 1.3, 110.0, "admissible")
    untried = level.model_copy(
        update={
            "variant": level.variant.model_copy(update={"name": "ort-cpu int8"}),
            "state": "not tried",
            "ratio": None,
            "drops": {},
        }
    )
    golden(said(won_by("bf16", level, untried)))


def test_nothing_keeps_the_limits(golden) -> None:
    nearest = found("openvino-cpu int8", 21.7, 1.4, 0.6, 110.0, "excluded")
    lost = {"winner": nearest.variant.name, "met": False}
    choice = selection(nearest, REFERENCE, **lost)
    golden(said(choice, difference=(-0.013, -0.019, -0.007)))
    both = (WITHIN_A_POINT, Limit(of="latency@p90", at_most=5))
    golden(said(selection(nearest, REFERENCE, limits=both, **lost)))


def test_a_search_that_ran_out_of_time(golden) -> None:
    golden(said(selection()))


def test_other_goals(golden) -> None:
    golden(said(selection(goal="throughput"), ratios=(speedup(2.0, 1.94, 2.06),)))
    golden(said(without(selection(goal="size"), "not tried")))
    golden(said(selection(goal="memory")))
    golden(said(without(selection(goal="metric"), "not tried")))
    golden(said(without(selection(limits=()), "excluded")))


def test_a_tie_is_said_to_be_one() -> None:
    """Also with a variant of the same runtime and precision, and one whose accuracy was not judged."""
    winner = found("openvino-cpu int8", 21.7, 0.1, 0.4, 110.0, "chosen")
    equal = found("openvino-cpu int8 calibrate=mse", 21.8, 0.1, 0.4, 110.0, "admissible")
    late = found("ort-cpu int8", 21.6, None, 0.0, 109.0, "slower")
    slower = found("ort-cpu int8 all", 24.0, 0.1, 0.4, 110.0, "admissible")

    def why(*others: VariantResult) -> str:
        return choices.because(selection(winner, REFERENCE, *others))

    assert "as fast as any that keeps" in why(equal)
    assert "calibrate=mse is as fast within the noise" in why(equal, slower)
    assert "calibrate=mse and 1 more are as fast within the noise" in why(equal, late)
    assert "the fastest one that keeps" in why(slower)
    assert "within the noise" not in why(slower)


def test_what_was_not_judged_is_compared_as_well(golden) -> None:
    """The search judges from the fastest on, and ends with the first that keeps the limits."""
    winner = found("openvino-cpu int8", 21.7, 0.1, 0.4, 110.0, "chosen")
    late = found("ort-cpu int8", 26.4, None, 0.0, 109.0, "slower")
    golden(choices.because(selection(winner, REFERENCE, late)))


def test_limits_in_words(golden) -> None:
    for limit in (
        Limit(max_drop=0.005),
        Limit(max_drop=0),
        Limit(max_drop=0.01, relative=True, at_least=0.88),
        Limit(of="exact_match", max_drop=0.02),
        Limit(of="latency@p90", at_most=20),
        Limit(of="latency", min_gain=20),
        Limit(of="speedup", at_least=1.5),
        Limit(of="memory", at_most=500),
    ):
        golden(WORDS.limit(limit))


def test_what_misses_a_limit_in_words(golden) -> None:
    for limit, value, reference in (
        (Limit(of="latency@p90", at_most=20), figure(24.1, 0.3), None),
        (Limit(at_least=0.85), figure(0.812, 0), None),
        (Limit(of="size", at_most=100), figure(110, 0), None),
        (Limit(of="latency", min_gain=20), figure(88, 2), 100.0),
        (Limit(of="latency", min_gain=20), figure(105, 6), 100.0),
    ):
        (part,) = check(limit, value, reference=reference)
        golden(WORDS.missed(part))


def test_metrics_outside_of_0_to_1_have_no_points(golden) -> None:
    words = Phrasing("recall@10", {"recall@10": 87.5})
    limit = Limit(max_drop=0.5)
    golden(words.limit(limit))
    (part,) = check(limit, None, drop=Estimate(value=1.25, low=0.75, high=1.75), reference=87.5)
    golden(words.missed(part))


def test_limits_are_lines_of_the_chart() -> None:
    def lines(*limits: Limit) -> tuple[float | None, float | None]:
        choice = selection(limits=limits)
        return judged.accepted_drop(final_run(choice=choice)), judged.accepted_ms(choice)

    both = lines(WITHIN_A_POINT, Limit(of="f1", at_least=0.898), Limit(of="latency", at_most=40))
    assert both == (pytest.approx(0.005), 40)
    assert lines(Limit(of="speedup", at_least=2), Limit(of="latency", min_gain=25)) == (None, 38.4)
    assert lines(Limit(of="size", at_most=50), Limit(of="latency@p90", at_most=9)) == (None, None)
    words = Phrasing("recall@10", {"recall@10": 87.5})
    assert Limit(max_drop=0.5).accepted_drop(words.values["recall@10"]) == 0.5


def test_how_far_a_search_is(golden) -> None:
    golden(choices.best_so_far(CHOICE.best, 12, 20, 190, 20))
    golden(choices.best_so_far(None, 0, 20, 0, None))
    golden(choices.best_so_far(None, 0, 0, 0, 20))


def table_of(choice: Selection, width: int = 80) -> str:
    """The table of variants on a terminal."""
    stream = io.StringIO()
    PlainConsole(file=stream, width=width).print(contents.choice_table(choice))
    return stream.getvalue()


def test_the_table_fits_80_columns_with_one_line_per_variant(golden) -> None:
    choice = selection()
    lines = table_of(choice).splitlines()
    assert max(map(len, lines)) <= 80
    assert [row[2:37].strip() for row in lines[4:22]] == [
        each.variant.name for each in choice.found
    ]
    golden(table_of(choice))


def test_a_wide_terminal_shows_why(golden) -> None:
    golden(table_of(selection(), 200))


def test_the_winner_and_the_frontier_are_listed_of_many_variants() -> None:
    many = [found(f"ort-cpu int8 {n}", 50.0 + n, 0.5, 0.1, 109.0, "admissible") for n in range(30)]
    last = [found("ort-cpu int8 dynamic", 49.0, 0.1, 0.1, 109.0, "admissible")]
    choice = selection(
        REFERENCE, *many, *last, found("openvino-cpu int8", 21.7, 0.3, 0.1, 110.0, "chosen")
    )
    lines = table_of(choice).splitlines()
    assert lines[4].startswith("→ openvino-cpu int8")
    assert any(line.startswith("• ort-cpu int8 dynamic") for line in lines)
    assert len([line for line in lines if "-cpu" in line]) == 21
    assert lines[-2:] == [
        "and 13 more: see report.html",
        "report.html also shows: MB, peak MB, rows, time ÷ f32, F1, rounds, s, why",
    ]


def test_names_from_files_are_shown_and_not_obeyed() -> None:
    enemy = found("openvino-cpu [/red]\x1b[31m\u202e", 21.7, 0.1, 0.1, 110.0, "chosen")
    choice = selection(enemy, REFERENCE)
    assert "[/red]␛[31m�" in table_of(choice)
    stream = io.StringIO()
    PlainConsole(file=stream, width=80).print(
        *terminal.notes([enemy.variant.name], [enemy.variant.name])
    )
    assert "\x1b" not in stream.getvalue()


def test_facts_of_a_search(golden) -> None:
    golden("\n".join(choices.facts(CHOICE)))
    simulated = CHOICE.model_copy(update={"simulated": {"ONEDNN_MAX_CPU_ISA": "AVX2"}})
    golden("\n".join(choices.facts(simulated)))
    golden("\n".join(choices.facts(selection(metric=None, limits=()))))


def test_a_drop_below_one_point_keeps_its_sign(golden) -> None:
    for value, low, high in ((0.014, 0.008, 0.02), (-0.002, -0.006, 0.002), (0.0, 0.0, 0.0)):
        change = Estimate(value=value, low=low, high=high)
        golden(WORDS.drop("f1", change))
        golden(WORDS.change("f1", change))
