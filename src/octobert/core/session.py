"""How models are opened, on all runtimes: options and sessions; and how a finished package is: goals, settings, tuned ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, get_args, runtime_checkable

from pydantic import AfterValidator, Field, model_validator

from octobert.core import environment
from octobert.core.errors import RecipeError
from octobert.core.estimate import Estimate
from octobert.core.frozen import Count, FrozenModel, Row, Tabular
from octobert.core.plan import FloatType

if TYPE_CHECKING:
    import numpy as np


# Input name → array [batch, sequence].
Feeds = dict[str, "np.ndarray"]
# The value of a runtime option.
RuntimeOption = bool | int | str
# An option of onnxruntime. From 1.32 on, products of float or 16-bit activations and 8-bit weights are MatMulNBits, which
# quantizes the activations to 8 bits unless this says float32. 4-bit weights are such products in all versions, and meant so.
KEEP_FLOAT: dict[str, RuntimeOption] = {"session.qdq_matmulnbits_accuracy_level": "1"}
# The output with the states of all tokens.
STATES = "last_hidden_state"
# The vector of a text, and those of its tokens.
VECTORS = VECTOR, TOKEN_VECTORS = ("sentence_embedding", "token_vectors")


def read_outputs(outputs: Sequence[str]) -> tuple[str, ...]:
    """Return the outputs of a model that octobert reads: what vectors are made of, beside them, is for other programs.

    Example:
        >>> read_outputs(["last_hidden_state", "sentence_embedding"])
        ('sentence_embedding',)
    """
    return tuple(name for name in outputs if name in VECTORS) or tuple(outputs)


class StaticShape(FrozenModel):
    """The input shape of a model whose target needs static shapes.

    Args:
        batch: rows of a batch. Larger batches run in parts; smaller ones are filled up.
        sequence: tokens of a row. Shorter rows are padded.
        shorter: further lengths, each with a file of its own beside that of `sequence`; a row takes the next longer one. `auto`
            chooses at most three by the lengths of the calibration rows. It is the default where the recipe has no shape.
    """

    batch: Count = 1
    sequence: Count = Field(ge=2)
    shorter: tuple[Annotated[Count, Field(ge=2)], ...] | Literal["auto"] = ()

    @model_validator(mode="after")
    def _ascending(self) -> StaticShape:
        if self.shorter != "auto" and [*self.shorter, self.sequence] != sorted(
            {*self.shorter, self.sequence}
        ):
            raise ValueError("lengths of shorter ascend, and are below sequence")
        return self

    @property
    def lengths(self) -> tuple[int, ...]:
        """All lengths, the longest first."""
        return (self.sequence, *(() if self.shorter == "auto" else reversed(self.shorter)))

    def of(self, length: int) -> StaticShape:
        """The shape of one length alone."""
        return StaticShape(batch=self.batch, sequence=length)


# In the metadata of the file of the longest rows: lengths of the other ones beside it, with commas.
SHORTER_METADATA = "octobert.shorter"
# In that of a file whose attention is computed in blocks for longer texts than so many tokens.
SHORT_METADATA = "octobert.short"
# In that of a graph of any kind: nothing is padded, or cut off its outputs.
GRAPH_METADATA = "octobert.graph"
_LENGTH = "[0-9]{1,6}"


def file_of(path: Path, length: int) -> Path:
    """The file for rows of another length, beside that of the longest ones.

    Example:
        >>> file_of(Path("onnx/model_quantized.onnx"), 64).as_posix()
        'onnx/model_quantized.64.onnx'
    """
    return path.with_name(f"{path.stem}.{length}{path.suffix}")


def length_of(stated: str) -> int | None:
    """The tokens that a file of unknown origin states; None where it states no length."""
    return int(stated) if re.fullmatch(_LENGTH, stated) else None


def weights_at(path: Path) -> Path:
    """The file with the weights of an IR: its own, or that of the IR for longer rows."""
    own, longest = path.with_suffix(".bin"), path.with_name(f"{path.name.partition('.')[0]}.bin")
    return longest if longest.exists() and not own.exists() else own


def shorter_files(path: Path) -> dict[int, Path]:
    """Tokens → the file for rows of that length beside the file of the longest ones; empty for most models."""
    name = re.compile(rf"{re.escape(path.stem)}\.({_LENGTH}){re.escape(path.suffix)}")
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    found = ((name.fullmatch(file.name), file) for file in beside)
    return dict(sorted((int(match[1]), file) for match, file in found if match))


class WrittenOpset(FrozenModel):
    """The ONNX opset of a written file.

    Args:
        opset: its number.
        domains: operator domains that the target takes besides ONNX's own.
        whole_graph: the target runs integers only, so no operator may be taken apart.
    """

    opset: int
    domains: tuple[str, ...] = ()
    whole_graph: bool = False


class ExportOptions(FrozenModel):
    """How a model is written for a target.

    Args:
        shape: the input shape, for targets with static shapes or shape profiles; None for all others.
        float_parts: type of the operators that are not quantized.
        unfit: values that float16 cannot hold.
        opset: the ONNX opset; None for the one that the model has.
        qoperator: write products as integer operators, for targets that take them.
        long_texts: the model reads texts whose attention takes too much memory at once.
    """

    shape: StaticShape | None = None
    float_parts: FloatType = "float32"
    unfit: tuple[str, ...] = ()
    opset: WrittenOpset | None = None
    qoperator: bool = False
    long_texts: bool = False


# Words and numbers, up to the memory of a device: nothing that could name a file, a library or an address in memory.
_PLAIN_VALUE = re.compile(
    r"[A-Za-z_ +-][A-Za-z0-9_ +-]{0,39}|-?[0-9]{1,12}(\.[0-9]{1,9})?|[0-9 ,;|-]{1,200}"
)
_LARGEST_PLAIN = 10**12
# Parts of names of options that make a runtime load or write files, or that hold addresses.
_NOT_PLAIN_NAME = re.compile(
    r"path|file|dir|folder|lib|plugin|package|prefix|profil|config|xclbin|dump|external|alloc_|_free|user_|(cache|context)_enable",
    re.IGNORECASE,
)


class SessionEntries(FrozenModel):
    """How the models of a target are opened: what a recipe's `session` says of it.

    Args:
        options: Fields of ONNX Runtime's SessionOptions, its config entries (names with dots), and `io_binding`; or properties
            of OpenVINO.
        provider: Options of ONNX Runtime's execution provider.
    """

    options: dict[str, RuntimeOption] = Field(default_factory=dict)
    provider: dict[str, RuntimeOption] = Field(default_factory=dict)

    @property
    def on_files(self) -> tuple[str, ...]:
        """The entries that may make a runtime load or write files, such as a library of a provider.

        Example:
            >>> SessionEntries(options={"intra_op_num_threads": 2}, provider={"backend_path": "libQnnHtp.so"}).on_files
            ('provider.backend_path',)
        """
        return tuple(
            f"{group}.{name}"
            for group, entries in self
            for name, value in entries.items()
            if not _plain(name, value)
        )

    def portable(self) -> SessionEntries:
        """Return the entries that may be used with a package of any origin: those that are not `on_files`."""
        return SessionEntries.model_validate(
            {
                group: {name: value for name, value in entries.items() if _plain(name, value)}
                for group, entries in self
            }
        )


def _plain(name: str, value: RuntimeOption) -> bool:
    is_plain = (
        abs(value) < _LARGEST_PLAIN
        if isinstance(value, int)
        else _PLAIN_VALUE.fullmatch(value) is not None
    )
    return is_plain and not _NOT_PLAIN_NAME.search(name)


def _checked(entries: SessionEntries) -> SessionEntries:
    """The entries of a package, which may come from anybody."""
    if entries.on_files:
        raise ValueError(
            f"{entries.on_files[0]} may make the runtime load or write files, and is not used"
        )
    return entries


PackagedEntries = Annotated[SessionEntries, AfterValidator(_checked)]


# Lengths of models for single rows: kernels work on blocks of 16 tokens, and a long row gains little by a shorter padding.
_STATIC = (*range(16, 129, 16), *range(160, 513, 32))
LONGEST_STATIC = _STATIC[-1]


def static_lengths(up_to: int) -> tuple[int, ...]:
    """Return the lengths for which a session has models of their own.

    Args:
        up_to: tokens of a row; the last length is at least that, as far as there is one.

    Example:
        >>> static_lengths(40)
        (16, 32, 48)
    """
    return tuple(length for i, length in enumerate(_STATIC) if up_to > (_STATIC[i - 1] if i else 0))


class SessionOptions(FrozenModel):
    """How to open a model.

    Args:
        threads: threads of one inference; 0 leaves the number to the runtime.
        streams: inferences that run at the same time, each on its own threads. Further calls wait. 0 takes as many as the
            runtime recommends for throughput; where it recommends none, one for each core or group of `threads` cores.
        precision: precision of the float operators: `f32`, `bf16` or `f16`; None for the precision that the target prefers.
        cache: folder for compiled models, so that they open faster the next time.
        log: print the log of the runtime on stderr.
        allow_fallback: run operators on the CPU that the target's device does not support, instead of raising an error.
        runtime_options: options of the runtime by name, of those that the target lists in `runtime_options`.
        device: device of the runtime's own, such as `AUTO` or `GPU`, for runtimes that can choose; None for the target's.
        static_up_to: tokens of a single row, for targets with `static_lengths`: rows of the lengths
            `static_lengths(static_up_to)` get models of the static shape [1, S], each made at its first row.
        entries: what the recipe sets for the target. It takes the place of all the above, and of tuned settings.
        outputs: name of an output in results → its name in the file; none for those that `read_outputs` names.
        heads: attention heads of a layer, where they are known: memory for long texts follows from them.
    """

    threads: int = 0
    streams: int = 1
    precision: str | None = None
    cache: str | None = None
    log: bool = False
    allow_fallback: bool = False
    runtime_options: Mapping[str, RuntimeOption] = Field(default_factory=dict)
    device: str | None = None
    static_up_to: int = Field(default=0, ge=0, le=LONGEST_STATIC)
    entries: SessionEntries = SessionEntries()
    outputs: Mapping[str, str] = Field(default_factory=dict)
    heads: int = 0

    def outputs_of(self, names: Sequence[str], *, every: bool = False) -> dict[str, str]:
        """Return name in results → name in the file, of the outputs to compute.

        Args:
            names: of all outputs of the file.
            every: all of them, of a graph of any kind.
        """
        read = names if every else read_outputs(names)
        return dict(self.outputs) or {name: name for name in read}


class Session(Protocol):
    """An opened model. Any number of threads may call it; as many calls as there are streams run at the same time."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""

    @property
    def precision(self) -> str:
        """Precision of the float operators, as the runtime reports it."""

    @property
    def threads(self) -> int:
        """Number of threads of one inference."""

    @property
    def streams(self) -> int:
        """Number of inferences that run at the same time."""

    @property
    def device(self) -> str | None:
        """The device that really runs the model, where the user chose it: `AUTO (CPU)`; None for the device of the target."""

    @property
    def prepares_shapes(self) -> bool:
        """Return whether the first inference at a shape takes longer, because the runtime prepares kernels for the shape."""

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs by name. Feeds that the model has no input for are ignored."""


@runtime_checkable
class AsynchronousSession(Session, Protocol):
    """A session whose runtime runs several requests at the same time. Others run on threads of the caller."""

    def run_each(
        self, batches: Iterator[Feeds], requests: int, on_done: Callable[[int, float], None]
    ) -> None:
        """Run batches, several at the same time, and read their outputs.

        Args:
            batches: the next is taken when a request is free.
            requests: inferences in flight.
            on_done: called with the number of a batch and its time in ms, from its inputs to its outputs. Any thread calls it.
        """


Goal = Literal["latency", "throughput"]
GOALS: tuple[Goal, ...] = get_args(Goal)
# Most tokens of one inference, padding included. With more, activations leave the caches of any CPU, and memory use grows.
MAX_RUN_TOKENS = 2048
# Threads that a setting may start: several per core, and on any machine as many as a large one has.
_PER_CORE, _ALWAYS_ALLOWED = 4, 64


def most_threads() -> int:
    """Return how many threads a setting of any origin may start on this machine."""
    return max(_ALWAYS_ALLOWED, _PER_CORE * environment.cores())


class Setting(FrozenModel):
    """One way to open a model and to batch its inputs.

    Args:
        streams: inferences that run at the same time.
        threads: threads of one inference; 0 leaves the number to the runtime.
        tokens: most tokens of one inference, padding included.
        runtime_options: options of the runtime by name, of those that the target lists in `runtime_options`.
    """

    streams: Count = 1
    threads: int = Field(default=0, ge=0)
    tokens: Count = MAX_RUN_TOKENS
    runtime_options: Mapping[str, RuntimeOption] = Field(default_factory=dict)

    def options(self, **others: Any) -> SessionOptions:
        """Return this setting as options of a session.

        Args:
            others: further fields of `SessionOptions`.
        """
        return SessionOptions(
            streams=self.streams,
            threads=self.threads,
            runtime_options=self.runtime_options,
            **others,
        )

    def check(self, listed: Mapping[str, tuple[RuntimeOption, ...]], *, where: str) -> None:
        """Check that this machine and a target can use the setting.

        Args:
            listed: `runtime_options` of the target.
            where: who set it, for the error.

        Raises:
            RecipeError: it would start too many threads, or has an option or a value that the target does not list.
        """
        most = most_threads()
        if self.streams * max(1, self.threads) > most:
            raise RecipeError(
                "too many threads for this machine",
                where=where,
                got=f"{self.streams} streams of {self.threads or 1} threads",
                expected=f"at most {most}",
                fix="set fewer streams or threads",
            )
        for name, value in self.runtime_options.items():
            values = listed.get(name, ())
            if not any(type(value) is type(other) and value == other for other in values):
                raise RecipeError(
                    "not an option of the target that may be set",
                    where=where,
                    got=f"{name}: {value!r}"[:100],
                    expected=", ".join(map(repr, values)) or ", ".join(listed) or "no options",
                )


class Tried(FrozenModel):
    """One setting that a search has timed.

    Args:
        ratio: median time divided by the median time of the default setting; None where the model could not be opened.
        problem: why the model could not be opened.
    """

    setting: Setting
    ratio: float | None
    problem: str | None = None


class Tuned(Tabular):
    """Result of a search for the fastest setting.

    Args:
        setting: the fastest setting, or the default where no other was significantly faster.
        ratio: its time divided by the time of the default setting.
        default_ms: median time of one round of work with the default setting.
        rows: rows in one round of work.
        tried: every setting that was timed, in order.
    """

    goal: Goal
    setting: Setting
    ratio: Estimate
    default_ms: float
    rows: int
    tried: tuple[Tried, ...]

    def to_rows(self) -> list[Row]:
        """One row per setting that was timed."""
        return [
            {**tried.setting.model_dump(), "ratio": tried.ratio, "problem": tried.problem}
            for tried in self.tried
        ]


def goal_named(name: str, *, where: str = "goal") -> Goal:
    """Return a goal by its name.

    Raises:
        RecipeError: there is no goal of that name.

    Example:
        >>> goal_named("throughput")
        'throughput'
    """
    for goal in GOALS:
        if goal == name:
            return goal
    raise RecipeError("unknown goal", where=where, got=repr(name), expected=" or ".join(GOALS))


def default_setting(goal: Goal) -> Setting:
    """Return the setting of a package that was not tuned.

    Args:
        goal: for `latency` one inference uses all cores; for `throughput` each core runs one inference.
    """
    return Setting(streams=environment.cores() if goal == "throughput" else 1)
