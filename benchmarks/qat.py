"""Float, post-training quantization and quantization-aware training side by side, each as its exported INT8 models.

    python benchmarks/qat.py mrpc BASE DATA --out runs/qat

Every line is a recipe; lines of one seed share a folder, so what they have in common is made once and a killed benchmark
goes on where it was. The same training once more in float, with the float model as teacher, is the control of distillation:
what it gains is not quantization's merit.
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
QDQBERT = {"static": {"placement": "qdqbert"}}
# What is trained as long and as fast as it is trained with 8 bits.
SAME = {"epochs": 0.5, "learning_rate": 5e-5, "schedule": "cosine", "dropout": False}
DISTILLED = {**SAME, "distill": {"share": 0.9}}
# Only learned ranges make the residual stream of `qdqbert` smaller; moving averages follow it.
LEARNED = {"ranges": "learned"}

LINES: dict[str, dict[str, Any]] = {
    "float": {},
    "float trained on, distilled": {"again": DISTILLED},
    "PTQ, defaults": {},
    "PTQ, qdqbert": {"quantize": QDQBERT},
    "QAT, qdqbert": {"quantize": QDQBERT, "qat": {**SAME, **LEARNED}},
    "QAT, qdqbert, distilled": {"quantize": QDQBERT, "qat": {**DISTILLED, **LEARNED}},
    "QAT, defaults, distilled": {"qat": DISTILLED},
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("task")
    arguments.add_argument("base")
    arguments.add_argument("data", help="folder or file, or SPLIT=FILE,SPLIT=FILE")
    arguments.add_argument("--out", type=Path, default=Path("runs/qat"))
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument(
        "--float", dest="floating", help="settings of the float training as JSON; none where BASE is trained"
    )
    arguments.add_argument("--set", dest="changes", default="{}", help="parts of every recipe that are otherwise, as JSON")
    arguments.add_argument("--only", nargs="*", help="lines that begin so")
    given = arguments.parse_args()
    found: dict[str, list[dict[str, dict[str, float]]]] = {}
    for seed in range(given.seeds):
        for name, line in LINES.items():
            if given.only and not any(name.startswith(one) for one in given.only):
                continue
            report = carry_out(given, seed, line)
            found.setdefault(name, []).append(figures(name, report))
            print(f"seed {seed}  {name}: {json.dumps(found[name][-1])}", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{given.task}.json").write_text(json.dumps(found, indent=1))
    print(table(found))


def carry_out(given: argparse.Namespace, seed: int, line: dict[str, Any]) -> Report:
    """One line of one seed."""
    out = given.out / f"{given.task}-{seed}"
    recipe, after = recipe_for(given, seed, line), "again" in line
    if after:
        # The float model first; what is trained on begins from its checkpoint.
        runner.run(recipe_for(given, seed, LINES["float"]), out)
        trained = sorted((out / ".octobert" / "store").glob("finetune-*/checkpoint"))
        first = str(trained[0]) if trained else given.base
        settings = {**line["again"], "distill": {**line["again"]["distill"], "teacher": first}}
        recipe, out = recipe_for(given, seed, {"model": first, "finetune": settings}), given.out / f"{given.task}-{seed}-again"
    return runner.run(recipe, out)


def recipe_for(given: argparse.Namespace, seed: int, line: dict[str, Any]) -> Recipe:
    data = dict(part.split("=", 1) for part in given.data.split(",")) if "=" in given.data else {"source": given.data}
    plain = {
        "model": given.base,
        "task": given.task,
        "data": data,
        "targets": list(TARGETS),
        "baselines": [],
        "benchmark": {"batch": [1], "sequence": [128], "repeats": 3},
        "seed": seed,
        **({"finetune": json.loads(given.floating)} if given.floating else {}),
    }
    changes = json.loads(given.changes)
    return parse({**plain, **changes, **{key: value for key, value in line.items() if key != "again"}})


def figures(name: str, report: Report) -> dict[str, dict[str, float]]:
    """Candidate → metric → value; the float model of a line that is about it, else the INT8 models, with their agreement."""
    wanted = (FLOAT,) if name.startswith("float") else TARGETS
    found = {c: {s.metric: s.value for s in report.scores[c]} for c in wanted}
    for target, simulated in report.simulations.items():
        found[target]["agreement with what was trained"] = simulated.agreement
    return found


def table(found: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    """Mean and standard deviation over seeds, a line a candidate."""
    metrics = list(dict.fromkeys(m for runs in found.values() for run in runs for one in run.values() for m in one))
    lines = ["| | runtime | " + " | ".join(metrics) + " |", "|---" * (2 + len(metrics)) + "|"]
    for name, runs in found.items():
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
