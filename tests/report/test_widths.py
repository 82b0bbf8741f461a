"""Tables fit the terminal: they show less where it is narrow, and each row is one line at 80 columns."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import RenderableType

from octobert.cli import _show
from octobert.core.estimate import Estimate
from octobert.core.measurements import shapes
from octobert.core.profile import Fallback, Inspection, Operator, Profile, Split
from octobert.core.ranges import Sweep, Swept
from octobert.core.session import Setting, Tried, Tuned
from octobert.report import contents, plans, summary, terminal
from octobert.report.tables import Column, PlainConsole, ReportTable
from tests.support.columns import columns, with_columns
from tests.support.reports import MACHINE, rich_report
from tests.support.selections import selection

WIDTHS = (40, 60, 80, 120, 200)
# What `octobert inspect` may print of a model of twelve layers: two terminals' worth.
_FIRST_SCREEN = 60
REPORT = rich_report()
TIMINGS = summary.timings(REPORT)


def operators(integer: bool, layers: int) -> tuple[Operator, ...]:
    """Layers as a runtime executes them, in 30 types of operators."""
    found = []
    for layer in range(layers):
        for part in (
            "query",
            "key",
            "value",
            "attention",
            "attention_output",
            "ffn_up",
            "activation",
            "ffn_down",
            "ffn_norm",
        ):
            eight = integer and part not in ("attention", "activation", "ffn_norm")
            kind = "product" if eight or not integer else "other"
            type_ = "MatMulIntegerToFloat" if eight else f"Operator{(layer * 9 + len(part)) % 30}"
            precision = "int8" if eight else "f32"
            plain = {
                "type": type_,
                "kind": kind,
                "precision": precision,
                "integer": eight,
                "layer": layer,
                "part": part,
            }
            found.append(Operator(name=f"{layer}.{part}", ms=0.1 + 0.01 * layer, **plain))
    return tuple(found)


def profile(*, integer: bool, layers: int) -> Profile:
    split = Split(
        between_ms=0, total_ms=12, products_ms=8, integer_ms=6, conversions_ms=1, conversions=24
    )
    return Profile(precision="f32", runs=20, split=split, operators=operators(integer, layers))


def inspection(layers: int = 12) -> Inspection:
    fell = [
        Fallback(
            name=f"encoder.layer.{n}.attention.self/MatMul", operator="MatMul", why="one input"
        )
        for n in range(12)
    ]
    plain = {
        "model": "out/ort-cpu/onnx/model_quantized.onnx",
        "target": "ort-cpu",
        "runtime": "ort",
        "version": "1.31.1",
    }
    return Inspection(
        **plain,
        batch=1,
        sequence=128,
        threads=4,
        environment=MACHINE,
        profile=profile(integer=True, layers=layers),
        floating=profile(integer=False, layers=layers),
        products=(),
        matched=0,
        fallbacks=fell,
        answers=("36 of the 48 products ran in integers.",) * 8,
    )


def sweep() -> Sweep:
    values = {f"encoder.layer.{n}.attention.self.query": (-6.1, 5.2) for n in range(12)}
    names = [
        "minmax",
        "mse",
        "entropy",
        *(f"percentile percentile={p}" for p in (99.0, 99.9, 99.99)),
        "ema",
        "aciq",
        "kl bins=2048",
    ]
    swept = [
        Swept(
            calibrator=c,
            setting=c,
            agreement=0.97,
            output_error=0.1 + n / 50,
            signal_to_noise_db=dict.fromkeys(values, 31.5),
        )
        for n, c in enumerate(names)
    ]
    return Sweep(
        target="ort-cpu",
        fidelity="agreement",
        calibration_rows=256,
        judged_rows=96,
        ranges=values,
        swept=swept,
    )


def tuned() -> Tuned:
    options = {
        "graph_optimization_level": "ORT_ENABLE_EXTENDED",
        "execution_mode": "ORT_PARALLEL",
        "enable_cpu_mem_arena": False,
    }
    tried = [
        Tried(setting=Setting(streams=n, runtime_options=options), ratio=1 + n / 10)
        for n in range(1, 6)
    ]
    return Tuned(
        goal="latency",
        setting=tried[0].setting,
        ratio=Estimate(value=0.9, low=0.8, high=0.95),
        default_ms=31.4,
        rows=64,
        tried=tried,
    )


SHOWN: dict[str, Callable[[], RenderableType]] = {
    "a run": lambda: terminal.render(REPORT),
    "a run without measurements": lambda: terminal.render(
        with_columns(REPORT, {"footprints": (), "latencies": ()})
    ),
    "every metric": lambda: contents.tables(REPORT)[1],
    "a choice": lambda: contents.choice_table(selection()),
    "all times": lambda: contents.latency_table(
        TIMINGS, shapes(columns(REPORT).latencies), every=True
    ),
    "a plan": lambda: plans.plan_table(REPORT.plans["ort-cpu"]),
    "a whole plan": lambda: plans.plan_table(REPORT.plans["ort-cpu"], every=True),
    "sensitivity": lambda: plans.sensitivity_table(REPORT.sensitivities["ort-cpu"]),
    "trials": lambda: contents.trials_table(REPORT.searches["ort-cpu"]),
    "a tuning": lambda: terminal.tuned_table(tuned()),
    "layers": lambda: plans.inspection_tables(inspection())[0],
    "types": lambda: plans.inspection_tables(inspection())[1],
    "fallbacks": lambda: plans.inspection_tables(inspection())[2],
    "all layers": lambda: plans.inspection_tables(inspection(2), every=True)[0],
    "calibrators": lambda: plans.sweep_tables(sweep())[0],
    "values of calibrators": lambda: plans.sweep_tables(sweep())[1],
}


def lines_of(part: RenderableType, width: int) -> list[str]:
    stream = io.StringIO()
    PlainConsole(file=stream, width=width).print(part)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("name", SHOWN)
def test_nothing_is_wider_than_the_terminal(name: str) -> None:
    for width in WIDTHS:
        assert max(cell_len(line) for line in lines_of(SHOWN[name](), width)) <= width


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (contents.quality_table(REPORT), 4),
        (contents.latency_table(TIMINGS, shapes(columns(REPORT).latencies)), 4 * 6 - 1),
        (contents.choice_table(selection()), 18),
        (plans.plan_table(REPORT.plans["openvino-cpu"]), 8),
        (plans.sensitivity_table(REPORT.sensitivities["ort-cpu"]), 5),
        (plans.inspection_tables(inspection())[0], 9),
        (plans.inspection_tables(inspection())[1], 9 + 2),
        (plans.sweep_tables(sweep())[0], 9),
        (plans.sweep_tables(sweep())[1], 1),
        (terminal.tuned_table(tuned()), 5),
    ],
)
def test_every_row_is_one_line_at_80_columns(table: ReportTable, rows: int) -> None:
    lines = lines_of(table, 80)
    (rule,) = [n for n, line in enumerate(lines) if line.startswith("─")]
    # What is below the rows wraps, and is no row.
    captions = len(lines_of(table.caption, 80)) if table.caption else 0
    left_out = next((n for n, line in enumerate(lines) if " also shows: " in line), len(lines))
    assert left_out - captions - rule - 1 == rows


def test_what_is_left_out_is_named_with_its_place() -> None:
    table = ReportTable(
        "",
        [Column("name"), Column("much", optional=2), Column("more", optional=1)],
        elsewhere="report.html",
    )
    table.add_row("n" * 20, "x" * 20, "y" * 20)
    assert "also shows" not in "\n".join(lines_of(table, 64))
    assert lines_of(table, 50)[-1] == "report.html also shows: much"
    assert (
        " ".join(" ".join(lines_of(table, 30)[-2:]).split()) == "report.html also shows: much, more"
    )


def test_a_first_screen_of_an_inspection() -> None:
    """A model of twelve layers, of which some are float in places, with its sensitivity and a long search."""
    search = REPORT.searches["ort-cpu"]
    search = search.model_copy(update={"trials": search.trials * 10})
    parts = [
        plans.plan_table(REPORT.plans["ort-cpu"]),
        plans.sensitivity_table(REPORT.sensitivities["ort-cpu"]),
        contents.trials_table(search, every=False),
    ]
    assert sum(len(lines_of(part, 80)) for part in parts) <= _FIRST_SCREEN
    found = inspection()
    runtime = [*terminal.notes(found.answers, ()), *plans.inspection_tables(found)]
    assert sum(len(lines_of(part, 80)) for part in runtime) <= _FIRST_SCREEN
    assert any(re.match(r"\d+ others \(--all\)", line) for line in lines_of(runtime[-2], 80))
    assert "and 8 more products: --all" in lines_of(runtime[-1], 80)


def test_a_terminal_gets_texts_beside_names_and_a_file_gets_lines(capsys, monkeypatch) -> None:
    text = "missing: this build of onnxruntime has no CUDAExecutionProvider"
    _show.item("ort-cuda", text, column=10)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((40, 24)))
    _show.item("ort-cuda", text, column=10)
    whole, *wrapped = capsys.readouterr().out.splitlines()
    assert whole == f"ort-cuda   {text}"
    assert wrapped[0] == "ort-cuda   missing: this build of"
    assert all(line.startswith(" " * 11) for line in wrapped[1:])
    assert max(map(len, wrapped)) <= 40
