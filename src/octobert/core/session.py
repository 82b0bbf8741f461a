"""What every runtime looks like from the outside: feeds in, named outputs out, and an honest word on its precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.plan import FloatType

if TYPE_CHECKING:
    import numpy as np

Feeds = dict[str, "np.ndarray"]
# A setting of a runtime.
RuntimeOption = bool | int | str


class StaticShape(FrozenModel):
    """What a model is made for, where its target wants that fixed.

    Args:
        batch: rows; more are cut into several runs, fewer filled up.
        sequence: tokens of a row; shorter ones are padded.
    """

    batch: int = Field(default=1, ge=1)
    sequence: int = Field(ge=2)


class ExportOptions(FrozenModel):
    """What the files of a target are beside what its table says.

    Args:
        shape: for targets that want it fixed, or a profile; None for all others.
        float_parts: the type of everything that is not quantized.
    """

    shape: StaticShape | None = None
    float_parts: FloatType = "float32"


class SessionOptions(FrozenModel):
    """How to open a model.

    Args:
        threads: worker threads of one inference; 0 lets the runtime choose.
        streams: inferences that may go on at the same time, each on threads of its own; all others wait.
        precision: precision of the float operators: `f32`, `bf16` or `f16`; None for the precision that the target prefers.
        cache: folder where the runtime keeps what it compiled, so that it opens faster the next time.
        log: the runtime says on stderr what it does.
        allow_fallback: what the target's device does not take may run on the CPU, instead of being an error.
        knobs: settings of the runtime by name, of those that its target lists under `KNOBS`.
        compile: compile the model, where the runtime can run it either way; None leaves it to the target.
    """

    threads: int = 0
    streams: int = 1
    precision: str | None = None
    cache: str | None = None
    log: bool = False
    allow_fallback: bool = False
    runtime_options: Mapping[str, RuntimeOption] = Field(default_factory=dict)
    compile: bool | None = None


class Session(Protocol):
    """An opened model. Any number of threads may ask it at the same time; as many as there are streams are served."""

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

    @property
    def streams(self) -> int:
        """Inferences that go on at the same time."""
        ...

    @property
    def prepares_shapes(self) -> bool:
        """The first inference of a shape takes longer, because the runtime makes kernels for it."""
        ...

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name. Feeds that the model does not read are ignored."""
        ...
