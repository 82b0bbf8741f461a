"""The time of one text by its length: predicted against measured, and what padding to the end of a step gains.

    python benchmarks/steps.py OUT/ort-cpu OUT/openvino-cpu [--texts FILE] [--threads 1] [--rounds 15] [--float] [--cpu-time]

Every model is opened in this process, one after another. Its cost model is measured as by octobert.load; then 40 lengths from 1
to the longest are timed in interleaved rounds, of which the fastest run of each counts. Then texts are run one by one at their
own lengths and at those that the cost model chooses, in turn. The lengths of texts are those of rows of a file with MRPC's
columns, and a mixture by Zipf's law. With --cpu-time, what other programs take from the cores does not count.
ONEDNN_MAX_CPU_ISA=AVX2 makes OpenVINO run as on a CPU without VNNI.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octobert import targets
from octobert.core import environment
from octobert.core.estimate import quantile
from octobert.core.session import Session, SessionOptions
from octobert.core.wording import estimate_text
from octobert.data import readers
from octobert.inference import cost_model
from octobert.inference.batching import make_batches
from octobert.inference.cost_model import CostModel, measure_cost_model
from octobert.inference.opened import FinishedModel, open_model

LENGTHS, LONGEST, TEXTS = 40, 512, 60


@dataclass(frozen=True)
class Timed:
    """A session and the clock that times it."""

    session: Session
    clock: Callable[[], float]


def run_ms(timed: Timed, length: int, padding: int = 0) -> float:
    """Milliseconds of one row of a length, padded."""
    return cost_model.run_ms(timed.session, (1, length + padding), length, timed.clock)


def prediction_error(
    timed: Timed, cost: CostModel, longest: int, rounds: int
) -> tuple[float, float]:
    """The median and the 90th percentile of the relative errors at `LENGTHS` lengths."""
    lengths = np.unique(np.linspace(1, longest, LENGTHS).round().astype(int))
    times: dict[int, list[float]] = {int(length): [] for length in lengths}
    for length in times:
        run_ms(timed, length)
    for _ in range(rounds):
        for length, own in times.items():
            own.append(run_ms(timed, length))
    errors = [
        abs(float(cost.batch_ms(np.ones(1), length)[0]) / min(own) - 1)
        for length, own in times.items()
    ]
    return float(np.median(errors)), float(np.percentile(errors, 90))


def gain(
    timed: Timed, cost: CostModel, lengths: Sequence[int], longest: int, rounds: int
) -> tuple[int, str]:
    """How many texts are padded, and the ratio of the times, padded to not padded, of those that are."""
    # Shapes are prepared before, so that only steps count.
    steps = cost.replaced(new_shape_ms=0.0)
    chosen = [
        (length, make_batches([length], steps, max_length=longest)[0].length) for length in lengths
    ]
    padded = [(length, to) for length, to in chosen if to > length]
    if not padded:
        return 0, "-"
    for length, to in padded:
        run_ms(timed, length), run_ms(timed, length, to - length)
    ratios = []
    for number in range(rounds):
        own: list[float] = []
        other: list[float] = []
        for length, to in padded:
            for extra, into in ((0, own), (to - length, other))[:: 1 if number % 2 else -1]:
                into.append(run_ms(timed, length, extra))
        ratios.append(sum(other) / sum(own))
    return len(padded), estimate_text(quantile(ratios), ".3f")


def text_lengths(model: FinishedModel, file: Path | None) -> dict[str, list[int]]:
    """Lengths in tokens by the name of their source."""
    zipf = [int(min(128, 4 + 8 * n)) for n in np.random.default_rng(0).zipf(1.6, TEXTS)]
    if file is None:
        return {"Zipf": zipf}
    rows = readers.read_file(file)[:TEXTS]
    tokenizer = model.tokenizer(model.rebuilt())
    encoded = tokenizer.encode([(str(row["#1 String"]), str(row["#2 String"])) for row in rows])
    return {"MRPC": [len(row) for row in encoded], "Zipf": zipf}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--float", action="store_true", help="the float models of the packages too")
    parser.add_argument(
        "--cpu-time", action="store_true", help="for --threads 1 on a machine that others use too"
    )
    options = parser.parse_args()
    here = environment.current()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    print(f"{here.cpu}, {here.cores} cores, {', '.join(here.features)} {limit}\n")
    print(
        "| model | measuring, s | noise | lengths | median error | 90th | texts | padded | time, padded to not |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for path in options.packages:
        model = open_model(path)
        setting = SessionOptions(threads=options.threads, streams=1)
        sessions = {model.name: model.session(setting)}
        if options.float and model.floating is not None:
            sessions[f"{model.name}, float"] = targets.load(model.target).open_session(
                model.floating.path, setting
            )
        longest = min(LONGEST, model.longest or LONGEST)
        for name, session in sessions.items():
            started = time.perf_counter()
            timed = Timed(session, time.process_time if options.cpu_time else time.perf_counter)
            cost = measure_cost_model(session, longest, clock=timed.clock)
            seconds = time.perf_counter() - started
            error, most = prediction_error(timed, cost, longest, options.rounds)
            for source, lengths in text_lengths(model, options.texts).items():
                count, ratio = gain(timed, cost, lengths, longest, options.rounds)
                print(
                    f"| {name} | {seconds:.1f} | {cost.margin / 2:.3f} | {len(cost.lengths)} | {error:.1%} | {most:.1%} | "
                    f"{source}, median {statistics.median(lengths):.0f} | {count} of {len(lengths)} | {ratio} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
