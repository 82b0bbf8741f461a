"""Every error octobert raises on purpose: one sentence a user can act on, and the exit code that goes with it.

    OctobertError        1   anything that went wrong and is not listed below
    ├── RecipeError      2   the recipe or the command line asks for something that cannot be
    ├── DataError        3   the rows: missing columns, unknown labels, leakage, empty files
    ├── ModelError       4   the checkpoint or the ONNX file: wrong format, unsupported, unsafe
    │   └── ParityError  4   two forms of one model disagree
    ├── PlanError        5   a quantization plan that quantizes nothing, or that the target refuses
    ├── TargetError      6   a runtime that is missing, or that fails on the model
    ├── BusyError        7   another run holds the output directory
    ├── StorageError     8   the disk: full, read-only, or holding something unexpected
    └── AccuracyError    9   the run is complete, but its model misses the accuracy that was asked for

An error says what failed, where, what was got, what was expected, and what to do. It has a JSON form, because stages run
in their own process and their errors must reach the user unchanged.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OctobertError(Exception):
    """What failed, with the parts that let the reader fix it.

    Args:
        what: the failure, as a clause without a final stop.
        where: the recipe path, file and line, node or column.
        got: what was found there.
        expected: what would have been right.
        fix: what to do, as an imperative clause.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.what, self.where, self.got, self.expected, self.fix = what, where, got, expected, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        details = [f"got {self.got}"] if self.got else []
        details += [f"expected {self.expected}"] if self.expected else []
        body = f"{head} ({', '.join(details)})" if details else head
        return f"{body}; {self.fix}." if self.fix else f"{body}."

    def to_json(self) -> dict[str, str | None]:
        """The error as plain data, for `events.jsonl` and for crossing a process boundary."""
        fields = {name: getattr(self, name) for name in ("what", "where", "got", "expected", "fix")}
        return {"type": type(self).__name__, **fields}

    @staticmethod
    def from_json(data: dict[str, str | None]) -> OctobertError:
        """The inverse of `to_json`; an unknown type comes back as the root class."""
        fields = dict(data)
        kind = _CLASSES.get(str(fields.pop("type", "")), OctobertError)
        return kind(str(fields.pop("what")), **fields)


class RecipeError(OctobertError):
    exit_code = 2


class DataError(OctobertError):
    exit_code = 3


class ModelError(OctobertError):
    exit_code = 4


class ParityError(ModelError):
    pass


class PlanError(OctobertError):
    exit_code = 5


class TargetError(OctobertError):
    exit_code = 6


class BusyError(OctobertError):
    exit_code = 7


class StorageError(OctobertError):
    exit_code = 8


class AccuracyError(OctobertError):
    exit_code = 9


_CLASSES = {
    kind.__name__: kind
    for kind in (
        OctobertError,
        RecipeError,
        DataError,
        ModelError,
        ParityError,
        PlanError,
        TargetError,
        BusyError,
        StorageError,
        AccuracyError,
    )
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"?` for a near miss, else the list of what exists."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else f"known: {', '.join(known)}"
