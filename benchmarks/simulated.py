"""How near the simulation of a plan on the CPU is to what a target answers, where the target runs: agreement and difference.

    python benchmarks/simulated.py OUT

OUT is a run whose store was not cleaned, with targets that run here. Targets whose device is missing are evaluated by the
simulation (`targets.shared.simulation`); here it is put beside targets that do run. The difference is the root mean
square of the raw outputs; that of the quantized model from the float model stands beside it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from octobert.core.results import Report
from octobert.engine.contract import A
from octobert.inference.batching import run_rows
from octobert.pipeline import artifacts
from octobert.pipeline.task import TaskSpec
from octobert.targets.shared import simulation


def main(out: Path) -> None:
    """Print a row for each target that ran."""
    report = Report.model_validate_json((out / "report.json").read_text())
    store = out / ".octobert" / "store"

    def made(step: str, kind: type[A]) -> A:
        stage = step.partition("/")[0]
        return kind(step=step, folder=store / f"{stage}-{report.stages[step].key[:16]}")

    stated = {
        name: value
        for name, value in report.task.model_dump().items()
        if name not in ("name", "options", "head", "primary")
    }
    task = TaskSpec.model_validate(
        {"name": report.task.name, "options": report.task.options, "stated": stated}
    ).build()
    tokenizer, encoded, _ = made("capture", artifacts.CapturedModel).evaluation(
        made("data", artifacts.Rows), task
    )
    table = Table("target", "same answers", "RMS difference from the target", "target from float")
    for compared in report.compared:
        target = compared.candidate
        if target not in report.plans or compared.simulated:
            continue
        searched = f"search/{target}"
        planned = made(
            searched if searched in report.stages else f"quantize/{target}", artifacts.Planned
        )
        ran = made(f"evaluate/{target}", artifacts.Evaluated).outputs()
        with tempfile.TemporaryDirectory() as folder:
            session = simulation.open_plan(planned.file, planned.plan, Path(folder))
            ours = run_rows(session, encoded.flat, tokenizer.pad_id, per_token=task.per_token)
        name = next(iter(ran))
        same = np.mean(ours[name].argmax(-1) == ran[name].argmax(-1))
        difference = np.sqrt(np.mean((ours[name] - ran[name]) ** 2))
        table.add_row(
            target, f"{100 * same:.2f} %", f"{difference:.4f}", f"{compared.output_error:.4f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
