"""A target's exported model → what its runtime executes of it, by the runtime's profiler.

Writes `execution.json`. Times under a profiler show where the time goes; `benchmark` says how much it is.
"""

from __future__ import annotations

from octobert import targets
from octobert.core.errors import OctobertError, reason
from octobert.core.evidence import Execution
from octobert.core.frozen import FrozenModel
from octobert.core.results import CaptureFacts
from octobert.core.session import SessionEntries, SessionOptions
from octobert.evaluation import latency
from octobert.inspection import inspector
from octobert.inspection.execution import execution
from octobert.pipeline.contract import Context, StepResult, Summary

EXECUTION = "execution.json"
# Profiled runs: the smallest time of each operator is kept. With `quick: true` there are fewer.
RUNS, QUICK_RUNS = 20, 5


class Inputs(FrozenModel):
    """The captured graph, and the target's exported files."""

    capture: StepResult
    export: StepResult


class Options(FrozenModel):
    """What is run.

    Args:
        entries: what sessions of the target are opened with.
        batch, sequence: of the inputs.
        threads: of one inference; 0 lets the runtime choose.
        runs: profiled runs.
        machine: digest of the machine and its runtimes, which times belong to.
    """

    target: str
    entries: SessionEntries
    batch: int
    sequence: int
    threads: int
    runs: int
    machine: str
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Profile."""
    inputs, options = context.inputs, context.options
    file = targets.load(options.target).model_file(inputs.export.path(""))
    vocabulary = int(inputs.capture.read_json("config.json").get("vocab_size", 1000))
    workload = latency.random_workload(options.batch, options.sequence, vocabulary, seed=options.seed)
    settings = SessionOptions(threads=options.threads, entries=options.entries)
    family = inputs.capture.read("capture.json", CaptureFacts).family
    try:
        inspection = inspector.executed(options.target, file, settings, workload, runs=options.runs, family=family)
    # A profile explains results; a run that has them does not fail because a runtime's profiler does.
    except Exception as error:  # noqa: BLE001
        executed = _failed(options, error)
    else:
        executed = execution(inspection)
    context.write(EXECUTION, executed)
    return {"products": executed.products, "integer_products": executed.integer_products, "total_ms": executed.total_ms}


def _failed(options: Options, error: Exception) -> Execution:
    problem = str(error) if isinstance(error, OctobertError) else f"{type(error).__name__}: {reason(error)}"
    return Execution(
        candidate=options.target,
        runtime=targets.load(options.target).CAPABILITIES.runtime,
        batch=options.batch,
        sequence=options.sequence,
        total_ms=0.0,
        products=0,
        integer_products=0,
        sentences=(f"The runtime's profiler failed, so what was executed is not known: {problem}",),
        parts=(),
    )
