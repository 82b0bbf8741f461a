"""Run a stage in this process: nothing is started, and debuggers work. Memory is freed only as far as Python frees it."""

from __future__ import annotations

import traceback
from pathlib import Path

from octobert.config.training import Training
from octobert.core.errors import RecipeError
from octobert.pipeline.contract import Progress, Request, Response
from octobert.pipeline.executors._perform import as_sentence, perform


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
