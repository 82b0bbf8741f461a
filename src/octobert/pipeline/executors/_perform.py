"""Run one stage in this process: the part that all executors share."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from octobert.core.environment import peak_memory_bytes
from octobert.core.errors import OctobertError, causes_of, reason
from octobert.core.files import disk_error, is_disk_error
from octobert.pipeline.contract import (
    Context,
    Progress,
    Request,
    Response,
    signature_of,
    stage_named,
)

_SHOWN_CHARACTERS = 400
# Written to find out whether the disk is full: what a file that could not be completed may have left free.
_PROBED_BYTES = 1 << 16


def perform(request: Request, work: Path, progress: Progress) -> Response:
    """Run a stage.

    Raises:
        Exception: whatever the stage raises; `as_sentence` makes an OctobertError of it.
    """
    run = stage_named(request.stage)
    signature = signature_of(run)
    parameters = {
        **dict(signature.inputs.model_validate(request.inputs)),
        **dict(signature.options.model_validate(request.options)),
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
    got = f"{type(error).__name__}: {reason(error, longest=_SHOWN_CHARACTERS)}"
    return OctobertError(
        "the stage failed unexpectedly",
        where=stage,
        got=got,
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
