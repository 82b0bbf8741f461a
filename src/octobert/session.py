"""What every runtime looks like from the outside: feeds in, named outputs out, and an honest word on its precision."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from octobert.plan import Noun

Feeds = dict[str, np.ndarray]


class SessionOptions(Noun):
    """How to open a model.

    Args:
        threads: worker threads of one inference; 0 lets the runtime choose.
        precision: arithmetic of the float parts: `f32`, or `bf16` or `f16` where the runtime and the machine have it.
        cache: folder where the runtime keeps what it compiled, so that it opens faster the next time.
        log: the runtime says on stderr what it does.
        compile: compile the model, where the runtime can run it either way; None leaves it to the target.
    """

    threads: int = 0
    precision: str = "f32"
    cache: str | None = None
    log: bool = False
    compile: bool | None = None


class Session(Protocol):
    """An opened model."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        ...

    @property
    def precision(self) -> str:
        """Arithmetic of the float parts, as the runtime reports it."""
        ...

    @property
    def threads(self) -> int:
        """Threads of one inference."""
        ...

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name. Feeds that the model does not read are ignored."""
        ...
