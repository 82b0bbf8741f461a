"""What sessions share: feeds and outputs in the form of a file, streams, and errors of a runtime as one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from octobert.core import environment
from octobert.core.errors import ModelError, OctobertError, TargetError, reason
from octobert.core.onnx_files import INPUTS, ROW_NUMBERS, Port, input_named
from octobert.core.session import Feeds, SessionOptions

_LONGEST = 300


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
    return options.model_copy(
        update={"streams": max(1, environment.cores() // (options.threads or 1))}
    )


def no_choice_of_device(title: str, device: str) -> TargetError:
    """The error of a runtime whose targets are devices themselves.

    Args:
        title: of the runtime.
        device: that was asked for.
    """
    fix = "leave it out, or open a package for an OpenVINO target"
    return TargetError(
        f"targets of {title} run on one device only", where="device", got=device, fix=fix
    )


class Inputs:
    """The inputs of a model file, and what it reads from feeds.

    Args:
        ports: of the file.
        path: of the file, for errors.
    """

    def __init__(self, ports: Sequence[Port], path: Path) -> None:
        self._path = path
        self._ports = tuple(ports)
        ids = next((port for port in ports if input_named(port.name) == INPUTS[0]), ports[0])
        self.shape = ids.shape or (-1, -1)

    def of(self, feeds: Feeds) -> Feeds:
        """Return the feeds that the model reads, under its names and in its types.

        Raises:
            ModelError: the model has another input.
        """
        return {port.name: self._fed(port, feeds) for port in self._ports}

    def _fed(self, port: Port, feeds: Feeds) -> np.ndarray:
        usual = port.name if port.name in feeds else input_named(port.name)
        if usual == ROW_NUMBERS and INPUTS[0] in feeds:
            return np.arange(len(feeds[INPUTS[0]]), dtype=port.dtype)
        if usual not in feeds:
            got, expected = port.name[:_LONGEST], ", ".join(feeds)
            raise ModelError(
                "the model has other inputs than an encoder",
                where=str(self._path),
                got=got,
                expected=expected,
            )
        return feeds[usual].astype(port.dtype, copy=False)


def wide(array: np.ndarray) -> np.ndarray:
    """Return an output in float32 if it is in float16, whose sums overflow."""
    return array.astype(np.float32) if array.dtype == np.float16 else array
