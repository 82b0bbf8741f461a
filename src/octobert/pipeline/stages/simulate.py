"""The trained model in PyTorch, fake-quantized by a target's plan, beside the exported model on that target: do they agree?

Writes `simulation.json`.
"""

from __future__ import annotations

import numpy as np

from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan
from octobert.core.results import Simulated
from octobert.core.session import SessionOptions
from octobert.evaluation import scoring
from octobert.inference.batching import run_rows
from octobert.pipeline.contract import Context, ScoredTask, StepResult, Summary
from octobert.pipeline.stages import _artifacts, _rows, evaluate
from octobert.targets.runtimes.torch import TorchSession

FACTS = "simulation.json"


class Inputs(FrozenModel):
    """The captured graph, the rows, what was trained, the target's plan, and the exported model's outputs."""

    capture: StepResult
    data: StepResult
    qat: StepResult
    quantize: StepResult
    evaluate: StepResult


class Options(FrozenModel):
    """The seed draws the resamples of intervals."""

    task: ScoredTask
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Compare."""
    from octobert.training.simulation import Simulation

    inputs, task = context.inputs, context.options.task.build()
    tokenizer = _rows.tokenizer_of(inputs.capture, task)
    encoded, gold = _rows.evaluation_rows(inputs.data, task, tokenizer)
    session = TorchSession(inputs.qat.path(_artifacts.CHECKPOINT), SessionOptions(), task.head)
    with np.load(inputs.qat.path(_artifacts.SCALES)) as arrays:
        scales = {name: arrays[name] for name in arrays.files}
    plan = inputs.quantize.read(_artifacts.PLAN, QuantPlan)
    Simulation(session.model, plan, _artifacts.family_of(inputs.capture), scales=scales).attach()
    rows = encoded.flat
    progress = lambda done: context.progress("simulating", done, len(rows))  # noqa: E731
    simulated = run_rows(session, rows, tokenizer.pad_id, progress, per_token=task.per_token)
    with np.load(inputs.evaluate.path(evaluate.OUTPUTS)) as arrays:
        exported = {name: arrays[name] for name in arrays.files}
    fidelity = task.fidelity(exported, simulated, encoded)
    result = Simulated(
        name=fidelity.name,
        agreement=fidelity.agreement,
        error=fidelity.error,
        rows=len(encoded.texts),
        scores=scoring.scores(task, simulated, encoded, gold, seed=context.options.seed),
    )
    context.write(FACTS, result)
    return {"agreement": fidelity.agreement, "error": fidelity.error, "rows": len(encoded.texts)}
