"""The interface of all runtimes: options for opening a model, and sessions that run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.plan import FloatType

if TYPE_CHECKING:
    import numpy as np

# Input name → array [batch, sequence].
Feeds = dict[str, "np.ndarray"]
# The value of a runtime option.
RuntimeOption = bool | int | str
# The output with the states of all tokens.
STATES = "last_hidden_state"


def read_outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    """Return the outputs of a model that octobert reads: token states beside a vector are for other programs.

    Example:
        >>> read_outputs(["last_hidden_state", "sentence_embedding"])
        ('sentence_embedding',)
    """
    return tuple(name for name in outputs if name != STATES) or tuple(outputs)


class StaticShape(FrozenModel):
    """The input shape of a model whose target needs static shapes.

    Args:
        batch: rows of a batch. Larger batches run in parts; smaller ones are filled up.
        sequence: tokens of a row. Shorter rows are padded.
    """

    batch: int = Field(default=1, ge=1)
    sequence: int = Field(ge=2)


class ExportOptions(FrozenModel):
    """How a model is written for a target.

    Args:
        shape: the input shape, for targets with static shapes or shape profiles; None for all others.
        float_parts: type of the operators that are not quantized.
    """

    shape: StaticShape | None = None
    float_parts: FloatType = "float32"


class SessionOptions(FrozenModel):
    """How to open a model.

    Args:
        threads: threads of one inference; 0 leaves the number to the runtime.
        streams: inferences that run at the same time, each on its own threads. Further calls wait.
        precision: precision of the float operators: `f32`, `bf16` or `f16`; None for the precision that the target prefers.
        cache: folder for compiled models, so that they open faster the next time.
        log: print the log of the runtime on stderr.
        allow_fallback: run operators on the CPU that the target's device does not support, instead of raising an error.
        runtime_options: options of the runtime by name, of those that the target lists in `RUNTIME_OPTIONS`.
        compile: whether to compile the model, for runtimes that have both ways; None leaves it to the target.
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
    """An opened model. Any number of threads may call it; as many calls as there are streams run at the same time."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        ...

    @property
    def precision(self) -> str:
        """Precision of the float operators, as the runtime reports it."""
        ...

    @property
    def threads(self) -> int:
        """Number of threads of one inference."""
        ...

    @property
    def streams(self) -> int:
        """Number of inferences that run at the same time."""
        ...

    @property
    def prepares_shapes(self) -> bool:
        """Whether the first inference at a shape takes longer, because the runtime prepares kernels for the shape."""
        ...

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs by name. Feeds that the model has no input for are ignored."""
        ...
