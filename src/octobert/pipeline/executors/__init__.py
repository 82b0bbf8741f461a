"""Executors: where a stage runs. `local` starts a child process, `inline` runs it in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from octobert.config.training import Training
from octobert.pipeline.contract import Progress, Request, Response


class Executor(Protocol):
    """Runs one stage."""

    def __call__(self, request: Request, work: Path, progress: Progress, launch: Training | None = None) -> Response:
        """Run a stage that writes into an empty folder.

        Raises:
            OctobertError: what the stage raised, or that it was killed.
        """
        ...
