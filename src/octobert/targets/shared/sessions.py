"""Code that runtimes share: importing a package, feeds and outputs of a file, static shapes, and errors as one sentence."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from octobert.core import budget, environment
from octobert.core.capability import Probe
from octobert.core.errors import DataError, ModelError, OctobertError, TargetError, reason
from octobert.core.heads import HEADS
from octobert.core.onnx_files import INPUTS, ROW_NUMBERS, TensorInfo, input_named
from octobert.core.session import Feeds, Session, SessionOptions, shorter_files

_LONGEST = 300
# Two-dimensional outputs with one value per token. Outputs with three dimensions always have one vector per token.
_PER_TOKEN = {name for head in HEADS.values() if head.shape == "tokens" for name in head.outputs}


def unavailable(package: str, install: str) -> Probe | None:
    """Return why a package cannot be used: it is not installed, or cannot be imported here. None if it can.

    Args:
        package: as it is imported.
        install: the command that installs it, for the error message.
    """
    if importlib.util.find_spec(package) is None:
        return Probe(
            available=False, missing=f"the package {package} is not installed", install=install
        )
    try:
        importlib.import_module(package)
    except (ImportError, OSError, MemoryError) as error:
        # A library that is missing on this machine, or too little memory for the libraries of the package.
        why = " ".join(str(error).split()) or type(error).__name__
        return Probe(available=False, missing=f"the package {package} cannot be imported: {why}")
    return None


@contextmanager
def runtime_errors(what: str, path: Path, *, line: int = -1) -> Iterator[None]:
    """Turn whatever a runtime raises into one sentence: runtimes have no base class for their errors.

    Args:
        what: the failure, such as `onnxruntime cannot run the model`.
        path: the model file.
        line: of the runtime's message, the one that says most; most runtimes write the reason last.

    Raises:
        TargetError: the runtime raised an error.
    """
    try:
        yield
    except OctobertError:
        raise
    except Exception as error:
        raise TargetError(what, where=str(path), got=reason(error, line)) from error


def with_streams(options: SessionOptions) -> SessionOptions:
    """Return options with a number of streams: where none is chosen, the cores are shared out among them."""
    if options.streams:
        return options
    return options.replaced(streams=max(1, environment.cores() // (options.threads or 1)))


class Inputs:
    """The inputs of a model file, and what it reads from feeds.

    Args:
        ports: of the file.
        path: of the file, for errors.
    """

    def __init__(self, ports: Sequence[TensorInfo], path: Path) -> None:
        self._path = path
        self._ports = tuple(ports)
        ids = next((port for port in ports if input_named(port.name) == INPUTS[0]), ports[0])
        self.shape = ids.shape or (-1, -1)

    def model_feeds(self, feeds: Feeds) -> Feeds:
        """Return the feeds that the model reads, under its names and in its types.

        Raises:
            ModelError: the model has another input.
            DataError: the feed of a graph of any kind lacks one.
        """
        return {port.name: self._fed(port, feeds) for port in self._ports}

    def _fed(self, port: TensorInfo, feeds: Feeds) -> np.ndarray:
        usual = port.name if port.name in feeds else input_named(port.name)
        if usual == ROW_NUMBERS and INPUTS[0] in feeds:
            return np.arange(np.atleast_1d(feeds[INPUTS[0]]).shape[0], dtype=port.dtype)
        if usual not in feeds and not {*feeds} <= {*INPUTS}:
            raise DataError(
                f'the feed has no input "{port.name[:_LONGEST]}"',
                got=", ".join(feeds)[:_LONGEST],
                expected=", ".join(each.name for each in self._ports)[:_LONGEST],
                fix="give an array for each input of the graph, under its name",
            )
        if usual not in feeds:
            raise ModelError(
                "the model has other inputs than an encoder",
                where=str(self._path),
                got=port.name[:_LONGEST],
                expected=", ".join(feeds),
            )
        return _typed(feeds[usual], port)


def _typed(array: np.ndarray, port: TensorInfo) -> np.ndarray:
    """A feed in the type of its input.

    Raises:
        DataError: a number would become another one: beyond the range of the type, or a part of a whole one.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        typed = array.astype(port.dtype, copy=False)
    if typed is not array:
        # float types round; the others keep every number.
        kept = (
            np.isfinite(typed) == np.isfinite(array)
            if typed.dtype.kind == "f"
            else (typed == array) & ((typed < 0) == (array < 0))
        )
        if not kept.all():
            raise DataError(
                f'the input "{port.name[:_LONGEST]}" holds a number that its type does not have',
                got=f"{array[~kept].flat[0]}, {array.dtype}",
                expected=port.dtype,
                fix="give numbers of the type of the input",
            )
    return typed


def wide(array: np.ndarray) -> np.ndarray:
    """Return an output in float32 if it is in float16, whose sums overflow."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


class SessionWithShape(Session, Protocol):
    """A session that knows the shape of the model's inputs."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, [batch, sequence]; -1 for a free axis."""

    @property
    def shorter(self) -> str:
        """`SHORTER_METADATA` of the model; empty for none."""


class StaticShapeSession:
    """A session that runs batches of any size on a model of one static shape; padding is cut off the outputs.

    A file of another tool may have one free axis: then the other one is padded.

    Args:
        session: a session of the model. Its token ids have its `shape`, and so have its other inputs.
        largest: [batch, sequence] that a model with free axes takes at most: larger batches run in parts, nothing is padded.
        shorter: sessions of the model for shorter rows, by their lengths.
    """

    def __init__(
        self,
        session: SessionWithShape,
        largest: tuple[int, int] | None = None,
        shorter: Mapping[int, Session] = MappingProxyType({}),
    ) -> None:
        self._session, self._pads = session, largest is None
        self._shorter = dict(sorted(shorter.items()))
        self._batch, self._sequence = largest or session.shape
        budget.check_batch(self._batch, self._sequence, where="shape")
        self.outputs, self.precision = session.outputs, session.precision
        self.threads, self.streams, self.prepares_shapes = session.threads, session.streams, False

    @property
    def device(self) -> str | None:
        """The device that really runs the model, where the user chose the device."""
        return self._session.device

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name.

        Raises:
            TargetError: a row is longer than the static shape.
        """
        rows, length = feeds["input_ids"].shape
        if (fitting := next((n for n in self._shorter if n >= length), None)) is not None:
            return self._shorter[fitting].run(feeds)
        if length > self._sequence >= 0:
            raise TargetError(
                "a row is longer than the model's shape",
                got=f"{length} tokens",
                expected=f"at most {self._sequence}",
                fix="shorten the row, or make the model with a longer shape.sequence",
            )
        # Zeros in the mask hide the padding tokens, whatever the id 0 means. Padding rows attend to their first token.
        batch = self._batch if self._batch > 0 else rows
        more = max(0, self._sequence - length) if self._pads else 0
        extra = -rows % batch if self._pads else 0
        padded = {n: np.pad(a, ((0, extra), (0, more))) for n, a in feeds.items()}
        padded["attention_mask"][rows:, 0] = 1
        starts = range(0, rows, batch)
        runs = [
            self._session.run({n: a[start : start + batch] for n, a in padded.items()})
            for start in starts
        ]
        return {
            name: _without_padding([run[name] for run in runs], name, rows, length)
            for name in self.outputs
        }


def static_if_fixed(path: Path, open_: Callable[[Path], SessionWithShape]) -> Session:
    """Open a model: a `StaticShapeSession`, with the files for shorter rows beside it, or the session itself if both axes are
    free, as in float graphs. A file that was moved by itself takes all rows.

    Raises:
        ModelError: a file beside it is made for another length than its name says.
    """
    session = open_(path)
    if tuple(session.shape) == (-1, -1):
        return session
    named, shorter = session.shorter.split(","), dict[int, Session]()
    for length, file in shorter_files(path).items():
        if str(length) in named:
            other = open_(file)
            if tuple(other.shape) != (session.shape[0], length):
                raise ModelError(
                    "the file is made for other rows than its name says",
                    where=str(file),
                    got=str(list(other.shape)),
                    expected=str([session.shape[0], length]),
                    fix="download or copy the package again",
                )
            shorter[length] = StaticShapeSession(other)
    return StaticShapeSession(session, shorter=shorter)


def _without_padding(parts: list[np.ndarray], name: str, rows: int, length: int) -> np.ndarray:
    array = np.concatenate(parts)[:rows]
    return array[:, :length] if array.ndim > 2 or name in _PER_TOKEN else array
