"""Executors: where a stage runs. `local` starts a child process, `inline` runs it in this one, `ray` on a cluster."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable

from octobert.config.training import Training
from octobert.engine.contract import Progress, Request, Response


class Executor(Protocol):
    """Runs one stage."""

    def __call__(
        self, request: Request, work: Path, progress: Progress, launch: Training | None = None
    ) -> Response:
        """Run a stage that writes into an empty folder.

        Raises:
            OctobertError: what the stage raised, or that it was killed.
        """
        ...


@runtime_checkable
class ConcurrentExecutor(Executor, Protocol):
    """Runs several stages at the same time, each called from a thread of its own.

    Args:
        concurrency: how many.
        note: for the user; None where there is nothing to say.
    """

    concurrency: int
    note: str | None

    def stop(self) -> None:
        """End what runs: every call, also a later one, raises KeyboardInterrupt."""
        ...


def opened(name: str) -> AbstractContextManager[Executor]:
    """An executor that is ready while the context lasts.

    Args:
        name: of the module: `local`, `inline` or `ray`.

    Raises:
        TargetError: the package ray is not installed.
        OctobertError: the cluster cannot be reached.
    """
    # By its name, so that results do not depend on the code of executors that their stages do not use (see `keys`).
    module = importlib.import_module(f"{__name__}.{name}")
    executor: AbstractContextManager[Executor] = (
        module.opened() if hasattr(module, "opened") else nullcontext(module.run)
    )
    return executor
