"""The answer of the first screen, the figures that it stands on, and the commands that it names."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest
import typer

import octobert
from octobert.cli import _recipe
from octobert.cli.main import app
from octobert.config import loading
from octobert.core.errors import AccuracyError
from octobert.core.estimate import Estimate, quantile
from octobert.core.limits import Check, Limit
from octobert.core.measurements import Latency, Score, Throughput, Turn
from octobert.core.results import Report
from octobert.report import commands, judged, summary
from octobert.report.verdict import Verdict, fastest_float, paired, verdict
from octobert.report.words import words_of
from tests.support.columns import columns, with_columns
from tests.support.pages import markup_of, page_of
from tests.support.reports import rich_report
from tests.support.selections import final_run, found, selection, speedup

GROUP: Any = typer.main.get_command(app)
REFERENCE = found("ort-cpu f32", 76.8, 0.0, 0.0, 418.0, "admissible")


@pytest.fixture
def report(finished: Any) -> Report:
    """A run of ort-cpu and openvino-cpu, whose rows are few and whose models are tiny."""
    return finished[2]


def with_figures(
    report: Report,
    ratio: tuple[float, float, float] = (2.8, 2.6, 3.0),
    loss: tuple[float, float, float] | None = (-0.001, -0.006, 0.003),
) -> Report:
    """A run of openvino-cpu alone, with a speed over the fastest float form and a difference in accuracy."""
    value, low, high = loss or (None, None, None)
    changes = {
        "difference": value,
        "low": low,
        "high": high,
        "metric": "accuracy" if loss else None,
        "fidelity": 0.95,
    }
    changes |= {"fidelity_chance": None}
    compared = next(
        each for each in columns(report).comparisons if each.candidate == "openvino-cpu"
    ).model_copy(update=changes)
    shape = {"batch": 1, "sequence": "data"}
    # Of 30 rounds, the 10th and the 21st are the ends of the interval.
    ratios = np.repeat([ratio[1], ratio[0], ratio[2]], 10)
    times = {
        "openvino-cpu": 28.0 / ratios,
        "openvino-f32": np.full(30, 28.0),
        "ort-f32": np.full(30, 35.0),
    }
    made = {
        "plans": {"openvino-cpu": report.plans["openvino-cpu"]},
        "comparisons": (compared,),
        "latencies": tuple(
            Latency(candidate=n, samples_ms=tuple(ms), rows=30, tokens=300, **shape)
            for n, ms in times.items()
        ),
        "footprints": tuple(
            each.model_copy(
                update={
                    "size_bytes": 24_000_000 if each.candidate == "openvino-cpu" else 91_200_000
                }
            )
            for each in columns(report).footprints
            if each.candidate in times
        ),
        "scores": {
            name: (
                Score(metric="accuracy", value=0.86, low=0.82, high=0.89, rows=408, chance=0.68),
            )
            for name in times
        },
        "data": report.data.model_copy(update={"evaluation_rows": 408, "leaked_rows": 0}),
        "model": report.model.model_copy(update={"source_bytes": 91_200_000}),
        "load": None,
    }
    return with_columns(report, made)


def with_limits(report: Report, *limits: Limit) -> Report:
    """The report of the final run of a search with limits, whose main metric is accuracy."""
    choice = selection(limits=limits, metric="accuracy")
    return report.model_copy(update={"choice": choice})


def checked(report: Report, *limits: Limit) -> tuple[Check, ...]:
    """The checks of openvino-cpu."""
    return judged.checks_of(with_limits(report, *limits), "openvino-cpu")


def test_ship_it(golden, report) -> None:
    answer = verdict(with_figures(report))
    golden(f"{answer.sentence}\n{answer.reason}")
    assert (answer.state, answer.use) == ("ship", "openvino-cpu")
    assert [f"{n.value} {n.unit}" for n in answer.numbers] == ["2.8 ×", "3.8 ×", "−0.1 points"]


def test_targets_are_compared_round_by_round_and_equals_are_named() -> None:
    report = rich_report()
    shape = ("data", 1)
    ours, other = list(report.plans)[:2]
    samples = {
        each.candidate: each.samples_ms
        for each in columns(report).latencies
        if (each.sequence, each.batch) == shape
    }
    alike = tuple(
        value * (0.9 if number % 2 else 1.1) for number, value in enumerate(samples[ours])
    )
    latencies = [
        each.model_copy(update={"samples_ms": alike})
        if (each.candidate, each.sequence, each.batch) == (other, *shape)
        else each
        for each in columns(report).latencies
    ]
    kept = tuple(
        each.model_copy(update={"difference": 0.0, "low": -0.001})
        for each in columns(report).comparisons
    )
    answer = verdict(with_columns(report, {"latencies": tuple(latencies), "comparisons": kept}))
    assert answer.reason.endswith(
        f" {({ours, other} - {answer.use}).pop()} is as fast within the noise."
    )
    # A model that misses the limit is no rival.
    assert "as fast" not in verdict(with_columns(report, {"latencies": tuple(latencies)})).reason


@pytest.mark.parametrize(
    ("ratio", "loss", "state"),
    [
        ((2.8, 2.6, 3.0), (-0.004, -0.013, 0.005), "unclear"),
        ((1.5, 0.9, 2.1), (0.0, -0.004, 0.004), "unclear"),
        # No bound says that it is slower, or as fast.
        ((0.95, 0.76, 1.41), (0.0, -0.004, 0.004), "unclear"),
        ((1.02, 0.97, 1.04), (0.0, -0.004, 0.004), "no"),
        ((0.8, 0.7, 0.9), (0.0, -0.004, 0.004), "no"),
        ((2.8, 2.6, 3.0), (-0.03, -0.04, -0.02), "no"),
        ((2.8, 2.6, 3.0), (-0.013, -0.03, 0.004), "unclear"),
        ((2.8, 2.6, 3.0), None, "unclear"),
        ((2.8, 2.6, 3.0), (float("nan"), None, None), "unclear"),
    ],
    ids=[
        "few rows",
        "noise",
        "perhaps slower",
        "as fast",
        "slower",
        "worse",
        "perhaps worse",
        "without labels",
        "undefined",
    ],
)
def test_what_stands_against_it(golden, report, ratio: Any, loss: Any, state: str) -> None:
    answer = verdict(with_figures(report, ratio, loss))
    assert answer.state == state
    golden(f"{answer.sentence}\n{answer.reason}")
    assert answer.use == ("openvino-f32" if state == "no" else "openvino-cpu")


def test_the_limit_is_that_of_the_recipe(golden, report) -> None:
    made = with_figures(report)
    strict = made.model_copy(update={"recipe": {**made.recipe, "accuracy": {"max_drop": 0.005}}})
    assert verdict(strict).state == "unclear"
    golden(verdict(strict).reason)
    least = made.model_copy(update={"recipe": {**made.recipe, "accuracy": {"at_least": 0.8}}})
    # The value itself counts, 0.86 (0.82 to 0.89), and not how far it is from the float model.
    assert verdict(least).reason == "It keeps the limit of 6 points, with 97.5 % confidence."
    more = made.model_copy(update={"recipe": {**made.recipe, "accuracy": {"at_least": 0.83}}})
    assert verdict(more).state == "unclear"


def test_a_limit_on_a_metric_of_retrieval(report) -> None:
    """Its name has an @, as a percentile has."""
    made = with_figures(report)
    compared = columns(made).comparisons[0].model_copy(update={"metric": "mrr@10"})
    recipe = {**made.recipe, "accuracy": {"max_drop": 0.01, "metric": "mrr@10"}}
    limited = with_columns(made, {"comparisons": (compared,), "recipe": recipe})
    assert verdict(limited).reason == "It keeps the limit of 1 point, with 97.5 % confidence."


def test_scores_that_say_nothing_are_no_reason_to_ship(golden, report) -> None:
    made = with_figures(report)
    leaked = made.model_copy(update={"data": made.data.model_copy(update={"leaked_rows": 3})})
    assert verdict(leaked).state == "unclear"
    golden(verdict(leaked).reason)
    constant = {
        name: (Score(metric="accuracy", value=0.68, low=0.6, high=0.7, rows=408, chance=0.68),)
        for name in columns(made).scores
    }
    hopeless = verdict(with_columns(made, {"scores": constant}))
    assert (hopeless.state, hopeless.use) == ("no", "")
    golden(hopeless.sentence)
    hardly = {
        name: (score[0].model_copy(update={"value": 0.7}),) for name, score in constant.items()
    }
    assert verdict(with_columns(made, {"scores": hardly})).state == "unclear"


def test_what_was_not_measured(report) -> None:
    empty = with_columns(
        report, {"footprints": (), "latencies": (), "speedups": (), "comparisons": (), "scores": {}}
    )
    unmeasured = empty.model_copy(update={"recipe": {**report.recipe, "measure": False}})
    assert verdict(unmeasured) == Verdict("unmeasured", verdict(unmeasured).sentence)
    assert "measure: false" in verdict(unmeasured).sentence
    absent = with_columns(empty, {"absent": {"ort-cpu": "no such device"}})
    assert verdict(absent).sentence == "ort-cpu was exported but not measured: no such device."
    assert verdict(empty.model_copy(update={"plans": {}})).state == "unmeasured"


def test_a_search_is_answered_by_its_choice(golden, report) -> None:
    def answer(
        difference: tuple[float, float, float] = (-0.001, -0.006, 0.003), **changes: Any
    ) -> Verdict:
        run = final_run(difference)
        made = {
            "choice": selection(**changes),
            "comparisons": columns(run).comparisons,
            "speedups": columns(run).speedups,
        }
        made |= {"data": run.data}
        return verdict(with_columns(with_figures(report), made))

    assert answer().state == "ship"
    golden(answer().sentence)
    assert (answer(met=False).state, answer(met=False).sentence) == ("no", "Use openvino-cpu int8.")
    assert answer((-0.02, -0.03, -0.011)).state == "no"
    assert answer((-0.004, -0.02, 0.011)).state == "unclear"
    floating = selection(
        REFERENCE.model_copy(update={"state": "chosen"}),
        sentence="Use ort-cpu f32: 8 bits gain nothing.",
    )
    assert verdict(with_figures(report).model_copy(update={"choice": floating})).state == "no"


def test_the_fastest_float_form_of_any_runtime_counts(report) -> None:
    made = with_figures(report)
    assert fastest_float(made) == "openvino-f32"
    times = {"ort-cpu": [9.0, 10.0, 11.0] * 5, "openvino-bf16": [13.5, 15.0, 16.5] * 5}
    more = [
        Latency(candidate=n, batch=1, sequence="data", samples_ms=ms, rows=15, tokens=99)
        for n, ms in times.items()
    ]
    over = paired(
        with_columns(made, {"latencies": (*columns(made).latencies, *more)}),
        "ort-cpu",
        "openvino-bf16",
    )
    assert over == speedup(1.5, 1.5, 1.5, "openvino-bf16").model_copy(
        update={"candidate": "ort-cpu"}
    )


@pytest.mark.parametrize(
    ("count", "left_out"), [(1, 0), (5, 0), (6, 0), (9, 1), (30, 9), (100, 39), (5000, 2430)]
)
def test_the_interval_of_a_median_is_that_of_the_tables(count: int, left_out: int) -> None:
    """Ranks of the sign test: 10 and 21 of 30 samples, 40 and 61 of 100."""
    median = quantile([float(n) for n in range(count)])
    assert median.value == (count - 1) / 2
    assert (median.low, median.high) == (left_out, count - 1 - left_out)


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of a command, as the program itself reads them."""
    program, name, *arguments = shlex.split(command)
    assert program == "octobert"
    context = GROUP.get_command(typer.Context(GROUP), name).make_context(
        name, arguments, parent=typer.Context(GROUP)
    )
    return dict(context.params)


def test_commands_are_read_by_the_program(report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of packages, of float models, and of variants, whose recipe is the one that was tried."""
    folder = "it's out"
    assert commands.of_candidate(report, folder, "ort-cpu").startswith(
        "octobert predict 'it'\"'\"'s out/ort-cpu' "
    )
    for each in columns(report).footprints:
        if each.candidate != "torch-f32":  # it is the checkpoint itself
            assert parsed(commands.of_candidate(report, folder, each.candidate), monkeypatch)
    choice = selection(recipe={**report.recipe, "choose": {}, "measure": True})
    searched = report.model_copy(update={"choice": choice})
    changed = choice.found[2].variant.model_copy(
        update={"changes": {"calibrate": "mse", "quantize.static.per_channel": False}}
    )
    given = parsed(commands.of_variant(searched, folder, changed), monkeypatch)
    recipe = _recipe.recipe_of(
        given["model"],
        given["task"],
        given["data"],
        {"targets": given["targets"]},
        given["changes"],
    )
    assert (recipe.calibrate.name, recipe.quantize.options, recipe.targets) == (
        "mse",
        {"per_channel": False},
        ("openvino-cpu",),
    )
    assert recipe.data == loading.parse(report.recipe).data
    assert str(given["out"]) == f"{folder}-openvino-cpu-int8-calibrate=mse"
    assert commands.of_variant(searched, folder, choice.best.variant).startswith("octobert predict")


def test_a_candidate_of_an_unknown_kind_has_no_command(report) -> None:
    assert commands.of_candidate(report, "out", "my-runtime-f32") == ""
    broken = report.model_copy(update={"recipe": {"model": "m"}})
    assert commands.of_candidate(broken, "out", "ort-f32") == ""


def test_the_first_screen_has_the_sentence_the_machine_and_what_changes_its_meaning(report) -> None:
    leaked = report.model_copy(
        update={"data": report.data.model_copy(update={"leaked_rows": 3, "dropped_rows": 2})}
    )
    page = markup_of(page_of(leaked))
    first, rest = page[: page.index('class="notes"')], page[page.index('class="notes"') :]
    assert verdict(leaked).sentence in first
    assert report.environment.cpu in first
    assert "3 calibration rows are also evaluation rows" in first
    assert "2 calibration rows were dropped" in rest


def test_what_the_final_measurement_does_not_have_is_not_kept(report) -> None:
    made = with_columns(with_figures(report), {"throughputs": (), "footprints": ()})
    limit = Limit(of="throughput", at_least=1, min_gain=5)
    found, words = checked(made, limit, Limit(of="size", at_most=999)), words_of(made)
    assert [(each.state, words.reason(each, 408)) for each in found] == 3 * [
        ("unmeasured", "the final measurement does not have this figure")
    ]


@pytest.mark.parametrize(
    ("percentile", "rounds", "state", "repeats"),
    [(50, 6, "kept", 0), (90, 30, "unclear", 36), (90, 36, "kept", 0), (99, 100, "unclear", 368)],
)
def test_a_percentile_needs_rounds_enough_to_have_an_upper_end(
    report, percentile: int, rounds: int, state: str, repeats: int
) -> None:
    """The slowest of 100 rounds is below the percentile 99 in 37 % of runs, so it proves nothing about it."""
    made = with_figures(report)
    times = [
        each.model_copy(update={"samples_ms": tuple(9 + n / 1000 for n in range(rounds))})
        for each in columns(made).latencies
    ]
    made = with_columns(made, {"latencies": tuple(times)})
    limit = Limit(of=f"latency@p{percentile}", at_most=20)
    (found,) = checked(made, limit)
    assert found.state == state
    reason = words_of(made).reason(found, 408)
    assert (f"set benchmark.repeats to {repeats} or more" in reason) == (repeats > 0)
    assert Check.of_json(found.model_dump_json()) == found


def test_a_throughput_has_the_noise_of_its_turns(report) -> None:
    turns = tuple(Turn(seconds=1, rows=rows, tokens=rows) for rows in (90, 110, 95, 115))
    timed = Throughput(
        candidate="openvino-cpu", batch=1, sequence="data", streams=1, requests=1, threads=1,
        turns=turns, samples_ms=(1.0,),
    )  # fmt: skip
    made = with_columns(with_figures(report), {"throughputs": (timed,)})
    found = checked(made, *(Limit(of="throughput", at_least=n) for n in (70, 100, 105, 150)))
    assert [(each.state, each.is_clear) for each in found] == [
        ("kept", False), ("unclear", False), ("missed", False), ("missed", True)
    ]  # fmt: skip


def test_a_limit_that_the_final_measurement_misses_ends_with_the_code_of_a_criterion(
    golden,
    report,
) -> None:
    """Every limit of every metric: also a smallest value, another metric, a time; not only the drop of the main metric."""
    made = with_figures(report)
    other = {
        **columns(made).comparisons[0].differences,
        "f1": Estimate(value=-0.03, low=-0.04, high=-0.02),
    }
    made = with_columns(
        made,
        {"comparisons": (columns(made).comparisons[0].model_copy(update={"differences": other}),)},
    )
    limits = {
        "accuracy is at least 0.9": Limit(at_least=0.9),
        "F1 drops by at most 1 point": Limit(of="f1", max_drop=0.01),
        "latency is at most 5 ms": Limit(of="latency", at_most=5),
        "p90 latency is at most 5 ms": Limit(of="latency@p90", at_most=5),
        "size is at most 10 MB": Limit(of="size", at_most=10),
        "latency improves by at least 80 %": Limit(of="latency", min_gain=80),
    }
    for text, limit in limits.items():
        searched = with_limits(made, limit)
        (found,) = judged.checks_of(searched, "openvino-cpu")
        assert (words_of(searched).limit(found.limit), found.state) == (text, "missed")
        with golden.raises(AccuracyError) as caught:
            octobert.check_criteria(searched)
        assert caught.value.exit_code == 9
        assert verdict(searched).state == "no"
    both = with_limits(made, *list(limits.values())[:2])
    with pytest.raises(AccuracyError, match=r"at least 0\.9; F1 drops by at most 1 point"):
        octobert.check_criteria(both)
    kept = with_limits(made, Limit(at_least=0.8), Limit(of="size", at_most=30))
    assert [each.state for each in judged.checks_of(kept, "openvino-cpu")] == ["kept", "kept"]
    octobert.check_criteria(kept)


def test_a_gain_that_is_too_good_is_doubted(report) -> None:
    """Beyond the noise; within it, and of a model that was trained on, nothing is said."""

    def doubts(figures: Report) -> list[str]:
        return [text for text in summary.caveats(figures) if text.startswith("Doubt this gain")]

    better = with_figures(report, loss=(0.012, 0.003, 0.021))
    (doubt,) = doubts(better)
    assert "(openvino-cpu against " in doubt
    assert "accuracy +1.2 points (+0.3 to +2.1)" in doubt
    for check in ("rows are few", "seen in training", "another precision", "padding and prompts"):
        assert check in doubt
    assert doubt.split(":")[0] in markup_of(page_of(better))
    assert not doubts(with_figures(report, loss=(0.012, -0.001, 0.021)))
    assert not doubts(with_figures(report, loss=(-0.012, -0.021, -0.003)))
    assert not doubts(better.replaced(recipe={**better.recipe, "qat": {"epochs": 1}}))
