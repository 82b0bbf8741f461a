"""What a reader of a report sees: sentences, warnings, tables for the terminal, and the HTML page."""

from __future__ import annotations

import datetime
import html as escaping
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from octobert.core import environment, wording
from octobert.core.estimate import Estimate
from octobert.core.limits import Limit
from octobert.core.measurements import Figures, Footprint, Latency, Load, Score, Speedup, shapes
from octobert.core.plan import Decision
from octobert.core.ranges import Sweep, Swept, recommendation
from octobert.core.results import AccuracySearch, Finetuned, Report, Simulated, StageFacts, Trial
from octobert.core.session import Setting, Tried
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.report import contents, plans, summary, terminal, times
from octobert.report.verdict import STATES, verdict
from tests.support.columns import columns, with_columns
from tests.support.pages import markup_of, page_of
from tests.support.reports import rich_report, tuned

BASELINES = (("ort-cpu", "ort"), ("openvino-cpu", "openvino"))
TRIAL = Trial(
    fallback=("layer.1.ffn",), rows=60, value=0.81, drop=0.004, met=True, saved_ms=1.5, seconds=2.0
)
SEARCH = AccuracySearch(
    metric="accuracy",
    criterion=Limit(max_drop=0.01),
    float_value=0.814,
    rows=60,
    met=True,
    taken=TRIAL,
    trials=(TRIAL,),
    unit_saving_ms={"ffn": 0.7},
    tokens=128,
    seconds=4.0,
    ended="no faster plan is left",
)


@pytest.fixture
def report(finished) -> Report:
    return finished[2]


def shown(*parts: RenderableType) -> str:
    """What a wide terminal shows, with single spaces."""
    stream = io.StringIO()
    Console(file=stream, width=400).print(*parts)
    return " ".join(stream.getvalue().split())


def test_a_report_has_the_day_of_its_times_and_keeps_it(
    finished, tmp_path: Path, monkeypatch
) -> None:
    recipe, out, report = finished
    assert report.date is not None
    assert abs(datetime.datetime.now(datetime.UTC).date() - report.date) <= datetime.timedelta(
        days=1
    )
    copy = tmp_path / "out"
    shutil.copytree(out, copy)
    monkeypatch.setattr(environment, "today", lambda: datetime.date(2031, 1, 1))
    runner.run(recipe, copy, executor=inline.run)
    # No key depends on the day: everything is reused.
    assert Report.model_validate_json((copy / "report.json").read_text(encoding="utf-8")) == report


def test_each_target_is_compared_with_float_in_a_sentence(report) -> None:
    sentences = summary.verdicts(report)
    for target in report.plans:
        (own,) = [s for s in sentences if re.match(rf"{target}: accuracy [+-]", s)]
        assert re.search(
            r"accuracy [+-]0\.\d{4} compared with \S+-f32 \(95 % confidence interval .* p [=<] [\d.]+\)",
            own,
        )
        (speed,) = [s for s in sentences if s.startswith(f"{target}: speed ")]
        assert sentences.index(speed) < sentences.index(own)
        assert re.search(r"speed [\d.]+( to [\d.]+)? × \S+-f32", speed)


def sped_up(reference: str, *ratios: tuple[float, float, float]) -> list[Speedup]:
    """Speedups of openvino-cpu at 1 × 128 and 8 × 128."""
    return [
        Speedup(
            candidate="openvino-cpu",
            reference=reference,
            batch=b,
            sequence=128,
            ratio=Estimate(value=r, low=low, high=high),
        )
        for b, (r, low, high) in zip((1, 8), ratios, strict=False)
    ]


def timing(*speedups: Speedup) -> times.Timing:
    """The timing of openvino-cpu."""
    samples = [
        Latency(
            candidate="openvino-cpu",
            batch=b,
            sequence=128,
            samples_ms=(1.0,) * 5,
            rows=5,
            tokens=640,
        )
        for b in (1, 8)
    ]
    footprint = Footprint(
        candidate="openvino-cpu",
        load_ms=1,
        size_bytes=1,
        peak_memory_bytes=1,
        precision="f32",
        threads=2,
        device="CPU",
    )
    figures = Figures(
        model="openvino-cpu", times=tuple(samples), footprint=footprint, speedups=speedups
    )
    return times.timings([figures], {})[0]


def test_the_first_line_names_the_fastest_float_form(golden) -> None:
    slow = sped_up("openvino-f32", (3.1, 3.0, 3.2), (3.79, 3.7, 3.9))
    level = sped_up("openvino-bf16", (1.01, 0.97, 1.05), (0.93, 0.9, 0.96))
    golden("\n".join(times.speed(timing(*slow, *level))))
    partly = sped_up("openvino-bf16", (1.3, 1.2, 1.4), (1.01, 0.97, 1.05))
    golden("\n".join(times.speed(timing(*slow, *partly))))


def test_a_slower_float_form_is_no_rival(golden) -> None:
    fast = sped_up("openvino-f32", (1.3, 1.2, 1.4))
    golden("\n".join(times.speed(timing(*fast, *sped_up("openvino-bf16", (2.0, 1.9, 2.1))))))
    assert times.speed(timing()) == []


def test_a_float_form_that_is_closer_to_float_is_named(report) -> None:
    (shape, *_) = shapes(columns(report).latencies)
    compared = next(c for c in columns(report).comparisons if c.candidate == "openvino-cpu")
    rival = compared.model_copy(
        update={"candidate": "openvino-bf16", "output_error": compared.output_error / 2}
    )
    level = [
        Speedup(
            candidate="openvino-cpu",
            reference=name,
            batch=shape.batch,
            sequence=shape.sequence,
            ratio=Estimate(value=ratio, low=ratio - 0.1, high=ratio + 0.1),
        )
        for name, ratio in (("openvino-f32", 2.0), ("openvino-bf16", 1.0))
    ]
    changed = with_columns(
        report, {"speedups": tuple(level), "comparisons": (*columns(report).comparisons, rival)}
    )
    (sentence,) = [
        s
        for s in summary.verdicts(changed)
        if "openvino-cpu is not clearly faster than openvino-bf16" in s
    ]
    assert "openvino-bf16 is also closer to float (output error " in sentence


def test_noise_is_said(golden) -> None:
    def latency(sequence: int | str, *samples: float) -> Latency:
        return Latency(
            candidate="ort-f32", batch=8, sequence=sequence, samples_ms=samples, rows=40, tokens=40
        )

    calm, wild = (1.0,) * 30, (1.0,) * 28 + (6.0, 6.0)
    idle = Load(cores=4, others=0.1, stolen=0.0)
    assert times.noise([latency(128, *calm), latency("data", *wild)], idle) == []
    (varies,) = times.noise([latency(128, *wild)], idle)
    golden(varies)
    (busy,) = times.noise([latency(128, *calm)], Load(cores=4, others=1.8, stolen=0.05))
    golden(busy)


def test_only_a_plan_that_quantizes_is_called_int8(report) -> None:
    def precision(plan: object) -> str:
        changed = report.model_copy(update={"plans": {**report.plans, "ort-cpu": plan}})
        return summary.precision(changed, changed.of("ort-cpu"))

    plan = report.plans["ort-cpu"]
    floating = tuple(decision.model_copy(update={"quantizer": None}) for decision in plan.decisions)
    assert precision(plan) == "int8 + f32"
    assert precision(plan.model_copy(update={"float_parts": "float16"})) == "int8 + f16"
    assert precision(plan.model_copy(update={"decisions": floating})) == "f32"
    assert (
        precision(plan.model_copy(update={"decisions": floating, "float_parts": "float16"}))
        == "f16"
    )


def test_a_quick_run_says_so(golden, report) -> None:
    quick = report.model_copy(update={"recipe": {**report.recipe, "quick": True}})
    golden(summary.caveats(quick)[0])


def test_a_float_model_that_has_learned_nothing_is_named(golden, report) -> None:
    comparison = next(c for c in columns(report).comparisons if c.candidate == "ort-cpu")
    score = Score(metric="accuracy", value=0.5, low=0.4, high=0.6, rows=40, chance=0.5)

    def said(score: Score, **changes: Any) -> list[str]:
        other = {"fidelity_chance": None, **changes}
        return summary.chance({"ort-f32": (score,)}, comparison.model_copy(update=other))

    golden("\n".join(said(score)))
    golden("\n".join(said(score.model_copy(update={"value": 0.55}))))
    assert said(score.model_copy(update={"value": 0.9, "low": 0.8})) == []
    assert said(score.model_copy(update={"chance": None})) == []
    nothing = score.model_copy(
        update={"metric": "f1", "value": 0.0, "low": 0.0, "high": 0.0, "chance": 0.0}
    )
    golden("\n".join(said(nothing, metric="f1")))
    golden("\n".join(said(score, fidelity_chance=1.0, fidelity=1.0)))
    changed = with_columns(report, {"scores": {**columns(report).scores, "ort-f32": (score,)}})
    assert any(
        sentence.startswith("The float model ort-f32 scores no better")
        for sentence in [*summary.caveats(changed), *summary.limitations(changed)]
    )


def test_every_speedup_has_an_interval(report) -> None:
    assert {(s.candidate, s.reference) for s in columns(report).speedups} >= {
        (t, f"{r}-f32") for t, r in BASELINES if t in report.plans
    }
    assert all(s.ratio.low <= s.ratio.value <= s.ratio.high for s in columns(report).speedups)
    one = columns(report).speedups[0]
    text, page = shown(terminal.render(report)), page_of(report)
    assert wording.estimate_text(one.ratio) in text
    assert wording.estimate_text(one.ratio) in page


def test_no_word_of_a_table_is_cut_however_narrow_the_console(report) -> None:
    stream = io.StringIO()
    tables = [
        contents.quality_table(report),
        contents.latency_table(timings_of(report), shapes(columns(report).latencies)),
    ]
    Console(file=stream, width=80).print(*tables)
    text = stream.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for figures, _ in report.timed:
        assert figures.model in text


def narrow(*parts: RenderableType) -> str:
    """What a terminal of 80 columns shows."""
    stream = io.StringIO()
    Console(file=stream, width=80).print(*parts)
    return stream.getvalue()


def test_layers_that_are_alike_are_shown_once_and_no_rows_look_alike(report) -> None:
    """Twelve layers, of which the last is float in one place."""
    one = report.plans["ort-cpu"]
    first = [decision for decision in one.decisions if decision.site.layer == 0]

    def layer(number: int) -> list[Decision]:
        moved = []
        for decision in first:
            site = decision.site
            module = site.module.replace("layer.0.", f"layer.{number}.")
            moved.append(replaced(decision, site=replaced(site, module=module, layer=number)))
        return moved

    last = [
        replaced(d, quantizer=None, reason="too sensitive") if d.quantizer else d for d in layer(11)
    ]
    decisions = [d for number in range(11) for d in layer(number)] + last
    deep = one.model_copy(update={"decisions": tuple(decisions)})
    text = narrow(plans.plan_table(deep))
    usual, others = text.split("encoder.layer.11 as 0–10, but")
    assert "encoder.layer.0–10" in usual
    assert "too sensitive" in others
    modules = {decision.site.module for decision in first}
    assert len(text.splitlines()) < 2 * len(modules) + 25
    # Modules have a dot in their names, the second lines of long cells do not.
    keys = [line.split()[0] for line in usual.splitlines() if re.match(r"  +\w+\.\w", line)]
    assert sorted(keys) == sorted({module.split("layer.0.")[1] for module in modules})
    # Only the modules that are float in the last layer alone.
    assert {
        line.split()[0] for line in others.splitlines() if line.startswith("  ") and line.strip()
    } < set(keys)
    whole = narrow(plans.plan_table(deep, every=True))
    assert [f"encoder.layer.{n}" in whole for n in range(12)] == [True] * 12
    for shown_text in (text, whole):
        assert "…" not in shown_text
        assert max(map(len, shown_text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("errors", "name"),
    [
        ({"minmax": 0.2, "mse": 0.1}, "mse"),
        ({"minmax": 0.104, "mse": 0.1}, "minmax"),
        ({"minmax": 0.1, "mse": 0.2}, "minmax"),
        ({"minmax": None, "mse": 0.2}, "mse"),
        ({"minmax": None}, None),
    ],
)
def test_a_sweep_recommends_with_a_reason(
    golden, errors: dict[str, float | None], name: str | None
) -> None:
    swept = [
        Swept(calibrator=c, setting=c, agreement=0.9, output_error=error)
        for c, error in errors.items()
    ]
    chosen, why = recommendation(swept, "minmax")
    assert chosen == name
    golden(why)


def replaced(model: Any, **changes: Any) -> Any:
    """A copy of frozen data with other values."""
    return model.model_copy(update=changes)


def test_a_text_wider_than_the_console_is_folded_not_cut() -> None:
    table = terminal.table_of("", ("name",), ("n",))
    table.add_row("x" * 200, "12345")
    text = narrow(table)
    assert text.count("x") == 200
    assert "12345" in text


def timings_of(report: Report) -> list[times.Timing]:
    return summary.timings(report)


def test_a_search_is_a_sentence(golden) -> None:
    golden(summary.search_text(SEARCH))
    missed = SEARCH.model_copy(
        update={"met": False, "taken": TRIAL.model_copy(update={"fallback": ()})}
    )
    golden(summary.search_text(missed))


def test_training_is_a_sentence(golden, report) -> None:
    done = {"steps": 1200, "loss": 0.25, "texts": 3600, "moved": 0.031}
    settings = {
        "learning_rate": 2e-5,
        "epochs": 1.0,
        "batch": 16,
        "ranges": "learned",
        "distill": {"share": 0.5},
    }
    facts = StageFacts(summary=done, seconds=61.0, peak_memory_bytes=0, key="")
    trained = report.model_copy(update={"recipe": {"qat": settings}, "stages": {"qat": facts}})
    golden("\n".join(summary.trainings(trained)))
    assert summary.trainings(report) == []


def test_an_exported_model_is_compared_with_what_was_trained(golden, report) -> None:
    simulated = Simulated(name="agreement", agreement=0.995, error=0.0123, rows=1200)
    (sentence,) = summary.outcomes(
        report.model_copy(update={"simulations": {"ort-cpu": simulated}})
    )
    golden(sentence)


def test_what_limits_the_results_is_a_warning(golden, report) -> None:
    data = report.data.model_copy(update={"leaked_rows": 3, "dropped_rows": 2})
    stages = {
        "evaluate/x": StageFacts(summary={"truncated": 7}, seconds=0.0, peak_memory_bytes=0, key="")
    }
    absent = {"ort-cpu": "no such device", "torch-f32": "the model came as ONNX"}
    changed = with_columns(
        report,
        {
            "data": data,
            "stages": stages,
            "absent": absent,
            "latencies": (),
            "load": None,
            "comparisons": (),
        },
    )
    golden("\n".join([*summary.caveats(changed), *summary.limitations(changed)]))


def test_the_terminal_shows_the_answer_every_model_what_limits_the_figures_and_three_notes(
    report,
) -> None:
    answer, text = verdict(report), shown(terminal.render(report))
    for figures, _ in report.timed:
        assert figures.model in text
    assert text.startswith(f"{STATES[answer.state][0]} {answer.sentence}")
    for sentence in summary.caveats(report):
        assert f"! {sentence}" in text
    assert text.count("• ") == 3
    others = {*summary.verdicts(report), *summary.limitations(report)}
    assert sum(sentence in text for sentence in others) == 3
    assert text.endswith(f"… and {len(others) - 3} more notes: report.html")


def test_a_language_model_that_is_read_as_an_encoder_is_said_to_be_one(golden, report) -> None:
    """On the terminal as in the page: nothing else tells a sparse encoder."""
    assert not report.model.left_out
    model = report.model.model_copy(update={"left_out": "BertForMaskedLM"})
    sentence = summary.caveats(report.model_copy(update={"model": model}))[0]
    golden(sentence)


def test_a_report_without_measurements_says_so(golden, report) -> None:
    recipe = {**report.recipe, "measure": False}
    empty = with_columns(
        report,
        {
            "recipe": recipe,
            "footprints": (),
            "latencies": (),
            "comparisons": (),
            "scores": {},
        },
    )
    golden(verdict(empty).sentence)
    assert shown(terminal.render(empty)).startswith(f"? {verdict(empty).sentence}")
    assert "<h2>Speed</h2>" not in page_of(empty)


def test_the_page_has_every_sentence_and_loads_nothing(report) -> None:
    page = markup_of(page_of(report.model_copy(update={"searches": {"ort-cpu": SEARCH}})))
    text = escaping.unescape(page)
    for sentence in summary.verdicts(report):
        assert sentence in text
    assert summary.search_text(SEARCH) in text
    assert "layer.1.ffn" in text
    assert not re.search(r"<script|https?://|<link|<img", page)
    assert "layers × parts of ort-cpu" in text


@pytest.mark.parametrize("ratio", [0.9, 1.0])
def test_a_table_of_settings_says_which_is_stored(golden, ratio: float) -> None:
    tried = (
        Tried(
            setting=Setting(threads=2, runtime_options={"session.intra_op.allow_spinning": False}),
            ratio=0.9,
        ),
        Tried(setting=Setting(threads=1), ratio=None, problem="the runtime refuses it"),
    )
    interval = Estimate(value=ratio, low=0.88, high=0.92)
    result = tuned(tried[0].setting, ratio=interval, tried=tried)
    golden(shown(terminal.tuned_table(result)))


def test_a_sweep_marks_the_best_calibrator_of_each_value() -> None:
    swept = (
        Swept(
            calibrator="minmax",
            setting="minmax",
            agreement=0.9,
            output_error=0.2,
            signal_to_noise_db={"a": 30.0, "b": 20.0},
        ),
        Swept(
            calibrator="mse",
            setting="mse",
            agreement=0.95,
            output_error=0.1,
            signal_to_noise_db={"a": 35.0, "b": 25.0},
        ),
        Swept(calibrator="entropy", setting="entropy", problem="too few rows"),
    )
    sweep = Sweep(
        target="ort-cpu",
        fidelity="agreement",
        calibration_rows=24,
        judged_rows=40,
        ranges={"a": (-1.0, 2.0), "b": (0.0, 1.0)},
        swept=swept,
    )
    ends, values = (shown(table) for table in plans.sweep_tables(sweep, every=True))
    assert ends.index("mse") < ends.index("minmax") < ends.index("entropy")
    assert "too few rows" in ends
    assert "[-1, 2]" in values


def test_tuning_rows_that_the_model_may_know_or_that_are_few_are_told(golden) -> None:
    report = rich_report()
    data = report.data.model_copy(
        update={"calibration_rows": 40, "tuning_rows": 40, "tuning_split": "train[:80]"}
    )
    golden("\n".join(summary.limitations(report.model_copy(update={"data": data}))))
    other = data.model_copy(
        update={"calibration_rows": 256, "tuning_rows": 1000, "tuning_split": "validation"}
    )
    assert "tuning rows" not in " ".join(
        summary.limitations(report.model_copy(update={"data": other}))
    )


def test_size_is_compared_with_the_weights_that_the_user_has() -> None:
    report = rich_report()
    assert summary.sizes(report) == []
    size = next(
        each.size_bytes for each in columns(report).footprints if each.candidate == "ort-cpu"
    )
    own = report.model_copy(
        update={"model": report.model.model_copy(update={"source_bytes": round(1.8 * size)})}
    )
    (told,) = [sentence for sentence in summary.sizes(own) if sentence.startswith("ort-cpu: ")]
    assert f"1.8 × smaller than the weights of your model ({1.8 * size / 1e6:.3g} MB)" in told
    assert "the weights of your model have" in shown(contents.quality_table(own))
    assert "The weights of your model have" in page_of(own)


def test_fine_tuning_that_ends_at_chance_says_so(golden, report) -> None:
    score = Score(metric="accuracy", value=0.56, low=0.49, high=0.63, rows=200, chance=0.55)
    result = Finetuned(trained={"steps": 40, "loss": 0.69}, data=report.data, scores=(score,))
    golden(terminal.finetuned(result).caption)
    better = score.model_copy(update={"low": 0.8, "value": 0.85})
    learned = result.model_copy(update={"scores": (better,)})
    assert terminal.finetuned(learned).caption in (None, "")
