"""The trained model in PyTorch, fake-quantized by a target's plan, beside the exported model on that target: do they agree?

Writes `simulation.json`.
"""

from __future__ import annotations

from octobert.core.results import Simulated
from octobert.core.session import SessionOptions
from octobert.engine.contract import Context, Summary, stage
from octobert.evaluation import scoring
from octobert.evaluation.torch_session import TorchSession
from octobert.inference.batching import run_rows
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import (
    CapturedModel,
    Compared,
    Evaluated,
    Planned,
    Rows,
    TrainedModel,
)
from octobert.pipeline.task import ScoredTask
from octobert.tasks import Result


@stage(Compared, anywhere=True)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    qat: TrainedModel,
    planned: Planned,
    evaluated: Evaluated,
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
    tokenizer, encoded, gold = capture.evaluation(data, task)
    session = TorchSession(qat.checkpoint, SessionOptions(), task.head)
    scales = qat.scales()
    plan = planned.plan
    Simulation(session.model, plan, capture.family, scales=scales).attach()
    rows = encoded.flat
    progress = lambda done: context.progress("simulating", done, len(rows))  # noqa: E731
    outputs = run_rows(session, rows, tokenizer.pad_id, progress, per_token=task.per_token)
    simulated = Result(outputs, encoded, gold)
    exported = evaluated.outputs()
    fidelity = task.fidelity(Result(exported, encoded, gold), simulated)
    result = Simulated(
        name=fidelity.name,
        agreement=fidelity.agreement,
        error=fidelity.error,
        rows=len(encoded.texts),
        scores=scoring.scores(task, simulated, seed=seed),
    )
    context.write(artifacts.SIMULATION, result)
    return {"agreement": fidelity.agreement, "error": fidelity.error, "rows": len(encoded.texts)}
