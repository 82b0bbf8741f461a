"""Records that are also tables: rows for pandas, an HTML table for notebooks, and a short `repr`."""

from __future__ import annotations

import functools
import html
from typing import TYPE_CHECKING, Any

from octobert.core.frozen import FrozenModel

if TYPE_CHECKING:
    import pandas

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
        """What notebooks show."""
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
