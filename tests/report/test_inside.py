"""Sections on the inside of models: what each cell says, what comes first, and that pages of runs without them have none."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from octobert.core.evidence import Activation, Curve, Evidence, Executed, Histogram, Smoothed
from octobert.core.plan import Decision, Quantizer, Site
from octobert.core.results import Sensitivity
from octobert.report.page import ShownRun
from octobert.report.page.sections import inside, outcome
from tests.support.pages import markup_of, page_of
from tests.support.reports import rich_evidence, rich_report, rich_run
from tests.support.selections import selection


@pytest.fixture(scope="module")
def run() -> ShownRun:
    return rich_run()


def cells_of(run: ShownRun, target: str) -> dict[tuple[int | None, str], dict[str, Any]]:
    section = inside.layers(run)
    assert section is not None
    assert section.data is not None
    (found,) = [each for each in section.data["targets"] if each["name"] == target]
    return {(cell["layer"], cell["part"]): cell for cell in found["cells"]}


def test_a_cell_has_its_plan_its_time_and_its_error(run) -> None:
    cell = cells_of(run, "openvino-cpu")[0, "ffn_up"]
    sensitivity = run.report.sensitivities["openvino-cpu"].values
    errors = [each.output_error for each in sensitivity if (each.layer, each.part) == (0, "ffn_up")]
    (execution,) = [each for each in run.evidence.executions if each.candidate == "openvino-cpu"]
    (part,) = [each for each in execution.parts if (each.layer, each.part) == (0, "ffn_up")]
    assert (cell["sign"], cell["ms"], cell["integer"]) == ("8", part.ms, part.integer)
    assert cell["error"] == max(errors)
    assert cell["share"] == pytest.approx(part.ms / execution.total_ms)
    assert cell["why"] == "linear.input, linear.weight in 8 bits: linear layers are 8-bit"


def test_a_cell_says_why_it_is_float(run) -> None:
    cells = cells_of(run, "ort-cpu")
    assert (cells[2, "ffn_down"]["sign"], cells[0, "attention"]["sign"]) == ("f", "f")
    assert (
        cells[0, "attention"]["why"] == "scores.query stays float: 8-bit attention is slower here"
    )


def decision(role: str, dtype: str | None) -> Decision:
    site = Site(role=role, part="ffn_up", module="m", layer=0, node="n", input=0, value="x")
    return Decision(
        site=site,
        quantizer=Quantizer(dtype=dtype, symmetric=True) if dtype else None,
        reason="because",
    )


RAN = Executed(
    layer=0, part="ffn_up", ms=1.0, integer=0.0, types=("Gemm f32",), why="its activations are int8"
)


@pytest.mark.parametrize(
    ("decisions", "ran", "state"),
    [
        (
            [("linear.input", "uint8"), ("linear.weight", "int8"), ("linear.output", None)],
            None,
            "int8",
        ),
        ([("linear.input", "uint8"), ("linear.weight", "int8")], RAN, "fallback"),
        ([("linear.input", "uint16"), ("linear.weight", "int8")], None, "int16"),
        ([("linear.input", None), ("linear.weight", "int8")], None, "weights"),
        ([("context.probs", "uint8"), ("context.value", None)], None, "partly"),
        ([("linear.input", None), ("linear.weight", None)], RAN, "float"),
        ([("norm.output", "uint8")], None, "int8"),
        ([], RAN, ""),
    ],
)
def test_operands_decide_what_is_8_bit(decisions: list, ran: Executed | None, state: str) -> None:
    assert inside._state([decision(*each) for each in decisions], ran) == state


def test_parts_outside_of_layers_are_found_under_the_names_of_the_profile(finished) -> None:
    _, out, report = finished
    evidence = Evidence.model_validate_json((out / "evidence.json").read_text(encoding="utf-8"))
    cells = cells_of(ShownRun("m", report, evidence), "ort-cpu")
    assert cells[None, "classifier"]["sign"] == "f"
    assert cells[None, "classifier"]["ms"] is not None
    (execution,) = [each for each in evidence.executions if each.candidate == "ort-cpu"]
    assert sum(cell["ms"] or 0 for cell in cells.values()) == pytest.approx(execution.total_ms)


def activation(value: str, clipped: float, *, quantized: bool = True) -> Activation:
    return Activation(
        value=value,
        module=f"m.{value}",
        role="linear.input",
        part="ffn_up",
        layer=0,
        minimum=-1,
        maximum=1,
        histogram=Histogram(low=-1, high=1, counts=(1, 2)),
        intervals={"ort-cpu": (-1, 1)} if quantized else {},
        clipped={"ort-cpu": clipped} if quantized else {},
    )


def test_the_activations_that_lose_most_come_first(run) -> None:
    found = (
        activation("float", 0, quantized=False),
        activation("a", 0.0),
        activation("b", 0.3),
        activation("c", 0.02),
    )
    evidence = run.evidence.model_copy(update={"activations": found, "observed": 9})
    section = inside.ranges(ShownRun("m", run.report, evidence))
    assert [each["value"] for each in section.data["activations"]] == ["b", "c", "a", "float"]
    assert "5 of 9 activations are left out" in " ".join(
        markup_of(page_of(run.report, evidence)).split()
    )


def test_the_group_that_gained_most_comes_first(run) -> None:
    plain = {"transform": "smoothquant", "kind": "norm"}
    calm = Smoothed(**plain, module="calm", before=(2.0, 1.0, 1.0), after=(1.0, 1.0, 1.0))
    wild = Smoothed(**plain, module="wild", before=(90.0, 1.0, 1.0), after=(1.5, 1.0, 1.0))
    section = inside.ranges(
        ShownRun("m", run.report, run.evidence.model_copy(update={"smoothed": (calm, wild)}))
    )
    assert [each["name"].split()[0] for each in section.data["groups"]] == ["wild", "calm"]


def test_curves_are_drawn_point_by_point(run) -> None:
    curve = Curve(
        name="qat",
        steps=(1, 2, 3),
        values={"loss": (0.9, 0.5, 0.4), "learning rate": (1e-5, 2e-5, 0.0)},
    )
    section = outcome.training(ShownRun("m", run.report, Evidence(curves=(curve,))))
    (drawn,) = section.data["curves"]
    assert drawn["title"] == "Quantization-aware training"
    assert drawn["steps"] == curve.steps
    assert drawn["values"] == curve.values


def test_trials_are_those_of_the_search_with_the_seconds_spent(run) -> None:
    (chart,) = outcome.trials(run).data["charts"]
    search = run.report.searches["ort-cpu"]
    assert [each["value"] for each in chart["trials"]] == [each.saved_ms for each in search.trials]
    assert [each["met"] for each in chart["trials"]] == [each.met for each in search.trials]
    assert [each["seconds"] for each in chart["trials"]] == pytest.approx(
        np.cumsum([each.seconds for each in search.trials])
    )


def test_a_single_trial_is_told_and_not_drawn(run) -> None:
    search = run.report.searches["ort-cpu"]
    once = search.model_copy(update={"trials": search.trials[:1]})
    section = outcome.trials(ShownRun("m", rich_report(searches={"ort-cpu": once})))
    assert section.data == {"charts": []}
    assert section.values["searches"] == {"ort-cpu": once}


def test_variants_of_auto_are_trials_where_they_were_timed() -> None:
    plain = selection()
    numbered = [
        each.model_copy(update={"number": n}) for n, each in enumerate(plain.found, start=1)
    ]
    choice = plain.model_copy(
        update={"found": tuple(sorted(numbered, key=lambda each: -each.number))}
    )
    (chart,) = outcome.trials(ShownRun("m", rich_report(searches={}, choice=choice))).data["charts"]
    timed = [each for each in numbered if each.time_ms is not None]
    assert [each["value"] for each in chart["trials"]] == [each.time_ms.value for each in timed]
    assert sum(each["met"] for each in chart["trials"]) == sum(
        each.state in ("chosen", "admissible") for each in timed
    )


def test_what_fell_back_is_named_with_its_reason(run) -> None:
    text = " ".join(markup_of(page_of(run.report, run.evidence)).split())
    assert "8-bit in the file, computed in float" in text
    assert "its input is not 8-bit" in text
    section = inside.executed(run)
    assert [each.layer for each in section.values["fallbacks"]["ort-cpu"]] == [2]


def test_a_run_without_evidence_has_no_such_sections() -> None:
    run = ShownRun("m", rich_report(searches={}))
    assert [
        section(run)
        for section in (inside.executed, inside.ranges, outcome.training, outcome.trials)
    ] == [None] * 4
    assert inside.layers(run) is not None, "plans are in the report"


def test_names_of_modules_stay_texts() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    plain = rich_evidence()
    named = plain.activations[0].model_copy(update={"module": hostile})
    execution = plain.executions[0].model_copy(
        update={"candidate": hostile, "sentences": (hostile,)}
    )
    evidence = plain.model_copy(update={"activations": (named,), "executions": (execution,)})
    assert "<img" not in page_of(rich_report(), evidence)


def test_an_unknown_error_is_no_error_of_zero(run) -> None:
    """Of a graph that PyTorch cannot run: no column of errors, and no figure for all values together."""
    unknown = Sensitivity(rows=0, together=0.0, values=(), unknown="PyTorch cannot run an operator")
    report = run.report.model_copy(
        update={"sensitivities": dict.fromkeys(run.report.plans, unknown)}
    )
    section = inside.layers(dataclasses.replace(run, report=report))
    assert not any(target["sensitive"] for target in section.data["targets"])
    assert all(
        cell["error"] is None for target in section.data["targets"] for cell in target["cells"]
    )
