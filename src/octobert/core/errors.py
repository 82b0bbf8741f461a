"""The errors of octobert. Each has a message that says what failed and how to fix it, and an exit code of the command line.

    OctobertError        1   any other error
    ├── RecipeError      2   the recipe or the command line is not valid
    ├── DataError        3   the rows: unknown labels, leakage, empty files
    │   ├── ColumnError  3   the rows lack columns that the task reads
    │   └── TokenError   3   a text has a token that the model has no embedding for
    ├── ModelError       4   the checkpoint or the ONNX file: wrong format, unsupported, unsafe
    │   └── ParityError  4   two forms of one model disagree
    ├── PlanError        5   a quantization plan that quantizes nothing, or that the target does not accept
    ├── TargetError      6   a runtime that is missing, or that fails on the model
    ├── BusyError        7   another run uses the output directory
    ├── StorageError     8   the disk: full, read-only, or with unexpected contents
    ├── AccuracyError    9   the run is complete, but no plan meets the accuracy criterion
    ├── SpeedError       9   the run is complete, but a model is not shown to be as fast as the recipe wants
    └── LimitError       9   the search is complete, but no model keeps all limits

Stages run in processes of their own; the JSON form of an error carries it to the user unchanged.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from octobert.core.plain import printable, without_passwords

E = TypeVar("E", bound="OctobertError")
T = TypeVar("T")
# Characters of one part of an error.
_LONGEST = 600
# Items that one error names beside the first, and characters of each.
_NAMED, _SHORT = 9, 40


class OctobertError(Exception):
    """An error with the parts that a message needs.

    Args:
        what: The failure, as a clause without a full stop.
        where: Recipe key, file and line, node, or column.
        got: The value that was found.
        expected: What a valid value is.
        fix: What to do, as an imperative clause.

    Example:
        >>> print(OctobertError("the file does not exist", where="a.yaml", fix="check the path"))
        a.yaml: the file does not exist; check the path.
    """

    exit_code = 1
    # Of the process that raised it, where that is another one; for `events.jsonl`.
    traceback: str = ""

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        # All may quote URLs, and the last three files of any content.
        self.what, self.fix = without_passwords(what), fix and without_passwords(fix)
        self.where, self.got, self.expected = (
            shortened(without_passwords(p)) if p else p for p in (where, got, expected)
        )
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        details = [f"got {self.got}"] if self.got else []
        details += [f"expected {self.expected}"] if self.expected else []
        body = f"{head} ({', '.join(details)})" if details else head
        sentence = f"{body}; {self.fix}" if self.fix else body
        return printable(sentence if sentence.endswith("?") else f"{sentence}.")

    def to_json(self) -> dict[str, str | None]:
        """The error as plain data, for `events.jsonl` and for other processes."""
        fields = {name: getattr(self, name) for name in ("what", "where", "got", "expected", "fix")}
        return {"type": type(self).__name__, **fields}

    @staticmethod
    def from_json(data: dict[str, str | None], traceback: str = "") -> OctobertError:
        """The inverse of `to_json`, with the traceback of its process. An unknown type becomes an `OctobertError`."""
        fields = dict(data)
        kind = _classes(OctobertError).get(str(fields.pop("type", "")), OctobertError)
        error = kind(str(fields.pop("what")), **fields)
        error.traceback = traceback
        return error


class RecipeError(OctobertError):
    """The recipe or the command line is not valid."""

    exit_code = 2


class DataError(OctobertError):
    """The rows cannot be used."""

    exit_code = 3


class ColumnError(DataError):
    """The rows lack columns that the task reads."""


class TokenError(DataError):
    """A text has a token that the model has no embedding for."""


class ModelError(OctobertError):
    """The checkpoint, the ONNX file or the package cannot be used."""

    exit_code = 4


class ParityError(ModelError):
    """Two forms of one model compute different outputs."""


class PlanError(OctobertError):
    """The quantization plan quantizes nothing, or the target does not accept it."""

    exit_code = 5


class TargetError(OctobertError):
    """The target's runtime is missing, or fails on the model."""

    exit_code = 6


class KilledError(OctobertError):
    """A stage's process was killed by a signal."""


class BusyError(OctobertError):
    """Another run uses the output directory."""

    exit_code = 7


class StorageError(OctobertError):
    """A file cannot be written or read."""

    exit_code = 8


class AccuracyError(OctobertError):
    """The run is complete, but no plan meets the accuracy criterion."""

    exit_code = 9


class SpeedError(OctobertError):
    """The run is complete, but a model is not shown to be as fast as the recipe wants."""

    exit_code = 9


class LimitError(OctobertError):
    """The search is complete, but no model keeps all limits. The nearest one is packaged."""

    exit_code = 9


class BrokenPluginWarning(UserWarning):
    """A plugin of an installed package is left out, because it is broken. The message says which, and why."""


class DownloadWarning(UserWarning):
    """A model was downloaded without a digest that it must have. The message has the digest that it has."""


class IgnoredFileWarning(UserWarning):
    """A file of a package was not used. The message says which, and why."""


class OtherMachineWarning(UserWarning):
    """A model that `octobert auto` chose is opened on another kind of machine. The message says what differs."""


class PublishedFileWarning(UserWarning):
    """A file in an output directory was edited, kept under another name, or removed. The message says which, and why."""


class TokenWarning(UserWarning):
    """Rows of a corpus get no embedding, because the model has none for a token of theirs. The message names them."""


def reason(error: BaseException, line: int | None = None, *, longest: int = 300) -> str:
    """One line of the message of an error that is not octobert's own; the name of its class if it has no message.

    Args:
        error: The error.
        line: Of the message, the line that says most. Default: all lines, joined.
        longest: Characters.
    """
    # Those of the system have a number and a path, too.
    text = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    return (" ".join(text.split()) if line is None else text.splitlines()[line])[:longest]


def each(read: Callable[..., T], items: Iterable[tuple[Any, ...]]) -> list[T]:
    """Return `read(*item)` of every item.

    Raises:
        DataError: items are wrong: the first one, and with it the number of the others and nine of them.
    """
    values, wrong = list[T](), list[DataError]()
    for item in items:
        try:
            values.append(read(*item))
        except DataError as error:
            wrong.append(error)
    if not wrong:
        return values
    first, *others = wrong
    if not others:
        raise first
    # Of a place, `FILE, row 3, column "label"`, what the others share.
    file, _, column = (*re.split(r"\b((?:row|line) \d+)", str(first.where), maxsplit=1), "", "")[:3]
    named = "; ".join(
        f"{str(error.where).removeprefix(file).removesuffix(column)}: {(error.got or error.what)[:_SHORT]}"
        for error in others[:_NAMED]
    )
    more = f"{len(others):,} more: {named}" + "; …" * (len(others) > _NAMED)
    raise type(first)(
        first.what,
        where=first.where,
        got=f"{first.got}, and {more}" if first.got else more,
        expected=first.expected,
        fix=first.fix,
    ) from first


def causes_of(error: BaseException | None) -> list[BaseException]:
    """An error and what it was raised because of."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def shortened(text: str) -> str:
    """Return a text without its middle if it is longer than anybody reads."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _classes(root: type[OctobertError]) -> dict[str, type[OctobertError]]:
    """A class and its subclasses by name."""
    inner = [_classes(kind) for kind in root.__subclasses__()]
    return {
        root.__name__: root,
        **{name: kind for classes in inner for name, kind in classes.items()},
    }


# Names that octobert had until 2026-11-29 → what to do instead.
_GONE = {
    "torch-cpu": "it is gone; use ort-cpu, which is faster and opens the same ONNX file",
    "torch-cuda": "it is gone; quantize for ort-cuda or tensorrt",
    "torch-cuda-f32": "it is gone; use ort-cuda-f32",
}


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A suggestion for a name that is not there: what took its place; the nearest name; for the first part of names, all of
    them; or all names.

    Example:
        >>> did_you_mean("openvino", ["ort-cpu", "openvino-cpu"])
        'did you mean "openvino-cpu"?'
        >>> did_you_mean("openvino", ["ort-cpu", "openvino-cpu", "openvino-ep"])
        'did you mean "openvino-cpu" or "openvino-ep"?'
        >>> did_you_mean("query", [])
        'known: none'
    """
    if word in _GONE:
        return _GONE[word]
    names = sorted(names)
    begun = [f'"{name}"' for name in names if word and name.startswith(f"{word}-")]
    if begun:
        others = ", ".join(begun[:-1])
        return f"did you mean {others} or {begun[-1]}?" if others else f"did you mean {begun[-1]}?"
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else f"known: {', '.join(names) or 'none'}"


def unreadable(kind: type[E], error: OSError, where: object) -> E:
    """The error for a file that the operating system does not let us read.

    Args:
        kind: of the error.
        error: as it was raised.
        where: the file.
    """
    if error.errno == errno.ENOENT:
        return not_there(kind, where)
    got, _, fix = str(error.strerror).partition("; ")
    denied = isinstance(error, PermissionError)
    return kind(
        "the file cannot be read",
        where=str(where),
        got=got,
        fix=fix or ("check its permissions" if denied else "copy or download the file itself"),
    )


def not_there(kind: type[E], where: object) -> E:
    """The error for a file or folder that is not there, or a link that leads to nothing; see `unreadable`."""
    what, got, fix = "there is no such file or folder", None, "check the path"
    if os.path.islink(str(where)):
        what, got = "the link leads to nothing", os.readlink(str(where))
        fix = "download it again, or copy it from where it was with its links followed (cp -rL)"
    return kind(what, where=str(where), got=got, fix=fix)


def hub_error(kind: type[E], error: BaseException, name: str) -> E:
    """Return an error of the hub in one sentence: its client and `datasets` raise many types, often one because of another.

    Args:
        kind: `ModelError` where a model is asked for, `DataError` where a data set is.
        error: as it was raised.
        name: of the model or data set.
    """
    from huggingface_hub import constants, errors

    is_data = kind is DataError
    noun = "data set" if is_data else "model"
    page = f"{constants.ENDPOINT}/{'datasets/' if is_data else ''}{name}"
    causes = causes_of(error)

    def is_caused_by(cause: type[BaseException]) -> bool:
        return any(isinstance(exception, cause) for exception in causes)

    got = f"{type(error).__name__}: {reason(error, 0, longest=200)}"
    if is_caused_by(errors.GatedRepoError) or "gated dataset" in str(error):
        what = f"the {noun} is gated, and the hub does not give it to you"
        fix = f"accept its licence on {page}, and give your token: HF_TOKEN=… or hf auth login"
    elif is_caused_by(errors.RevisionNotFoundError):
        what = f"the {noun} has no such revision"
        fix = f"look for its branches and tags on {page}"
    elif is_caused_by(errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        what = f"there is no folder of that name, and the {noun} is not in the cache of the hub's client"
        fix = "unset HF_HUB_OFFLINE once, to download it, or give a local folder"
    elif is_data and type(error) is ValueError:
        what = "the data set has no such configuration or split"
        got = got.removeprefix("ValueError: ")
        fix = "name another configuration (data.config) or split (data.calibrate.from, data.evaluate.from)"
    else:
        what = (
            "there is no file or folder of that name, and it could not be downloaded from the hub"
        )
        fix = "check the name, the network and your token (HF_TOKEN), or give a local folder"
    return kind(what, where=name, got=got, fix=fix)
