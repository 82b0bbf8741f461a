"""A target's exported model → what its runtime executes of it, by the runtime's profiler.

Writes `execution.json`. Times under a profiler show where the time goes; `benchmark` says how much it is.
"""

from __future__ import annotations

from octobert.core.errors import OctobertError, reason
from octobert.core.evidence import Execution
from octobert.core.session import SessionEntries, SessionOptions
from octobert.engine.contract import Context, Summary, stage
from octobert.evaluation import latency
from octobert.inspection import inspector
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, Profiled, TargetFiles
from octobert.targets import TargetField

# Profiled runs: the smallest time of each operator is kept. With `quick: true` there are fewer.
RUNS, QUICK_RUNS = 20, 5


@stage(Profiled)
def run(
    context: Context,
    capture: CapturedModel,
    export: TargetFiles,
    *,
    target: TargetField,
    entries: SessionEntries,
    batch: int,
    sequence: int,
    threads: int,
    runs: int,
    machine: str,
    seed: int,
) -> Summary:
    """Profile.

    Args:
        entries: what sessions of the target are opened with.
        batch, sequence: of the inputs.
        threads: of one inference; 0 lets the runtime choose.
        runs: profiled runs.
        machine: digest of the machine and its runtimes, which times belong to.
    """
    workload = latency.random_workload(batch, sequence, capture.vocabulary, seed=seed)
    settings = SessionOptions(threads=threads, entries=entries)
    family = capture.facts.family
    try:
        executed = inspector.execution(
            inspector.executed(
                target.name, export.file, settings, workload, runs=runs, family=family
            )
        )
    # A profile explains results; a run that has them does not fail because a runtime's profiler does.
    except Exception as error:  # noqa: BLE001
        problem = (
            str(error)
            if isinstance(error, OctobertError)
            else f"{type(error).__name__}: {reason(error)}"
        )
        executed = Execution(
            candidate=target.name,
            runtime=target.capabilities.runtime,
            batch=batch,
            sequence=sequence,
            total_ms=0.0,
            products=0,
            integer_products=0,
            sentences=(
                f"The runtime's profiler failed, so what was executed is not known: {problem}",
            ),
            parts=(),
        )
    context.write(artifacts.EXECUTION, executed)
    return {
        "products": executed.products,
        "integer_products": executed.integer_products,
        "total_ms": executed.total_ms,
    }
