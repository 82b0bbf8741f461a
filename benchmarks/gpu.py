"""Float32, float16 and INT8 of one model on GPU targets: accuracy on real rows, latency over batch sizes and lengths.

    python benchmarks/gpu.py CHECKPOINT TASK DATA --out runs/gpu

Each table is one recipe. All share an output directory, so capture, data and calibration run once. `--target ort-cpu` runs the
same without a GPU.
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("task")
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--target", nargs="+", default=["ort-cuda", "tensorrt"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--sequence", nargs="+", type=int, default=[128, 384])
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    for name, quantize in COLUMNS.items():
        recipe = parse(
            {
                "model": options.checkpoint,
                "task": options.task,
                "data": options.data,
                "transforms": [],
                "corrections": [],
                "quantize": quantize,
                "targets": options.target,
                "baselines": [],
                "benchmark": {
                    "batch": options.batch,
                    "sequence": options.sequence,
                    "repeats": options.repeats,
                },
            }
        )
        print(
            f"\n## {name}\n\n{table(runner.run(recipe, options.out), options.target)}", flush=True
        )


def table(report: Report, targets: list[str]) -> str:
    """Scores of each target and the median latency of each shape. Targets that did not run show the reason."""
    lines = [
        "| target | score | " + " | ".join(shapes(report)) + " |",
        "|---" * (2 + len(shapes(report))) + "|",
    ]
    for target in targets:
        if not report.of(target).scores:
            why = report.of(target).absent or "see the report"
            lines.append(f"| {target} | not run: {why} |" + " |" * len(shapes(report)))
            continue
        score = report.of(target).scores[0]
        times = {
            f"{x.batch} × {x.sequence}": f"{x.percentile_ms(50):.2f} ms"
            for x in report.of(target).times
        }
        cells = " | ".join(times.get(shape, "") for shape in shapes(report))
        lines.append(f"| {target} | {score.metric} {score.value:.4f} | {cells} |")
    return "\n".join(lines)


def shapes(report: Report) -> list[str]:
    """The timed shapes, batch × sequence."""
    return list(dict.fromkeys(f"{x.batch} × {x.sequence}" for x in report.times))


if __name__ == "__main__":
    main()
