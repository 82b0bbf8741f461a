"""Float, 16-bit float and INT8 of one model on the targets of a GPU: accuracy on real rows, latency over batches and lengths.

    python benchmarks/gpu.py CHECKPOINT TASK DATA --out runs/gpu

Every table is a recipe; all share a folder, so that capture, data and calibration are made once. `--target` names others, such
as ort-cpu and torch-cpu, on which the same runs without a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from octobert.config.loading import parse
from octobert.core.results import Report
from octobert.pipeline import runner

COLUMNS: dict[str, Any] = {
    "float32": {"float": {"float_parts": "float32"}},
    "float16": {"float": {"float_parts": "float16"}},
    "int8": {"static": {"float_parts": "float32"}},
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("checkpoint")
    arguments.add_argument("task")
    arguments.add_argument("data")
    arguments.add_argument("--out", type=Path, default=Path("runs/gpu"))
    arguments.add_argument("--target", nargs="+", default=["ort-cuda", "torch-cuda"])
    arguments.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32, 128])
    arguments.add_argument("--sequence", nargs="+", type=int, default=[128, 384])
    arguments.add_argument("--repeats", type=int, default=50)
    given = arguments.parse_args()
    for name, quantize in COLUMNS.items():
        recipe = parse(
            {
                "model": given.checkpoint,
                "task": given.task,
                "data": given.data,
                "transforms": [],
                "corrections": [],
                "quantize": quantize,
                "targets": given.target,
                "baselines": [],
                "benchmark": {"batch": given.batch, "sequence": given.sequence, "repeats": given.repeats},
            }
        )
        print(f"\n## {name}\n\n{table(runner.run(recipe, given.out), given.target)}", flush=True)


def table(report: Report, targets: list[str]) -> str:
    """Scores of each target, and the median of every shape; what was not measured here says why."""
    lines = ["| target | score | " + " | ".join(shapes(report)) + " |", "|---" * (2 + len(shapes(report))) + "|"]
    for target in targets:
        if target not in report.scores:
            why = report.absent.get(target, "see the report")
            lines.append(f"| {target} | not run: {why} |" + " |" * len(shapes(report)))
            continue
        score = report.scores[target][0]
        times = {
            f"{x.batch} × {x.sequence}": f"{x.percentile_ms(50):.2f} ms" for x in report.latencies if x.candidate == target
        }
        cells = " | ".join(times.get(shape, "") for shape in shapes(report))
        lines.append(f"| {target} | {score.metric} {score.value:.4f} | {cells} |")
    return "\n".join(lines)


def shapes(report: Report) -> list[str]:
    """Batch × sequence, as they were timed."""
    return list(dict.fromkeys(f"{x.batch} × {x.sequence}" for x in report.latencies))


if __name__ == "__main__":
    main()
