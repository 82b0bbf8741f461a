"""Benchmarks: statistics of the samples, ratios of throughputs, what the table says, and wrong inputs."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import octobert
from octobert.config.measuring import Benchmark
from octobert.core.errors import OctobertError
from octobert.core.estimate import STATISTICS, geometric_mean
from octobert.core.measurements import (
    Figures,
    Footprint,
    Latency,
    Throughput,
    Turn,
    shapes,
)
from octobert.core.session import SessionOptions
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.latency import random_workload, speedups
from octobert.evaluation.worker import Worker
from octobert.report import contents, times
from octobert.targets import openvino_cpu
from octobert.targets.runtimes import openvino


def latency(name: str, *samples: float) -> Latency:
    return Latency(
        candidate=name,
        batch=2,
        sequence="data",
        samples_ms=samples,
        rows=2 * len(samples),
        tokens=700,
    )


def measured(name: str, *rows: int) -> Throughput:
    """Turns of two seconds with these numbers of rows of ten tokens."""
    turns = tuple(Turn(seconds=2.0, rows=count, tokens=10 * count) for count in rows)
    shape: dict[str, Any] = {
        "batch": 2,
        "sequence": "data",
        "streams": 4,
        "requests": 6,
        "threads": 1,
    }
    return Throughput(candidate=name, turns=turns, samples_ms=(4.0, 8.0), **shape)


def test_every_statistic_follows_from_the_samples_and_is_written_beside_them() -> None:
    """Olive's sub-types of latency; those of its throughput are the rows of a batch over these."""
    one = latency("ort-cpu", *np.random.default_rng(0).gamma(2.0, 5.0, 1001).tolist())
    percents = {"p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9}
    expected = {name: np.percentile(one.samples_ms, percent) for name, percent in percents.items()}
    expected |= {
        "min": min(one.samples_ms),
        "avg": sum(one.samples_ms) / 1001,
        "max": max(one.samples_ms),
    }
    assert one.statistics_ms == pytest.approx(expected)
    assert tuple(one.statistics_ms) == STATISTICS
    assert one.rows_per_second == pytest.approx(2000 / expected["avg"])
    assert one.tokens_per_second == pytest.approx(one.rows_per_second * 700 / 2002)
    for record in (one, measured("ort-cpu", 10, 12)):
        written = record.model_dump(mode="json")
        assert {"statistics_ms", "rows_per_second", "tokens_per_second"} < set(written)
        assert type(record).model_validate(written) == record


def test_the_rate_is_that_of_all_turns() -> None:
    assert (
        measured("ort-cpu", 10, 20).rows_per_second,
        measured("ort-cpu", 10, 20).tokens_per_second,
    ) == (7.5, 75.0)


def test_an_interval_of_a_throughput_ratio_has_the_true_ratio_as_often_as_it_says() -> None:
    """Also with the fewest turns, and with a machine that becomes slower."""
    generator, hits = np.random.default_rng(1), 0
    for _ in range(200):
        drift = np.linspace(100.0, 50.0, 4)
        own, reference = (drift * speed * generator.lognormal(0.0, 0.05, 4) for speed in (2.0, 1.0))
        ratio = geometric_mean((own / reference).tolist())
        hits += ratio.low < 2.0 < ratio.high
    assert 0.9 < hits / 200 < 0.98


def test_ratios_pair_the_turns_of_a_round() -> None:
    (ratio,) = speedups(
        [measured("ort-f32", 10, 20, 40), measured("ort-cpu", 30, 60, 120)],
        {"ort-cpu": ("ort-f32",)},
    )
    assert (ratio.candidate, ratio.reference) == ("ort-cpu", "ort-f32")
    assert [value for _, value in ratio.ratio] == pytest.approx([3.0, 3.0, 3.0])


def test_one_table_has_inferences_one_after_another_and_at_the_same_time() -> None:
    names = ("ort-f32", "ort-cpu")
    facts: dict[str, Any] = {
        "load_ms": 1,
        "size_bytes": 1,
        "peak_memory_bytes": 1,
        "precision": "f32",
        "threads": 4,
    }
    together = [measured("ort-f32", 10, 20, 40), measured("ort-cpu", 30, 60, 120)]
    ratios = speedups(together, {"ort-cpu": ("ort-f32",)})
    models = [
        Figures(
            model=name,
            footprint=Footprint(candidate=name, **facts),
            times=(latency(name, 1.0, 2.0, 6.0),),
            throughputs=(throughput,),
            ratios=tuple(ratio for ratio in ratios if ratio.candidate == name),
        )
        for name, throughput in zip(names, together, strict=True)
    ]
    lines = [
        *times.timings(models, {}),
        *times.timings(models, {"ort-cpu": "int8 + f32"}, together=True),
    ]
    shown = io.StringIO()
    Console(file=shown, width=160).print(contents.latency_table(lines, shapes(together)))
    rows = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert "model precision min avg p50 p90 p99 max rows/s tokens/s × float" in rows
    assert "ort-cpu f32 1.00 3.00 2.00 5.20 5.92 6.00 667 77778" in rows
    assert (
        "ort-cpu, 4 streams, 6 requests int8 + f32 4.00 6.00 6.00 7.60 7.96 8.00 35 350 3.00 [3.00, 3.00]"
        in rows
    )
    assert times.speed(lines[-1]) == [
        "ort-cpu, 4 streams, 6 requests: speed 3.00 [3.00, 3.00] × ort-f32."
    ]
    first, second, third = times.how(Benchmark(warmup=3, pause_ms=5), together)
    assert (
        "a pause of 5 ms, and one untimed run of the same inputs; 3 more before the first round"
        in first
    )
    assert "3 turns of 2 s" in second
    assert third == "Tokens per second do not count padding."


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"goal": "fast"}, "goal: unknown goal (got 'fast', expected latency or throughput)"),
        ({"streams": 0}, "streams"),
        ({"seconds": -1}, "seconds"),
        (
            {"device": "AUTO"},
            "device: targets of ONNX Runtime run on one device only (got AUTO); leave it out",
        ),
    ],
)
def test_what_cannot_be_measured_is_said_before_a_model_is_opened(
    finished, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OctobertError) as error:
        octobert.benchmark(finished[1] / "ort-cpu", **options)
    assert sentence in str(error.value)


def test_a_model_runs_on_the_device_that_auto_chooses_in_the_same_precision(finished) -> None:
    """Where bfloat16 is OpenVINO's default, other outputs would show that AUTO does not pass the precision on."""
    pytest.importorskip("openvino")
    package, pairs = finished[1] / "openvino-cpu", [("w1 w2", "w3")]
    # Without models of fixed lengths, which AUTO has none of: padding changes the last bits of sums in float.
    with (
        octobert.load(package, static_up_to=0) as plain,
        octobert.load(package, device="AUTO") as auto,
    ):
        assert (plain.device, auto.device) == ("CPU", "AUTO (CPU)")
        assert auto.precision == plain.precision == "f32"
        assert auto(pairs) == plain(pairs)
    # Without a number of streams, OpenVINO recommends one.
    session = openvino_cpu.TARGET.open_session(
        openvino_cpu.model_file(package), SessionOptions(streams=0, device="MULTI:CPU")
    )
    assert (session.device, session.streams >= 1, session.precision) == (
        "MULTI:CPU (CPU)",
        True,
        "f32",
    )


def test_openvino_runs_batches_in_its_own_queue(finished) -> None:
    pytest.importorskip("openvino")
    package = finished[1] / "openvino-cpu"
    path = str(openvino_cpu.model_file(package))
    worker = Worker(
        Candidate(name="openvino-cpu", path=path, head="sequence-classification", chosen="AUTO"),
        streams=2,
    )
    try:
        assert worker.opened().streams == 2
        batches = [random_workload(rows, 4, 40, seed=0).rounds[0] for rows in (1, 2)]
        done = worker.ask("warm", (batches, 3, 3, math.inf))
        # Three runs of each of three requests, the two batches in turn.
        assert (done.runs, len(done.samples_ms), min(done.samples_ms) > 0) == ([5, 4], 9, True)
        assert sum(worker.ask("saturate", (batches, math.inf, 2, 0.01)).runs) >= 2
        # Many long batches are not run to the last one, but each request has run.
        assert sum(worker.ask("warm", (batches, 10**9, 3, 0.01)).runs) >= 3
        assert worker.ask("device", None) == "AUTO (CPU)"
        longer = {
            name: ids if name == "input_ids" else ids[:, :2] for name, ids in batches[0].items()
        }
        with pytest.raises(octobert.TargetError, match="openvino cannot run the model"):
            worker.ask("saturate", ([longer], math.inf, 2, 0.01))
    finally:
        worker.stop()


@pytest.mark.parametrize("device", ["QPU", "MULTI:QPU,CPU", "HETERO", "cpu"])
def test_a_device_that_is_not_there_is_named_with_those_that_are(device: str) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(octobert.TargetError) as error:
        openvino.OpenvinoRuntime().check_device(device)
    got = {"MULTI:QPU,CPU": "QPU", "HETERO": "no list of devices"}.get(device, device)
    assert f"OpenVINO does not have the device {device} (got {got}, expected CPU" in str(
        error.value
    )
