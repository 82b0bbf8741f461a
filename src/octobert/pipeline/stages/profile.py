"""A target's exported model → what its runtime executes of it, by the runtime's profiler.

Writes `execution.json`. Times under a profiler show where the time goes; `benchmark` says how much it is.
"""

from __future__ import annotations

from octobert import targets
from octobert.core.errors import OctobertError, reason
from octobert.core.evidence import Execution
from octobert.core.results import CaptureFacts
from octobert.core.session import SessionEntries, SessionOptions
from octobert.evaluation import latency
from octobert.inspection import inspector
from octobert.pipeline.contract import Context, StepResult, Summary
from octobert.pipeline.stages import _artifacts

# Profiled runs: the smallest time of each operator is kept. With `quick: true` there are fewer.
RUNS, QUICK_RUNS = 20, 5


def run(
    context: Context,
    capture: StepResult,
    export: StepResult,
    *,
    target: str,
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
    module = targets.load(target)
    file = module.model_file(export.path(""))
    workload = latency.random_workload(
        batch, sequence, _artifacts.vocabulary_of(capture), seed=seed
    )
    settings = SessionOptions(threads=threads, entries=entries)
    family = capture.read(_artifacts.CAPTURED, CaptureFacts).family
    try:
        executed = inspector.execution(
            inspector.executed(target, file, settings, workload, runs=runs, family=family)
        )
    # A profile explains results; a run that has them does not fail because a runtime's profiler does.
    except Exception as error:  # noqa: BLE001
        problem = (
            str(error)
            if isinstance(error, OctobertError)
            else f"{type(error).__name__}: {reason(error)}"
        )
        executed = Execution(
            candidate=target,
            runtime=module.CAPABILITIES.runtime,
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
    context.write(_artifacts.EXECUTION, executed)
    return {
        "products": executed.products,
        "integer_products": executed.integer_products,
        "total_ms": executed.total_ms,
    }
