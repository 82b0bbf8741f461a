"""Errors of sessions: what a runtime raises while it runs a model, as one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from octobert.core.errors import ModelError, OctobertError, TargetError, reason
from octobert.core.session import Feeds

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


def inputs_of(feeds: Feeds, names: Sequence[str], path: Path) -> Feeds:
    """Return the feeds that a model has inputs for.

    Raises:
        ModelError: the model has another input.
    """
    if others := [name for name in names if name not in feeds]:
        got, expected = ", ".join(others)[:_LONGEST], ", ".join(feeds)
        raise ModelError("the model has other inputs than an encoder", where=str(path), got=got, expected=expected)
    return {name: feeds[name] for name in names}
