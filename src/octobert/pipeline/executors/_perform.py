"""Run one stage in this process: the part that all executors share."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

from octobert.core.environment import peak_memory_bytes
from octobert.core.errors import OctobertError
from octobert.core.files import disk_error, is_disk_error
from octobert.pipeline.contract import Context, Progress, Request, Response

_SHOWN_CHARACTERS = 400


def perform(request: Request, work: Path, progress: Progress) -> Response:
    """Run a stage.

    Raises:
        Exception: whatever the stage raises; `as_sentence` makes an OctobertError of it.
    """
    stage = importlib.import_module(f"octobert.pipeline.stages.{request.stage}")
    inputs, options = stage.Inputs.model_validate(request.inputs), stage.Options.model_validate(request.options)
    started = time.perf_counter()
    summary = stage.run(Context(inputs, options, work, request.scratch, progress))
    return Response(summary=summary, seconds=time.perf_counter() - started, peak_memory_bytes=peak_memory_bytes())


def as_sentence(error: Exception, stage: str, work: Path) -> OctobertError:
    """An exception of a stage as an error that a user can act on."""
    if isinstance(error, OctobertError):
        return error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and is_disk_error(cause):
            return disk_error(cause, work)
        cause = cause.__cause__ or cause.__context__
    message = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
    got = f"{type(error).__name__}: {message}"
    return OctobertError("the stage failed unexpectedly", where=stage, got=got, fix="see the traceback in events.jsonl")
