"""Compare float, post-training quantization and quantization-aware training, by their exported INT8 models.

    python benchmarks/qat.py mrpc BASE DATA --out runs/qat

Each line is one recipe. Lines of one seed share an output directory, so common steps run once and an interrupted benchmark
resumes. Float models trained on for as long, on labels alone and with the float model as teacher, are the controls: their gain
does not come from quantization.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core.results import Report
from octobert.pipeline import runner

TARGETS = ("ort-cpu", "openvino-cpu")
FLOAT = "ort-f32"
# Training beyond the float model: of QAT, and of float models with the same length and learning rate.
SAME = {"epochs": 0.5, "learning_rate": 1e-5, "schedule": "cosine", "dropout": False}


def lines_of(placement: str, training: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of a line → keys of its recipe; `again` trains the float model further."""
    placed = {"static": {"placement": placement}}
    distilled = {**training, "distill": {"share": 0.9}}
    # Only learned ranges shrink a residual stream that is quantized. Moving averages follow it.
    learned = {"ranges": "learned"}
    return {
        "float": {},
        "float trained on": {"again": training},
        "float trained on, distilled": {"again": distilled},
        "PTQ, defaults": {},
        f"PTQ, {placement}": {"quantize": placed},
        f"QAT, {placement}": {"quantize": placed, "qat": {**training, **learned}},
        f"QAT, {placement}, distilled": {"quantize": placed, "qat": {**distilled, **learned}},
        "QAT, defaults, distilled": {"qat": distilled},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task")
    parser.add_argument("base")
    parser.add_argument("data", help="folder or file, or SPLIT=FILE,SPLIT=FILE")
    parser.add_argument("--out", type=Path, default=Path("runs/qat"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--float",
        dest="floating",
        help="settings of the float training as JSON; omit if BASE is trained",
    )
    parser.add_argument(
        "--set", dest="changes", default="{}", help="keys to change in every recipe, as JSON"
    )
    parser.add_argument("--placement", default="qdqbert", help="what QAT quantizes")
    parser.add_argument(
        "--training",
        default="{}",
        help="settings of QAT, and of the float models that are trained on, as JSON",
    )
    parser.add_argument("--only", nargs="*", help="only lines with these prefixes")
    options = parser.parse_args()
    lines = lines_of(options.placement, {**SAME, **json.loads(options.training)})
    results: dict[str, list[dict[str, dict[str, float]]]] = {}
    for seed in range(options.seeds):
        for name, line in lines.items():
            if options.only and not any(name.startswith(prefix) for prefix in options.only):
                continue
            report = carry_out(options, seed, line)
            results.setdefault(name, []).append(figures(name, report))
            print(f"seed {seed}  {name}: {json.dumps(results[name][-1])}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.task}.json").write_text(json.dumps(results, indent=1))
    print(table(results))


def carry_out(options: argparse.Namespace, seed: int, line: dict[str, Any]) -> Report:
    """Run one line with one seed."""
    out = options.out / f"{options.task}-{seed}"
    recipe, after = recipe_for(options, seed, line), "again" in line
    if after:
        # The float model first. Further training starts from its checkpoint.
        runner.run(recipe_for(options, seed, {}), out)
        trained = sorted((out / ".octobert" / "store").glob("finetune-*/checkpoint"))
        first = str(trained[0]) if trained else options.base
        settings = dict(line["again"])
        if "distill" in settings:
            settings["distill"] = {**settings["distill"], "teacher": first}
        recipe, out = (
            recipe_for(options, seed, {"model": first, "finetune": settings}),
            options.out / f"{options.task}-{seed}-again",
        )
    return runner.run(recipe, out)


def recipe_for(options: argparse.Namespace, seed: int, line: dict[str, Any]) -> Recipe:
    data = (
        dict(part.split("=", 1) for part in options.data.split(","))
        if "=" in options.data
        else {"source": options.data}
    )
    plain = {
        "model": options.base,
        "task": options.task,
        "data": data,
        "targets": list(TARGETS),
        "baselines": [],
        "benchmark": {"batch": [1], "sequence": [128], "repeats": 3},
        "seed": seed,
        **({"finetune": json.loads(options.floating)} if options.floating else {}),
    }
    changes = json.loads(options.changes)
    return parse(
        {**plain, **changes, **{key: value for key, value in line.items() if key != "again"}}
    )


def figures(name: str, report: Report) -> dict[str, dict[str, float]]:
    """Candidate → metric → value: of the float model for float lines, otherwise of the INT8 models, with their agreement."""
    candidates = (FLOAT,) if name.startswith("float") else TARGETS
    values = {c: {s.metric: s.value for s in report.of(c).scores} for c in candidates}
    for target, simulated in report.simulations.items():
        values[target]["agreement with the trained model"] = simulated.agreement
    return values


def table(results: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    """Mean and standard deviation over seeds, one line per candidate."""
    metrics = list(
        dict.fromkeys(
            m
            for runs in results.values()
            for run in runs
            for scores in run.values()
            for m in scores
        )
    )
    lines = ["| | runtime | " + " | ".join(metrics) + " |", "|---" * (2 + len(metrics)) + "|"]
    for name, runs in results.items():
        for candidate in runs[0]:
            cells = []
            for metric in metrics:
                values = [run[candidate][metric] for run in runs if metric in run[candidate]]
                spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.4f}{spread}" if values else "")
            lines.append(f"| {name} | {candidate} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
