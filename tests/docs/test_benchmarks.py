"""The page of speed figures is what the results make, and the results are what was measured."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import speed
import speed_cases
import speed_here
import speed_measuring
import speed_page
import speed_results
from speed_results import Compared, Loop, Made, Ratio, Result, Singles, Spread, Throughput
from speed_systems import System

from octobert.core.errors import DataError, OctobertError

FILES = sorted(speed_results.RESULTS.glob("*.json"))
# Figures in the files have four digits.
ROUNDED = 5e-4
# Ends of two bootstrap intervals of 1,000 resamples with other random numbers, relative to the value.
RESAMPLED = 0.02


def made(
    kind: str = "avx2", features: tuple[str, ...] = ("avx2",), ratio: float = 0.8, **changes: Any
) -> Result:
    """A result with four systems, in which both targets take `ratio` of the time of all others."""
    names = {
        "octobert openvino-cpu": ("NNCF", "OpenVINO"),
        "octobert ort-cpu": ("onnxruntime quantize_dynamic", "ONNX Runtime"),
    }
    pairs = [(target, rival) for target, rivals in names.items() for rival in rivals]
    times = {
        name: {"1 × 16": Spread(median=10 * ratio if name in names else 10)}
        for name in (*names, *dict(pairs[::2]).values())
    }
    compared = [
        Compared(
            target=target,
            rival=rival,
            shapes={"1 × 16": Ratio(value=ratio)},
            mean=Ratio(value=ratio),
        )
        for target, rival in pairs
    ]
    fields = {
        "kind": kind,
        "model": "base",
        "title": "BERT-base",
        "date": "2026-11-22",
        "cpu": "a CPU",
        "features": features,
        "cores": 2,
        "systems": {name: Made(kind="INT8", float_parts="f32") for name in times},
        "shapes": times,
        "compared": tuple(compared),
    }
    return Result(**{**fields, **changes})


def test_the_page_is_what_the_results_make() -> None:
    """`python benchmarks/speed_page.py` writes it."""
    assert speed_page.PAGE.read_text(encoding="utf-8") == speed_page.page(
        speed_results.read_all(speed_results.RESULTS)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_results_are_whole_and_name_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert speed_results.without_paths(text) == text
    assert json.loads(text)["schema_version"] == 1
    result = speed_results.read(path)
    for each in result.compared:
        for shape, found in each.shapes.items():
            medians = [result.shapes[name][shape].median for name in (each.target, each.rival)]
            assert found.value == pytest.approx(medians[0] / medians[1], rel=2 * ROUNDED)


@pytest.mark.parametrize(
    ("features", "kind"),
    [
        (("avx2",), "avx2"),
        (("avx2", "avx512f"), "avx512"),
        (("avx2", "avx_vnni"), "avx-vnni"),
        (("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16"), "avx512-vnni"),
        (("avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"), "amx"),
        (("asimddp", "i8mm"), "arm-i8mm"),
        ((), "apple-m4"),
    ],
)
def test_the_kind_of_a_cpu_is_its_fastest_feature(features: tuple[str, ...], kind: str) -> None:
    assert speed_results.kind_of(features, "Apple M4") == kind


def test_ratios_are_those_of_medians_with_intervals_over_the_rounds() -> None:
    generator = np.random.default_rng(1)
    noise = generator.lognormal(0, 0.3, (2, 60))
    times = {"octobert ort-cpu": {"1 × 16": 3 + noise[0], "8 × 64": 9 + noise[1]}}
    times["ONNX Runtime"] = {"1 × 16": 4 + generator.lognormal(0, 0.3, 60), "8 × 64": 10 + noise[1]}
    found = speed_results.compared("octobert ort-cpu", "ONNX Runtime", times)
    own, rival = times.values()
    ratios = {shape: np.median(own[shape]) / np.median(rival[shape]) for shape in own}
    assert {shape: each.value for shape, each in found.shapes.items()} == pytest.approx(
        ratios, rel=ROUNDED
    )
    assert found.worst == max(ratios, key=lambda shape: ratios[shape])
    assert found.mean is not None
    assert found.mean.value == pytest.approx(np.mean(list(ratios.values())), rel=ROUNDED)
    means = []
    for _ in range(1000):
        rows = [generator.integers(0, 60, 60) for _ in ratios]
        drawn = [
            np.median(own[s][i]) / np.median(rival[s][i]) for s, i in zip(ratios, rows, strict=True)
        ]
        means.append(np.mean(drawn))
    assert (found.mean.low, found.mean.high) == pytest.approx(
        np.percentile(means, [2.5, 97.5]), rel=RESAMPLED
    )


def test_single_texts_are_compared_text_by_text() -> None:
    rival = [1.0, 10.0, 100.0]
    found = speed_results.per_text([0.5 * ms for ms in rival], rival)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    change = speed_results.change_of_accuracy(
        [True, True, False, False], [True, False, False, False]
    )
    assert change.value == 0.25
    assert change.low == 0.0


def test_the_section_begins_with_float_where_int8_is_slower() -> None:
    slow, fast = made(ratio=1.2), made(ratio=0.8, model="minilm", title="MiniLM")
    assert speed_page.verdict([slow]).startswith(
        "**INT8 of `openvino-cpu` is slower than OpenVINO in float: 1.20 times its time"
    )
    assert "1.20 times its time for BERT-base on 2 cores" in speed_page.verdict([slow, fast])
    assert speed_page.verdict([fast]).startswith(
        "INT8 of `openvino-cpu` is faster than OpenVINO in float at every shape: 0.80"
    )
    assert "slower for BERT-base on 2 cores at 1 × 53." in speed_page.verdict(
        [with_slow_shape(0.98)]
    )
    assert "at every shape" in speed_page.verdict([with_slow_shape(low=0.9)])
    wide = Compared(
        target="octobert ort-cpu",
        rival="ONNX Runtime",
        shapes={},
        mean=Ratio(value=1.2, low=0.8, high=2.0),
    )
    assert "`ort-cpu` is not clearly faster than ONNX Runtime in float: 1.20" in speed_page.verdict(
        [made(compared=(wide,))]
    )
    assert speed_page.verdict([made(compared=())]).startswith("OpenVINO in float was not measured")


def with_slow_shape(low: float) -> Result:
    """A result in which one shape takes 1.05 of the time of float, with this lower end of its interval, relative to 1.05."""
    shapes = {"1 × 16": Ratio(value=0.7), "1 × 53": Ratio(value=1.05, low=1.05 * low, high=1.1)}
    pairs = (("octobert openvino-cpu", "OpenVINO"), ("octobert ort-cpu", "ONNX Runtime"))
    return made(
        compared=tuple(
            Compared(target=t, rival=r, shapes=shapes, mean=Ratio(value=0.87)) for t, r in pairs
        )
    )


def test_the_fastest_rival_counts() -> None:
    """OpenVINO's own default is bfloat16 where the CPU has it."""
    shapes = {"1 × 16": Ratio(value=1.3)}
    faster = Compared(
        target="octobert openvino-cpu", rival="OpenVINO, bf16", shapes=shapes, mean=shapes["1 × 16"]
    )
    result = made(ratio=0.8)
    result = made(ratio=0.8, compared=(*result.compared, faster))
    assert speed_page.verdict([result]).startswith("**INT8 of `openvino-cpu` is slower")
    assert "1.30, 1.30 at 1 × 16 (bf16)" in speed_page.page([result])


def test_a_run_replaces_that_of_its_kind_and_adds_a_section_for_another(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for result in (made(ratio=0.8), made(ratio=0.6), made("amx", ("avx2", "amx_int8"), 0.5)):
        speed_results.write(result, tmp_path)
    speed_page.merge(tmp_path, page)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "speed-amx-base-2-cores.json",
        "speed-avx2-base-2-cores.json",
    ]
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## Summary",
        "## AMX",
        "## AVX2 alone",
    ]
    assert "0.60" in page.read_text(encoding="utf-8")
    assert "0.80" not in page.read_text(encoding="utf-8")


def test_texts_have_their_tables() -> None:
    target, rival = "octobert openvino-cpu", "NNCF"
    ratios = {
        target: {rival: Ratio(value=0.7, low=0.65, high=0.75)},
        speed_results.STATIC: {rival: Ratio(value=0.6, low=0.55, high=0.65)},
    }
    single = Singles(texts=3, systems={target: Spread(median=7)}, ratios=ratios)
    loops = {
        "NNCF: padded": Loop(rate=Spread(median=15)),
        "NNCF, bf16: padded": Loop(rate=Spread(median=20)),
        f"{target}: throughput": Loop(
            rate=Spread(median=90), accuracy=0.8186, change=Ratio(value=-0.01, low=-0.02, high=0)
        ),
    }
    text = speed_page.page(
        [made(singles={"mrpc": single}, throughput={"mrpc": Throughput(rows=3, loops=loops)})]
    )
    assert "| mrpc | 0.60 [0.55, 0.65] | 0.70 [0.65, 0.75] | 4.50 |" in text
    assert "| 90.0 |  | 4.50 | 81.86 | -1.00 [-2.00, +0.00] |" in text


def _damaged(path: Path) -> None:
    path.write_text(
        path.read_text(encoding="utf-8").replace('"avx2"', '"amx"', 1), encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: path.rename(path.with_name("speed-amx-base-2-cores.json")),
            "the name is not that of the content",
        ),
        (lambda path: path.write_text("{}"), "not a result of speed.py"),
        (_damaged, "the kind is amx, the features are those of avx2"),
        (lambda path: path.unlink(), "there are no results"),
    ],
    ids=["name", "content", "kind", "none"],
)
def test_damaged_results_are_named(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    damage(speed_results.write(made(), tmp_path))
    with pytest.raises(OctobertError, match=message):
        speed_results.read_all(tmp_path)


def test_a_soak_of_random_shapes_says_what_the_last_half_added(
    finished: Any,
    workspace: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever the number of calls: small ones have several marks at the same call."""
    path = speed_results.RESULTS.parent / "soak_shapes.py"
    given = "--calls 40 --threads 8 --rows 3 --words 9 --option CPU_RUNTIME_CACHE_CAPACITY=100"
    main = runpy.run_path(str(path))["main"]
    package = workspace("docs/guides/service.md") / "out" / "openvino-cpu"
    monkeypatch.setattr(sys, "argv", [path.name, str(package), *given.split()])
    # A process of tests may well grow.
    assert main() in (0, 1)
    shown = capsys.readouterr().out
    assert "     20 calls: " in shown
    assert "     40 calls: " in shown
    assert "the last half of the calls added" in shown
    monkeypatch.setattr(sys, "argv", [path.name, str(finished[1] / "openvino-cpu")])
    with pytest.raises(DataError, match="the model reads pairs of texts"):
        main()


def test_a_trained_checkpoint_needs_its_data(
    checkpoint: Callable[[str], Path], finished: Any, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="expected train"):
        speed_cases.trained_case(checkpoint("bert"), tmp_path, "mrpc", 4)
    (tmp_path / "train.tsv").write_text("words\tlabel\na b\t1\n", encoding="utf-8")
    (tmp_path / "validation.tsv").write_text("words\tlabel\na b\t1\n", encoding="utf-8")
    with pytest.raises(DataError, match="no texts"):
        speed_cases.trained_case(checkpoint("bert"), tmp_path, "mrpc", 4)
    (tmp_path / "train.tsv").write_text("text\tlabel\na b\t1\n", encoding="utf-8")
    (tmp_path / "validation.tsv").write_text("text\tlabel\na b\t1\nb c\t0\n", encoding="utf-8")
    case = speed_cases.trained_case(checkpoint("bert"), tmp_path, "text-classification", 4)
    assert case.sources == {tmp_path.name: [("a b",), ("b c",)]}
    assert case.gold == {tmp_path.name: [1, 0]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--data gone",
            "--data: only a checkpoint that was trained has it; add --checkpoint FOLDER.",
        ),
        (
            "--checkpoint gone",
            "--checkpoint: a checkpoint needs the data of its task; add --data FOLDER.",
        ),
        (
            "--checkpoint gone --data gone",
            "gone/config.json: there is no such file; check the path.",
        ),
        ("--texts gone.tsv", "gone.tsv: there is no such file; check the path."),
        (
            "--rows 0",
            "--rows and --rounds: nothing would be measured (expected at least 1); raise them.",
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["speed.py", *arguments.split()])
    with pytest.raises(SystemExit) as refused:
        speed.main()
    assert str(refused.value) == message


def test_systems_take_turns_and_those_that_fail_are_named(
    finished: Any, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Processes of systems import the scripts.
    monkeypatch.setattr(sys, "path", [*sys.path, str(speed_results.RESULTS.parent)])
    package, folder = finished[1] / "ort-cpu", str(checkpoint("bert"))
    floating = str(package / "onnx" / "model.onnx")
    systems = [
        System(
            "ONNX Runtime", "float", "Sessions", ("ort-cpu", floating, folder), ("plain",), "plain"
        ),
        System(
            "octobert ort-cpu",
            "INT8",
            "Octobert",
            (str(package),),
            ("throughput",),
            "latency, one by one",
        ),
        System(
            "gone",
            "INT8",
            "Sessions",
            ("ort-cpu", str(package / "gone.onnx"), folder),
            ("plain",),
            "plain",
        ),
    ]
    failures: dict[str, str] = {}
    running = speed_measuring.opened(systems, failures)
    try:
        times = speed_measuring.time_shapes(running, [(1, 8), (2, 8)], 1, 50, failures)
        singles = speed_measuring.time_singles(
            running, [("he was", "in it"), ("that is", "you")], failures
        )
        rates, labels = speed_measuring.time_texts(
            running, [("he was", "in it"), ("that is", "you"), ("he", "had")], 2, failures
        )
    finally:
        for each in running:
            each.stop()
    names = ["ONNX Runtime", "octobert ort-cpu"]
    assert list(failures) == ["gone"], failures
    counts = {
        name: {shape: len(own) for shape, own in each.items()} for name, each in times.items()
    }
    assert counts == {name: {"1 × 8": 3, "2 × 8": 3} for name in names}
    assert {name: len(own) for name, own in singles.items()} == dict.fromkeys(names, 2)
    assert set(rates) == {"ONNX Runtime: plain", "octobert ort-cpu: throughput"}
    assert {type(label) for label in labels["octobert ort-cpu: throughput"]} == {str}
    assert all(ms > 0 for each in times.values() for own in each.values() for ms in own)


def test_the_row_of_a_machine_has_the_faster_float_model_of_each_runtime() -> None:
    """`make bench-here`."""
    times = {
        "ONNX Runtime": [40.0, 41.0, 90.0],
        "OpenVINO": [50.0, 50.0, 50.0],
        "OpenVINO, bf16": [25.0, 25.0, 25.0],
        "octobert ort-cpu": [20.5, 20.5, 80.0],
        "octobert openvino-cpu": [20.0, 20.0, 20.0],
    }
    at_16 = {name: {"1 × 16": own} for name, own in times.items()}
    assert times.keys() == speed_here.NAMES
    assert speed_here.cell("octobert ort-cpu", at_16) == "1 × 16: 20.5 ms, 0.50"
    assert speed_here.cell("octobert openvino-cpu", at_16) == "1 × 16: 20.0 ms, 0.80 of bfloat16"
    del at_16["OpenVINO, bf16"]
    row = speed_here.row(at_16, 0.52)
    assert "0.5 of them busy" in row
    assert row.endswith("| 1 × 16: 20.0 ms, 0.40 | 1 × 16: 20.5 ms, 0.50 |")
    assert "openvino 20" in row
