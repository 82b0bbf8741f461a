"""The base classes of data: frozen, with a JSON form; records that are also tables; attributes computed at their first use."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, NoReturn, Self, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from octobert.core.errors import OctobertError
from octobert.core.files import MOST_BYTES, content_of
from octobert.core.plain import parsed_json, preview

if TYPE_CHECKING:
    import pandas


class FrozenModel(BaseModel):
    """Frozen data with a JSON form; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of_json(cls, content: str | bytes) -> Self:
        """The record that a file of unknown origin has.

        Raises:
            ValueError: it has none, or a number that is not finite, or that other readers of JSON do not know exactly.
        """
        parsed_json(content, parse_int=_whole, **FINITE)
        return cls.model_validate_json(content)

    @classmethod
    def of_file(
        cls, path: Path, kind: type[OctobertError], fix: str, most: int = MOST_BYTES
    ) -> Self:
        """The record that is a file of unknown origin.

        Args:
            path: the file.
            kind: of the error.
            fix: for the error.
            most: bytes that it may have.

        Raises:
            OctobertError: it cannot be read, or `of_json` finds none; of the type `kind`.
        """
        try:
            return cls.of_json(content_of(path, most))
        except (OSError, ValueError) as error:
            raise kind(
                f"{path.name} cannot be read",
                where=str(path),
                got=error.strerror if isinstance(error, OSError) else first_problem(error),
                fix=fix,
            ) from error

    def replaced(self, **changes: Any) -> Self:
        """A copy in which some fields have other values, checked by the fields' types.

        Raises:
            ValueError: there is no such field, or the value is of another type.

        Example:
            >>> class Point(FrozenModel):
            ...     x: int
            >>> Point(x=1).replaced(x=2)
            Point(x=2)
        """
        kind = type(self)
        checked = {name: _type_of(kind, name).validate_python(v) for name, v in changes.items()}
        return self.model_copy(update=checked)


@functools.cache
def _type_of(kind: type[BaseModel], name: str) -> TypeAdapter[Any]:
    """What checks the values of a field."""
    if name not in kind.model_fields:
        raise ValueError(f"{kind.__name__} has no field {name}")
    return TypeAdapter(kind.model_fields[name].rebuild_annotation())


# How many of what is held, started or waited for one by one, such as rows of a batch: up to more than anybody means.
Count = Annotated[int, Field(gt=0, le=2**20)]
# Random generators of libraries take no larger one.
Seed = Annotated[int, Field(ge=0, lt=2**32)]
# Sizes and counts are divided, formatted and plotted, which Python does not do with numbers of any length.
_LARGEST = 2**53


def _beyond(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:60]}, expected one of at most {_LARGEST}")


def _whole(text: str) -> int:
    return value if len(text) < 20 and abs(value := int(text)) <= _LARGEST else _beyond(text)


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _beyond(text)


# How `parsed_json` reads numbers that are computed with.
FINITE: dict[str, Any] = {"parse_float": _finite, "parse_constant": _beyond}


def both_ends(record: Any) -> Any:
    """A check for records with an interval that may be unknown: both of its ends are there, or none.

    Raises:
        ValueError: one is missing.
    """
    if (record.low is None) != (record.high is None):
        raise ValueError("one end of the interval is missing")
    return record


def first_problem(error: ValueError) -> str:
    """Return what is wrong with data, in one line: where in the data, and what is expected there."""
    if not isinstance(error, ValidationError):
        return str(error)[:200]
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part)[:60] for part in first["loc"])
    if first["type"] == "value_error":
        # A sentence of ours, which says all.
        return f"{place}: {first['msg'].removeprefix('Value error, ')[:200]}".removeprefix(": ")
    got = (
        ""
        if first["type"] in ("missing", "json_invalid")
        else f", not {preview(first['input'], 60)}"
    )
    return f"{place}: {first['msg'][:200]}{got}".removeprefix(": ")


Row = dict[str, Any]
# Rows that a notebook shows.
_SHOWN = 60


class Tabular(FrozenModel):
    """A record whose main content is a table. A class says which by `to_rows`."""

    def to_rows(self) -> list[Row]:
        """The table as plain data: one dictionary per row, with the same keys in each."""
        raise NotImplementedError

    def to_dataframe(self) -> pandas.DataFrame:
        """The table as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def _repr_html_(self) -> str:
        """The table that notebooks show."""
        return as_html(self)

    def __repr__(self) -> str:
        count = len(self.to_rows())
        return f"<{type(self).__name__}: {count} row{'' if count == 1 else 's'}>"

    def __str__(self) -> str:
        return repr(self)


@functools.singledispatch
def as_html(record: Tabular) -> str:
    """A record as HTML without scripts: its table. Modules that know more of a class register another function for it."""
    rows = record.to_rows()
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in names) + "</tr>"
        for row in rows[:_SHOWN]
    )
    more = f"<p>… and {len(rows) - _SHOWN} more rows</p>" if len(rows) > _SHOWN else ""
    caption = html.escape(repr(record))
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    """A value with the digits that matter."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))


T = TypeVar("T")


class lazy(Generic[T]):
    """A method as an attribute: called at the first use, and its result kept in the object.

    Unlike `functools.cached_property` before Python 3.12, it has no lock, which a forked child would await for ever if another
    thread of its parent held it. Two threads that are first compute the value twice.

    Args:
        make: the method.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._make.__name__] = self._make(instance)
        return value
