"""Run a stage in this process: nothing is started, and debuggers work. Memory is freed only as far as Python frees it.

Other executors end here as well: their processes call `perform`.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from pathlib import Path

from octobert.config.training import Training
from octobert.core.environment import peak_memory_bytes
from octobert.core.errors import OctobertError, RecipeError, causes_of
from octobert.core.files import disk_error, is_disk_error
from octobert.engine.contract import Context, Progress, Request, Response, stage_named

_SHOWN_CHARACTERS = 400
# Written to find out whether the disk is full: what a file that could not be completed may have left free.
_PROBED_BYTES = 1 << 16


def run(
    request: Request, work: Path, progress: Progress, launch: Training | None = None
) -> Response:
    """Run a stage.

    Raises:
        OctobertError: what the stage raised.
        RecipeError: the step wants several processes.
    """
    if launch is not None and launch.processes * launch.machines > 1:
        raise RecipeError(
            "one process cannot be several",
            where="training.processes",
            got=str(launch.processes),
            fix="use the executor local",
        )
    try:
        # Through JSON, as every other executor carries it.
        return perform(Request.model_validate_json(request.model_dump_json()), work, progress)
    except Exception as error:
        raised = as_sentence(error, request.stage, work)
        raised.traceback = traceback.format_exc()
        if raised is error:
            raise
        raise raised from error


def perform(request: Request, work: Path, progress: Progress) -> Response:
    """Run a stage.

    Raises:
        Exception: whatever the stage raises; `as_sentence` makes an OctobertError of it.
    """
    run = stage_named(request.stage)
    parameters = {
        **dict(run.inputs.model_validate(request.inputs)),
        **dict(request.parsed),
    }
    started = time.perf_counter()
    summary = run(Context(work, request.scratch, progress), **parameters)
    return Response(
        summary=summary,
        seconds=time.perf_counter() - started,
        peak_memory_bytes=peak_memory_bytes(),
    )


def as_sentence(error: Exception, stage: str, work: Path) -> OctobertError:
    """An exception of a stage as an error that a user can act on."""
    if isinstance(error, OctobertError):
        return error
    for cause in causes_of(error):
        if isinstance(cause, OSError) and is_disk_error(cause):
            return disk_error(cause, work)
    if (full := _disk_problem(work)) is not None:
        return full
    return OctobertError(
        "the stage failed unexpectedly",
        where=stage,
        # The whole message: of an error of the system, it has the path.
        got=f"{type(error).__name__}: {' '.join(str(error).split())[:_SHOWN_CHARACTERS]}",
        fix="see the traceback in events.jsonl",
    )


def _disk_problem(work: Path) -> OctobertError | None:
    """Why nothing can be written into a folder; None if something can. Runtimes say of a full disk only that they failed."""
    try:
        with tempfile.TemporaryFile(dir=work) as file:
            file.write(b"0" * _PROBED_BYTES)
            file.flush()
    except OSError as error:
        return disk_error(error, work) if is_disk_error(error) else None
    return None
