"""What OpenVINO executes of several models, side by side: number and time of the operators of each kind.

    python benchmarks/executed.py NAME=MODEL.xml NAME=MODEL.onnx … [--shapes 1x16 8x64] [--rounds 20] [--precision f32]

`benchmarks/speed.py` leaves the models to compare: octobert's package and NNCF's IR of the same float model. Times of operators
are the least of some profiled runs of octobert's profiler. Whole inferences are timed without it, in turn, in an order that
changes every round; the table has the median, and the median of the ratios to the first model. `ONEDNN_MAX_CPU_ISA=AVX2`
simulates a CPU without 8-bit units, `AVX512_CORE` one with AVX-512 alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from octobert.core import environment
from octobert.core.profile import grouped, time_of
from octobert.core.session import Session, SessionOptions
from octobert.evaluation import latency
from octobert.inspection.profilers.openvino import OpenvinoProfiler
from octobert.targets import openvino_cpu

SHAPES = ((1, 16), (1, 53), (1, 128), (8, 64))
VOCABULARY = 30522
PROFILED = 20


def shape_of(text: str) -> tuple[int, int]:
    """Rows and tokens of `8x64`."""
    rows, _, tokens = text.partition("x")
    return int(rows), int(tokens)


def timed(
    sessions: dict[str, Session], shape: tuple[int, int], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of one inference of each model in every round."""
    feeds, generator = (
        latency.random_workload(*shape, VOCABULARY, seed=0).rounds[0],
        random.Random(0),
    )
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(rounds):
        for name in generator.sample(list(sessions), len(sessions)):
            sessions[name].run(feeds)
            started = time.perf_counter()
            sessions[name].run(feeds)
            times[name].append(1e3 * (time.perf_counter() - started))
    return times


def table(
    models: dict[str, Path],
    shape: tuple[int, int],
    options: SessionOptions,
    times: dict[str, list[float]],
) -> Table:
    """One row for each kind of operator, and the whole inference."""
    feeds = latency.random_workload(*shape, VOCABULARY, seed=0).rounds[0]
    ran = {
        n: OpenvinoProfiler()
        .profile(p, feeds, options, warmup=3, runs=PROFILED, family=None)
        .operators
        for n, p in models.items()
    }
    kinds = {
        name: grouped(operators, lambda each: (each.type, each.precision))
        for name, operators in ran.items()
    }
    every = {
        kind: max(time_of(of.get(kind, ())) for of in kinds.values())
        for of in kinds.values()
        for kind in of
    }
    shown = Table(title=f"{shape[0]} × {shape[1]}", title_justify="left")
    for head in (
        "operator",
        "precision",
        *(f"{name}: {unit}" for name in models for unit in ("number", "ms")),
    ):
        shown.add_column(head, justify="left" if head in ("operator", "precision") else "right")
    for kind in sorted(every, key=lambda each: -every[each]):
        cells = [
            cell
            for of in kinds.values()
            for cell in (str(len(of.get(kind, ()))), f"{time_of(of.get(kind, ())):.3f}")
        ]
        shown.add_row(*kind, *cells)
    shown.add_section()
    sums = [
        cell
        for operators in ran.values()
        for cell in (str(len(operators)), f"{time_of(operators):.2f}")
    ]
    shown.add_row("all operators", "", *sums)
    first = next(iter(times.values()))
    ratios = {
        n: statistics.median(a / b for a, b in zip(own, first, strict=True))
        for n, own in times.items()
    }
    whole = [
        cell
        for name, own in times.items()
        for cell in (f"{ratios[name]:.3f} ×", f"{statistics.median(own):.2f}")
    ]
    shown.add_row("one inference", "", *whole)
    return shown


def main() -> None:
    """Print one table for each shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="+", help="NAME=FILE, the first one is what the others are compared with"
    )
    parser.add_argument("--shapes", type=shape_of, nargs="*", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--precision", default="f32")
    given = parser.parse_args()
    models = {name: Path(path) for name, _, path in (each.partition("=") for each in given.models)}
    options = SessionOptions(threads=environment.cores(), precision=given.precision)
    sessions = {
        name: openvino_cpu.TARGET.open_session(path, options) for name, path in models.items()
    }
    console = Console(width=200)
    for shape in given.shapes:
        console.print(table(models, shape, options, timed(sessions, shape, given.rounds)))


if __name__ == "__main__":
    main()
