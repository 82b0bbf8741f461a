"""The trained model in PyTorch, fake-quantized by a target's plan, beside the exported model on that target: do they agree?

Writes `simulation.json`.
"""

from __future__ import annotations

from octobert.core.arrays import arrays_in
from octobert.core.plan import QuantPlan
from octobert.core.results import Simulated
from octobert.core.session import SessionOptions
from octobert.evaluation import scoring
from octobert.evaluation.torch_session import TorchSession
from octobert.inference.batching import run_rows
from octobert.pipeline.contract import Context, ScoredTask, StepResult, Summary
from octobert.pipeline.stages import _artifacts
from octobert.tasks import Result


def run(
    context: Context,
    capture: StepResult,
    data: StepResult,
    qat: StepResult,
    planned: StepResult,
    evaluated: StepResult,
    *,
    scored: ScoredTask,
    seed: int,
) -> Summary:
    """Compare.

    Args:
        qat: what was trained.
        planned: the target's plan.
        evaluated: the exported model's outputs.
        seed: draws the resamples of intervals.
    """
    from octobert.training.simulation import Simulation

    task = scored.build()
    tokenizer, encoded, gold = _artifacts.evaluation_rows(capture, data, task)
    session = TorchSession(qat.path(_artifacts.CHECKPOINT), SessionOptions(), task.head)
    scales = arrays_in(qat.path(_artifacts.SCALES))
    plan = planned.read(_artifacts.PLAN, QuantPlan)
    Simulation(session.model, plan, _artifacts.family_of(capture), scales=scales).attach()
    rows = encoded.flat
    progress = lambda done: context.progress("simulating", done, len(rows))  # noqa: E731
    outputs = run_rows(session, rows, tokenizer.pad_id, progress, per_token=task.per_token)
    simulated = Result(outputs, encoded, gold)
    exported = arrays_in(evaluated.path(_artifacts.OUTPUTS))
    fidelity = task.fidelity(Result(exported, encoded, gold), simulated)
    result = Simulated(
        name=fidelity.name,
        agreement=fidelity.agreement,
        error=fidelity.error,
        rows=len(encoded.texts),
        scores=scoring.scores(task, simulated, seed=seed),
    )
    context.write(_artifacts.SIMULATION, result)
    return {"agreement": fidelity.agreement, "error": fidelity.error, "rows": len(encoded.texts)}
