"""What 8 bits are worth on this machine, in about five minutes where it is idle: one row for the table of docs/speed.md.

    make bench-here

BERT-base for both CPU targets beside its float graph in the same runtimes, interleaved as in `speed.py`. Weights are random:
the time of an operator does not depend on their values. How many feed-forwards have neurons apart, or scales of tokens, does:
these take up to 6 % of the time of a trained model. What a default run does for accuracy alone (learned scales, corrections,
many calibration rows) is left out, because it would take most of the minutes.

A cell has the median of milliseconds in 8 bits, and the ratio to the runtime's faster float model (float32, or bfloat16).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import speed
from speed_cases import VOCABULARY, Case, named_case, systems_of
from speed_measuring import opened, time_shapes
from speed_results import RIVALS

from octobert.core import cpus, environment
from octobert.core.errors import OctobertError
from octobert.evaluation.latency import CpuTimes

OUT = Path("runs/here")
SHAPES, ROUNDS = ((1, 16), (1, 128), (8, 128)), 9
# Target → the float models of its runtime.
FLOATS = {
    target: next(names for what, names in rivals.items() if what.endswith("float"))
    for target, rivals in RIVALS.items()
}
NAMES = {*FLOATS, *(name for names in FLOATS.values() for name in names)}
# Operators are those of a default run, but for shifts of channels that are learned.
QUICK = {
    "transforms": ["outlier-neurons", {"smoothquant": {"alpha": 0.5}}, "token-scales"],
    "calibrate": "minmax",
    "corrections": [],
    "sensitivity": False,
}
FEW_ROWS = "train[:8]"


def quick(case: Case) -> Case:
    """A case whose models are made fast."""
    data = {**case.recipe["data"], "calibrate": {"from": FEW_ROWS}}
    return replace(case, recipe={**case.recipe, **QUICK, "data": data})


def cell(target: str, times: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """A target's milliseconds at each shape, and their ratio to the faster float model.

    Args:
        times: system → shape → milliseconds.
    """
    parts = []
    for shape, own in times[target].items():
        floats = {name: median(times[name][shape]) for name in FLOATS[target] if name in times}
        fastest = min(floats, key=lambda name: floats[name])
        of = " of bfloat16" if fastest.endswith("bf16") else ""
        parts.append(f"{shape}: {median(own):.1f} ms, {median(own) / floats[fastest]:.2f}{of}")
    return "; ".join(parts)


def row(times: Mapping[str, Mapping[str, Sequence[float]]], others: float) -> str:
    """The row: the machine, and a cell for each target.

    Args:
        times: as for `cell`.
        others: cores that other programs kept busy meanwhile.
    """
    here = environment.current()
    kind = cpus.kind_of(here.features)
    versions = ", ".join(f"{name} {here.versions[name]}" for name in ("onnxruntime", "openvino"))
    machine = [
        f"{here.cpu} ({kind.title if kind else 'unknown'})",
        f"{environment.cores()} cores, {others:.1f} of them busy with other work",
        ", ".join(here.features),
        versions,
        f"{environment.today()}",
        *filter(None, [speed.simulated()]),
    ]
    return f"| {'; '.join(machine)} | {' | '.join(cell(target, times) for target in FLOATS)} |"


def main() -> None:
    """Make the models, time them, and print the table."""
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OCTOBERT_CACHE", str((OUT / "cache").absolute()))
    failures: dict[str, str] = {}
    try:
        case = quick(named_case("base", speed.arguments().parse_args([]), OUT))
        running = opened(systems_of(case, OUT, NAMES.__contains__)[0], failures)
    except OctobertError as error:
        raise SystemExit(str(error)) from error
    before = CpuTimes.now()
    try:
        times = time_shapes(running, SHAPES, ROUNDS, VOCABULARY, failures)
        others = before.load_until(CpuTimes.now()).others
    finally:
        for system in running:
            system.stop()
    if failures:
        raise SystemExit(f"not measured: {failures}")
    print(f"| BERT-base, random weights; 8 bits ÷ float | {' | '.join(FLOATS)} |")
    print(f"| --- |{' --- |' * len(FLOATS)}", row(times, others), sep="\n")


if __name__ == "__main__":
    main()
