"""How a choice is shown: the sentence, reasons, and the table in a terminal. `test_frontier` tests the chart."""

from __future__ import annotations

import io

import pytest

from octobert.config import checks
from octobert.config.choosing import Limit
from octobert.config.words import Words
from octobert.core.estimate import Estimate
from octobert.core.selection import Found, Selection
from octobert.report import choices, terminal
from octobert.report.tables import PlainConsole
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
WORDS = Words("latency", "f1", REFERENCE)
BECAUSE = (
    "because it is the fastest one that keeps F1 within 1 point, among 16 variants (1 faster one does not); ort-cpu int8 is 1.2 "
    "× slower."
)


def said(
    choice: Selection = CHOICE, limits: tuple[Limit, ...] = (WITHIN_A_POINT,), **report: object
) -> str:
    """The sentence of a search and its final run."""
    return choices.sentence(choice, limits, final_run(**report))


def won_by(precision: str, *others: Found) -> Selection:
    """A search that ort-cpu in float32 or openvino-cpu in bf16 has won."""
    if precision == "f32":
        winner = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "chosen")
        return selection(winner, *others)
    return selection(
        found("openvino-cpu bf16", 37.7, 0.02, 0.1, 418.0, "chosen"), REFERENCE, *others
    )


def test_8_bits_win() -> None:
    expected = (
        "Use openvino-cpu int8: 2.4 × faster than openvino-f32 (2.3–2.5), F1 −0.1 points (−0.6 to +0.3) "
        f"on your 408 rows, {BECAUSE}"
    )
    assert said() == expected


def test_a_faster_float_form_is_named_and_rows_of_the_data_come_first() -> None:
    faster = speedup(1.31, 1.28, 1.36, "openvino-bf16")
    fixed = speedup(3.0, 2.9, 3.1, sequence=128)
    text = said(speedups=(fixed, speedup(2.4, 2.31, 2.52), faster))
    assert (
        ": 2.4 × faster than openvino-f32 (2.3–2.5), 1.3 × faster than openvino-bf16 (1.3–1.4), F1 −0.1 points"
        in text
    )
    assert "as fast as openvino-f32 within the noise (0.97–1.04 ×)" in said(
        speedups=(speedup(1.01, 0.97, 1.04),)
    )
    assert "1.2 × slower than openvino-f32 (1.1–1.3)" in said(
        speedups=(speedup(1 / 1.2, 1 / 1.3, 1 / 1.1),)
    )
    assert said(speedups=()).startswith("Use openvino-cpu int8: F1 −0.1 points")


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ((-0.014, -0.019, -0.0075), "F1 −1.4 points (−1.9 to −0.8) on"),
        ((0.002, -0.001, 0.004), "F1 +0.2 points (−0.1 to +0.4) on"),
        ((0.0, -0.004, 0.004), "F1 0.0 points (−0.4 to +0.4) on"),
        ((-0.0003, -0.0004, -0.0001), "F1 −0.03 points (−0.04 to −0.01) on"),
        (None, "cosine 0.99912 with openvino-f32 on"),
    ],
)
def test_the_loss_is_that_on_the_evaluation_rows(
    difference: tuple[float, float, float] | None, words: str
) -> None:
    assert f" (2.3–2.5), {words} your 408 rows, because " in said(difference=difference)


def checked(difference: tuple[float, float, float], *limits: Limit, **report: object) -> Selection:
    """A search whose limits are checked again on the final run."""
    run = final_run(difference, scores={}, footprints=(), latencies=(), throughputs=(), **report)
    return CHOICE.model_copy(
        update={"checks": checks.check(limits or (WITHIN_A_POINT,), WORDS, run, "openvino-cpu")}
    )


def test_a_limit_that_only_the_tuning_rows_kept_is_said_first_to_be_missed() -> None:
    clear, unclear = ((-0.023, -0.029, -0.017), (-0.013, -0.019, -0.007))
    start = "openvino-cpu int8 MISSES a limit in the final measurement, which it keeps on the 400 tuning rows that the search judged by"
    text = said(checked(clear), difference=clear)
    assert text.startswith(
        f"{start}: F1 drops by 2.3 points (1.7 to 2.9), 1.3 points more than the limit. Use openvino-cpu int8"
    )
    assert "0.3 points more than the limit (the interval includes the limit)." in said(
        checked(unclear), difference=unclear
    )
    near = (-0.009, -0.019, 0.0)
    assert "MISSES" not in said(checked(near), difference=near)
    assert said(checked(near), difference=near).endswith(
        "It is not certain that “F1 drops by at most 1 point”: 408 rows are too few to tell; about 9,000 such rows would do."
    )
    relative = Limit(max_drop=0.01, relative=True)
    assert [each.state for each in checked((-0.0091, -0.02, -0.009), relative).checks] == ["missed"]
    assert [each.state for each in checked((-0.001, -0.006, 0.003)).checks] == ["kept"]


def test_a_float_model_wins() -> None:
    slow = found("openvino-cpu int8", 81.0, 0.1, 0.4, 110.0, "admissible")
    assert said(won_by("f32", slow)) == (
        "Use ort-cpu f32: 8 bits gain nothing on this machine: openvino-cpu int8 is 1.05 × slower."
    )
    damaged = found("openvino-cpu int8", 21.0, 2.4, 0.4, 110.0, "excluded")
    assert said(won_by("f32", damaged)) == (
        "Use ort-cpu f32: no faster model in 8 bits keeps F1 within 1 point: with openvino-cpu int8, F1 drops by 2.4 points "
        "(2.0 to 2.8), 1.4 points more than the limit."
    )
    late = found("ort-cpu int8", 150.0, None, 0.0, 110.0, "slower")
    assert "with openvino-cpu int8, F1 drops" in said(won_by("f32", late, damaged))
    assert said(won_by("f32", late)).endswith(
        "8 bits gain nothing on this machine: ort-cpu int8 is 2.0 × slower."
    )
    assert said(won_by("f32")) == "Use ort-cpu f32: no model in 8 bits could be made here."
    other = selection(found("openvino-cpu f32", 64.6, 0.0, 0.0, 418.0, "chosen"), REFERENCE)
    assert said(other).startswith(
        "Use openvino-cpu f32, 1.2 × faster than ort-cpu f32 (1.18–1.20): no model in 8 bits"
    )


def test_bfloat16_wins_because_8_bits_gain_nothing_more() -> None:
    level = found("openvino-cpu int8", 37.5, 0.42, 0.4, 110.0, "admissible")
    assert said(won_by("bf16", level), difference=(0.0, -0.003, 0.003)) == (
        "Use openvino-cpu bf16: 2.4 × faster than openvino-f32 (2.3–2.5), F1 0.0 points (−0.3 to +0.3) on your 408 rows, because 8 bits gain "
        "nothing on this machine: openvino-cpu int8 is as fast within the noise, and loses 0.4 points more."
    )


def test_nothing_keeps_the_limits() -> None:
    nearest = found("openvino-cpu int8", 21.7, 1.4, 0.6, 110.0, "chosen").model_copy(
        update={"reason": WORDS.misses_drop(WITHIN_A_POINT, figure(0.014, 0.006))}
    )
    choice = selection(nearest, REFERENCE, met=False)
    assert said(choice, difference=(-0.013, -0.019, -0.007)) == (
        "No model of 2 keeps F1 within 1 point. The nearest is openvino-cpu int8, which is packaged: F1 drops by 1.4 points "
        "(0.8 to 2.0), 0.4 points more than the limit. The final measurement: 2.4 × faster than openvino-f32 (2.3–2.5), F1 −1.3 "
        "points (−1.9 to −0.7) on your 408 rows."
    )
    limits = (WITHIN_A_POINT, Limit(of="latency@p90", at_most=5))
    assert "keeps the limits (F1 drops by at most 1 point; p90 latency is at most 5 ms)." in said(
        choice, limits
    )


def test_a_search_that_ran_out_of_time() -> None:
    assert said(selection()).endswith(
        "slower. This is the best so far: 1 of 18 variants was not tried (time limit of 20 minutes)."
    )


def test_other_goals() -> None:
    rates = (speedup(2.0, 1.94, 2.06),)
    assert said(selection(goal="throughput"), ratios=rates).startswith(
        "Use openvino-cpu int8: 2.0 × the throughput of openvino-f32 (1.9–2.1), F1 −0.1 points"
    )
    small = said(without(selection(goal="size"), "not tried"))
    assert small.startswith(
        "Use openvino-cpu int8: 3.8 × smaller than ort-cpu f32 (110, not 418 MB), 2.4 × faster"
    )
    assert (
        "it is the smallest one that keeps F1 within 1 point, among 16 variants (4 smaller ones do not)"
        in small
    )
    assert "3.8 × less memory than ort-cpu f32 (276, not 1045 MB)" in said(selection(goal="memory"))
    best = said(without(selection(goal="metric"), "not tried"))
    assert (
        "it is the one with the highest F1 that keeps F1 within 1 point, among 16 variants; ort-cpu int8 dynamic is as good within the noise."
        in best
    )
    assert "it is the fastest one that runs here, among 12 variants; ort" in said(
        without(selection(limits=()), "excluded"), ()
    )


def test_what_was_not_judged_is_compared_as_well() -> None:
    """The search judges from the fastest on, and ends with the first that keeps the limits."""
    winner = found("openvino-cpu int8", 21.7, 0.1, 0.4, 110.0, "chosen")
    late = found("ort-cpu int8", 26.4, None, 0.0, 109.0, "slower")
    assert choices.because(selection(winner, REFERENCE, late), (WITHIN_A_POINT,)) == (
        "it is the fastest one that keeps F1 within 1 point, among 3 variants; ort-cpu int8 is 1.2 × slower"
    )


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit(max_drop=0.005), "F1 drops by at most 0.5 points"),
        (Limit(max_drop=0), "F1 does not drop"),
        (
            Limit(max_drop=0.01, relative=True, at_least=0.88),
            "F1 drops by at most 1 % of its float value and F1 is at least 0.88",
        ),
        (Limit(of="exact_match", max_drop=0.02), "exact match drops by at most 2 points"),
        (Limit(of="latency@p90", at_most=20), "p90 latency is at most 20 ms"),
        (Limit(of="latency", min_gain=20), "latency improves by at least 20 %"),
        (Limit(of="speedup", at_least=1.5), "speedup is at least 1.5 ×"),
        (Limit(of="memory", at_most=500), "peak memory is at most 500 MB"),
    ],
)
def test_limits_in_words(limit: Limit, words: str) -> None:
    assert WORDS.limit(limit) == words


def test_what_misses_a_limit_in_words() -> None:
    assert WORDS.misses_value(Limit(of="latency@p90", at_most=20), figure(24.1, 0.3)) == (
        "p90 latency is 24.1 ms (23.8 to 24.4), 4.1 ms more than the limit"
    )
    assert (
        WORDS.misses_value(Limit(at_least=0.85), figure(0.812, 0))
        == "F1 is 0.812, 0.038 less than the limit"
    )
    assert WORDS.misses_value(Limit(of="size", at_least=10, at_most=100), figure(110, 0)) == (
        "size is 110 MB, 10 MB more than the limit"
    )
    assert WORDS.misses_gain(Limit(of="latency", min_gain=20), figure(12, 2)) == (
        "latency improves by 12 % (10 to 14), 8 % less than the limit"
    )
    assert WORDS.misses_gain(Limit(of="latency", min_gain=20), figure(-5, 6)) == (
        "latency gets worse by 5 % (−1 to 11), 25 % less than the limit"
    )


def test_metrics_outside_of_0_to_1_have_no_points() -> None:
    words = Words(
        "latency", "recall@10", REFERENCE.model_copy(update={"values": {"recall@10": 87.5}})
    )
    limit = Limit(max_drop=0.5)
    assert words.limit(limit) == "recall@10 drops by at most 0.5"
    assert words.misses_drop(limit, Estimate(value=1.25, low=0.75, high=1.75)) == (
        "recall@10 drops by 1.25 (0.75 to 1.75), 0.75 more than the limit"
    )
    assert words.lines((limit,)) == {"accepted_drop": 0.5}


def test_limits_are_lines_of_the_chart() -> None:
    assert WORDS.lines(
        (WITHIN_A_POINT, Limit(of="f1", at_least=0.898), Limit(of="latency", at_most=40))
    ) == {
        "accepted_drop": pytest.approx(0.005),
        "accepted_ms": 40,
    }
    assert WORDS.lines((Limit(of="speedup", at_least=2), Limit(of="latency", min_gain=25))) == {
        "accepted_ms": 38.4
    }
    assert WORDS.lines((Limit(of="size", at_most=50), Limit(of="latency@p90", at_most=9))) == {}


def test_how_far_a_search_is() -> None:
    assert choices.best_so_far(CHOICE.best, 12, 20, 190, 20) == (
        "best so far: openvino-cpu int8, 3.5 ×, drop 0.1 points (12 of 20 variants, 3:10 of 20:00)"
    )
    assert (
        choices.best_so_far(None, 0, 20, 0, None)
        == "best so far: nothing yet (0 of 20 variants, 0:00)"
    )
    assert choices.best_so_far(None, 0, 0, 0, 20) == "searching for the best model"


def table_of(choice: Selection, width: int = 80) -> str:
    """The table of variants on a terminal."""
    stream = io.StringIO()
    PlainConsole(file=stream, width=width).print(terminal.choice_table(choice))
    return stream.getvalue()


def test_the_table_fits_80_columns_with_one_line_per_variant() -> None:
    choice = selection()
    lines = table_of(choice).splitlines()
    assert max(map(len, lines)) <= 80
    assert (
        lines[1].strip() == "Compared with ort-cpu f32: time, drop of F1 on 400 tuning rows [95 %]"
    )
    rows = lines[4:22]
    assert [row[2:37].strip() for row in rows] == [each.variant.name for each in choice.found]
    assert rows[0].split() == [
        "→",
        "openvino-cpu",
        "int8",
        "21.7",
        "3.54",
        "0.1",
        "[-0.3,",
        "0.6]",
        "chosen",
    ]
    assert [row[0] for row in rows].count("•") == 2
    assert [row.split()[-2:] for row in rows if "weights" in row] == [["not", "judged"]] * 2
    assert [row.split()[-2:] for row in rows[-2:]] == [["not", "made"], ["not", "tried"]]


def test_a_wide_terminal_shows_why() -> None:
    wide, narrow = table_of(selection(), 200), table_of(selection())
    for text in ("0.4 points more than the limit", "2.0 × slower after 12 rounds", "110 "):
        assert text in wide
        assert text not in narrow


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
        "report.html also shows: MB, peak MB, rows, why",
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


def test_facts_of_a_search() -> None:
    assert choices.facts(CHOICE) == [
        "17 variants were compared for latency on 400 tuning rows in 19:50; limits: F1 drops by at most 1 point.",
        "The search ended: time limit of 20 minutes.",
        "The choice holds for machines such as this one: Some Processor, avx2, avx512_vnni, onnxruntime 1.23.0, openvino "
        "2025.4.0.",
    ]
    simulated = CHOICE.model_copy(update={"simulated": {"ONEDNN_MAX_CPU_ISA": "AVX2"}})
    assert "Simulated: ONEDNN_MAX_CPU_ISA=AVX2 kept runtimes" in choices.facts(simulated)[-1]
    assert "tuning rows" not in choices.facts(selection(metric=None, limits=()))[0]


@pytest.mark.parametrize(
    ("drop", "as_drop", "as_change"),
    [
        ((0.014, 0.008, 0.02), "1.4 points (0.8 to 2.0)", "F1 −1.4 points (−2.0 to −0.8)"),
        ((-0.002, -0.006, 0.002), "−0.2 points (−0.6 to 0.2)", "F1 +0.2 points (−0.2 to +0.6)"),
        ((0.0, 0.0, 0.0), "0.0 points", "F1 0.0 points"),
    ],
)
def test_a_drop_below_one_point_keeps_its_sign(
    drop: tuple[float, float, float], as_drop: str, as_change: str
) -> None:
    figure = Estimate(value=drop[0], low=drop[1], high=drop[2])
    assert WORDS.drop("f1", figure) == as_drop
    assert WORDS.change("f1", figure) == as_change
