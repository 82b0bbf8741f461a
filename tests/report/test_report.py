"""What a reader of a report sees: sentences, warnings, tables for the terminal, and the HTML page."""

from __future__ import annotations

import html as escaping
import io
import re

import pytest
from rich.console import Console, RenderableType

from octobert.core.results import Report, Search, Simulated, StageFacts, Sweep, Swept, Trial
from octobert.core.settings import Setting, Tried, Tuned
from octobert.report import html, summary, terminal

TRIAL = Trial(fallback=("layer.1.ffn",), rows=60, value=0.81, drop=0.004, met=True, saved_ms=1.5, seconds=2.0)
SEARCH = Search(
    metric="accuracy",
    criterion="accuracy drops by at most 0.01",
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


def test_each_target_is_compared_with_float_in_a_sentence(report) -> None:
    sentences = summary.verdicts(report)
    for target in report.plans:
        (own,) = [s for s in sentences if re.match(rf"{target}: accuracy [+-]", s)]
        assert re.search(r"accuracy [+-]0\.\d{4} compared with \S+-f32 \(95 % confidence interval .* p [=<] [\d.]+\)", own)
        assert re.search(r"speed compared with \S+-f32: [\d.]+× at 1 × data, [\d.]+× at 1 × 16\.$", own)


def test_a_search_is_a_sentence() -> None:
    expected = (
        "“accuracy drops by at most 0.01” met on 60 tuning rows (accuracy 0.8100, float 0.8140) after 1 trials in 4 s; "
        "1 parts fall back to float; no faster plan is left"
    )
    assert summary.search_text(SEARCH) == expected
    missed = SEARCH.model_copy(update={"met": False, "taken": TRIAL.model_copy(update={"fallback": ()})})
    assert "NOT met on 60 tuning rows" in summary.search_text(missed)
    assert "no part falls back to float" in summary.search_text(missed)


def test_training_is_a_sentence(report) -> None:
    done = {"steps": 1200, "loss": 0.25, "texts": 3600, "moved": 0.031}
    settings = {"learning_rate": 2e-5, "epochs": 1.0, "batch": 16, "ranges": "learned", "distill": {"share": 0.5}}
    facts = StageFacts(summary=done, seconds=61.0, peak_memory_bytes=0, key="")
    trained = report.model_copy(update={"recipe": {"qat": settings}, "stages": {"qat": facts}})
    assert summary.trainings(trained) == [
        "Quantization-aware training on 3,600 texts: 1,200 steps, final loss 0.2500, 61 s; learning rate 2e-05, 1 epochs, batch "
        "size 16; distillation is 50% of the loss; learned ranges, whose bounds moved by 3.1% of their width (median)."
    ]
    assert summary.trainings(report) == []


def test_an_exported_model_is_compared_with_what_was_trained(report) -> None:
    simulated = Simulated(name="agreement", agreement=0.995, error=0.0123, rows=1200)
    sentence = summary.verdicts(report.model_copy(update={"simulations": {"ort-cpu": simulated}}))[-1]
    assert "on 1,200 rows: agreement 99.50%, root mean square difference of outputs 0.0123." in sentence


def test_what_limits_the_results_is_a_warning(report) -> None:
    data = report.data.model_copy(update={"leaked_rows": 3, "dropped_rows": 2})
    stages = {"evaluate/x": StageFacts(summary={"truncated": 7}, seconds=0.0, peak_memory_bytes=0, key="")}
    absent = {"ort-cpu": "no such device", "torch-f32": "the model came as ONNX"}
    changed = report.model_copy(update={"data": data, "stages": stages, "absent": absent})
    assert summary.warnings(changed) == [
        "3 calibration rows are also evaluation rows (allow_leakage: true), so the scores are too good.",
        "2 calibration rows were dropped because they are also evaluation rows.",
        "7 evaluation texts were longer than the model accepts and were truncated.",
        "ort-cpu was exported but not measured: no such device.",
        "torch-f32 was not measured: the model came as ONNX.",
    ]


def test_the_terminal_shows_every_model_and_every_sentence(report) -> None:
    text = shown(terminal.render(report))
    for model in summary.model_results(report):
        assert model.name in text
    for sentence in (*summary.verdicts(report), *summary.warnings(report)):
        assert sentence in text
    assert "agreement with float" in text


def test_a_report_without_measurements_says_so(report) -> None:
    empty = report.model_copy(update={"footprints": (), "latencies": (), "comparisons": (), "scores": {}})
    assert "Nothing was measured (measure: false)." in shown(terminal.render(empty))
    assert "<h2>Speed</h2>" not in html.page(empty)


def test_the_page_has_every_sentence_and_loads_nothing(report) -> None:
    page = html.page(report.model_copy(update={"searches": {"ort-cpu": SEARCH}}))
    text = escaping.unescape(page)
    for sentence in summary.verdicts(report):
        assert sentence in text
    assert summary.search_text(SEARCH) in text
    assert "layer.1.ffn" in text
    assert not re.search(r"<script|https?://|<link|<img", page)
    assert "Sensitivity: ort-cpu" in text


@pytest.mark.parametrize(
    ("ratio", "decision"),
    [
        (0.9, "stored: 0.900 × default time (95 % confidence interval 0.880 to 0.920)"),
        (1.0, "the default setting stays: no other is significantly faster"),
    ],
)
def test_a_table_of_settings_says_which_is_stored(ratio: float, decision: str) -> None:
    tried = (
        Tried(setting=Setting(threads=2, runtime_options={"spinning": False}), ratio=0.9),
        Tried(setting=Setting(threads=1), ratio=None, problem="the runtime refuses it"),
    )
    result = Tuned(
        goal="latency", setting=tried[0].setting, ratio=ratio, low=0.88, high=0.92, default_ms=1.0, rows=8, tried=tried
    )
    text = shown(terminal.tuned_table(result))
    assert decision in text
    assert "spinning False" in text
    assert "default: the runtime refuses it" in text


def test_a_sweep_marks_the_best_calibrator_of_each_value() -> None:
    swept = (
        Swept(calibrator="minmax", agreement=0.9, output_error=0.2, signal_to_noise_db={"a": 30.0, "b": 20.0}),
        Swept(calibrator="mse", agreement=0.95, output_error=0.1, signal_to_noise_db={"a": 35.0, "b": 25.0}),
        Swept(calibrator="entropy", problem="too few rows"),
    )
    sweep = Sweep(
        target="ort-cpu",
        fidelity="agreement",
        calibration_rows=24,
        judged_rows=40,
        ranges={"a": (-1.0, 2.0), "b": (0.0, 1.0)},
        swept=swept,
    )
    ends, values = (shown(table) for table in terminal.sweep_tables(sweep))
    assert ends.index("mse") < ends.index("minmax") < ends.index("entropy")
    assert "too few rows" in ends
    assert "[-1, 2]" in values
