"""What was trained, in PyTorch with values rounded by a target's plan, beside the exported model on that target: do they agree?

Writes `simulation.json`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octobert.core import plugins
from octobert.core.plan import QuantPlan
from octobert.core.results import CaptureFacts, Simulated
from octobert.core.session import SessionOptions
from octobert.evaluation import scoring
from octobert.inference.batching import run_rows
from octobert.pipeline.stages import CHECKPOINT, Context, encoder_of, evaluation, task_of
from octobert.pipeline.stages.quantize import SCALES
from octobert.targets.runtimes.torch import TorchSession

VERSION = 2


def run(context: Context) -> dict[str, Any]:
    """Compare."""
    from octobert.training.simulation import Simulation

    task, encoder = task_of(context.options), encoder_of(context)
    asked, gold = evaluation(context, encoder)
    family = plugins.load("families", context.read("capture", "capture.json", CaptureFacts).family).FAMILY
    session = TorchSession(context.inputs["qat"] / CHECKPOINT, SessionOptions(), task.head)
    with np.load(context.inputs["qat"] / SCALES) as arrays:
        scales = {name: arrays[name] for name in arrays.files}
    Simulation(session.model, context.read("quantize", "plan.json", QuantPlan), family, scales=scales).attach()
    rows = asked.flat
    simulated = run_rows(
        session, rows, encoder.pad_id, lambda n: context.progress("simulating", n, len(rows)), per_token=task.per_token
    )
    with np.load(context.inputs["evaluate"] / "outputs.npz") as arrays:
        exported = {name: arrays[name] for name in arrays.files}
    found = task.fidelity(exported, simulated, asked)
    result = Simulated(
        name=found.name,
        agreement=found.agreement,
        error=found.error,
        rows=len(asked.texts),
        scores=scoring.scores(task, simulated, asked, gold, seed=int(context.options["seed"])),
    )
    context.write("simulation.json", result)
    return {"agreement": found.agreement, "error": found.error, "rows": len(asked.texts)}
