"""Tables: data that a terminal, a page and Markdown show each in their way; and the console that tables are drawn in.

In a terminal, optional columns are left out where a table would be too wide, and named below. If that is not enough, text wraps
at spaces, and columns that do not fit move into a further table. A page shows all columns, Markdown those of low rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from octobert.core.plain import printable

T = TypeVar("T")


class PlainConsole(Console):
    """A console of rich without markup in strings, whose texts hold no control characters.

    Args:
        **options: of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to draw. Those that rich itself controls the terminal with stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


@dataclass
class Column:
    """A column.

    Args:
        name: its heading.
        number: aligned right.
        is_key: repeated in every part of a table that is too wide.
        optional: above 0, it is left out where the table would be too wide, the largest number first.
        prose: it has sentences, which a page gives more room.
        cell: what it shows of the thing that a row is about; only for `ReportTable.fill`.
    """

    name: str
    number: bool = False
    is_key: bool = False
    optional: int = 0
    prose: bool = False
    cell: Callable[[Any], str] = str


# Columns of a larger rank are left out where readers see the table among other things: in Markdown and in notebooks.
MAIN = 6


class TableRow(NamedTuple):
    """A row.

    Args:
        cells: from left to right.
        style: of rich; `bold` marks what the table is about, `dim` what is out.
        group: that it belongs to; empty without groups.
    """

    cells: list[Text]
    style: str = ""
    group: str = ""


@dataclass
class ReportTable:
    """A table. In a terminal it never cuts a word.

    Where it is too wide there even with all texts wrapped, it is printed in parts, each with the key columns.

    Args:
        title: above the table.
        columns: from left to right.
        caption: below the table.
        elsewhere: what has the columns that are left out, such as `report.html`.
        group: what rows are grouped by, such as `shape`: a heading of rows in a terminal, a column elsewhere.
    """

    title: str
    columns: list[Column]
    caption: str | None = None
    elsewhere: str = "a wider terminal"
    group: str = ""
    rows: list[TableRow] = field(default_factory=list)
    _ends: set[int] = field(default_factory=set)

    def add_row(self, *cells: str | Text, style: str = "", group: str = "") -> None:
        """Add a row. Strings are plain text, without markup. A cell with line breaks wraps only there, and only if it must."""
        texts = [cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells]
        self.rows.append(TableRow(texts, style, printable(group)))

    def fill(
        self,
        things: Iterable[T],
        *columns: Column,
        style: Callable[[T], str] = lambda thing: "",
        group: Callable[[T], str] = lambda thing: "",
    ) -> ReportTable:
        """Show each of some things in a row, in columns that say what they show of it. Those with nothing to show are left out.

        Args:
            style, group: of the row of a thing, see `TableRow`.
        """
        listed = list(things)
        shown = [(column, [column.cell(thing) for thing in listed]) for column in columns]
        shown = [(column, cells) for column, cells in shown if any(cells) or column.is_key]
        self.columns = [column for column, _ in shown]
        for place, thing in enumerate(listed):
            cells = (cells[place] for _, cells in shown)
            self.add_row(*cells, style=style(thing), group=group(thing))
        return self

    def add_numbers(self, optional: Mapping[str, int]) -> None:
        """Add columns of numbers, aligned right: name → `Column.optional`."""
        self.columns += [
            Column(name, number=True, optional=rank) for name, rank in optional.items()
        ]

    def add_column(self, name: str, optional: int = 0, *, prose: bool = False) -> None:
        """Add a column of texts."""
        self.columns.append(Column(name, optional=optional, prose=prose))

    def add_section(self) -> None:
        """Draw a line below the last row."""
        self._ends.add(len(self.rows) - 1)

    def flat(self, most: int | None = None) -> ReportTable:
        """The table with its groups as the second column, as a page and Markdown show it.

        Args:
            most: columns with a larger `Column.optional` are left out; None for none.
        """
        kept = [i for i, c in enumerate(self.columns) if most is None or c.optional <= most]
        columns = [self.columns[i] for i in kept]
        rows = [
            row._replace(cells=[row.cells[i] if i < len(row.cells) else Text() for i in kept])
            for row in self.rows
        ]
        if self.group:
            columns.insert(1, Column(self.group))
            for row in rows:
                row.cells.insert(1, Text(row.group))
        return replace(self, columns=columns, group="", rows=rows)

    def markdown(self) -> str:
        """The table in Markdown, without its title and its least important columns."""
        table = self.flat(MAIN)
        lines = [[as_markdown(column.name) for column in table.columns]]
        lines.append(["---:" if column.number else "---" for column in table.columns])
        for row in table.rows:
            first, *others = (as_markdown(plain(cell)) for cell in row.cells)
            lines.append([f"**{first}**" if row.style == "bold" else first, *others])
        below = f"\n\n{as_markdown(self.caption)}" if self.caption else ""
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print it in as many parts as needed."""
        yield Text()
        if self.title:
            yield Text(self.title, style="italic")
        rows, ends = self._drawn()
        sizes = [self._size(index, rows) for index in range(len(self.columns))]
        indices = self._shown_columns(sizes, options.max_width)
        for columns in self._parts(indices, sizes, options.max_width):
            widths = _widths([sizes[index] for index in columns], options.max_width)
            table = Table(
                box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
            )
            for index, width in zip(columns, widths, strict=True):
                column = self.columns[index]
                table.add_column(
                    Text(column.name),
                    justify="right" if column.number else "left",
                    width=width,
                    overflow="fold",
                )
            for place, (cells, style, _) in enumerate(rows):
                shown = [cells[i] if i < len(cells) else Text() for i in columns]
                fitted = [
                    line if len(line := _joined(cell)) <= width else cell
                    for cell, width in zip(shown, widths, strict=True)
                ]
                table.add_row(*fitted, style=style, end_section=place in ends)
            yield table
        if self.caption:
            yield Text(self.caption, style="italic")
        left_out = [
            column.name for index, column in enumerate(self.columns) if index not in indices
        ]
        if left_out:
            yield Text(f"{self.elsewhere} also shows: {', '.join(left_out)}", style="dim")

    def _drawn(self) -> tuple[list[TableRow], set[int]]:
        """The rows as a terminal shows them, each group below its name, and those that a line is drawn below."""
        if not self.group:
            return self.rows, self._ends
        rows, ends, group = list[TableRow](), set[int](), None
        for row in self.rows:
            if row.group != group:
                ends.add(len(rows) - 1)
                rows.append(TableRow([Text(row.group)], "bold"))
                group = row.group
            rows.append(row._replace(cells=[Text("  ") + row.cells[0], *row.cells[1:]]))
        return rows, ends | {len(rows) - 1}

    def _shown_columns(self, sizes: Sequence[Measurement], available: int) -> list[int]:
        """The columns that are shown: without optional ones where rows need more than one line."""
        indices = list(range(len(self.columns)))
        optional = [index for index in indices if self.columns[index].optional]
        for index in sorted(optional, key=lambda index: -self.columns[index].optional):
            if _needed(sizes[i].maximum for i in indices) > available:
                indices.remove(index)
        return indices

    def _parts(
        self, indices: Sequence[int], sizes: Sequence[Measurement], available: int
    ) -> Iterator[list[int]]:
        """The columns of each part."""
        keys = [index for index in indices if self.columns[index].is_key]
        part = list(keys)
        for index in indices:
            if index in keys:
                continue
            needed = _needed(sizes[i].minimum for i in (*part, index))
            if len(part) > len(keys) and needed > available:
                yield part
                part = list(keys)
            part.append(index)
        yield part

    def _size(self, index: int, rows: Sequence[TableRow]) -> Measurement:
        """The widths of the longest unbreakable part and of the longest text of a column."""
        texts = [row.cells[index] for row in rows if index < len(row.cells)]
        sizes = [_size(cell) for cell in (Text(self.columns[index].name), *texts)]
        return Measurement(max(size.minimum for size in sizes), max(size.maximum for size in sizes))


def key(name: str, cell: Callable[[Any], str]) -> Column:
    """A column that says what a row is about."""
    return Column(name, is_key=True, cell=cell)


def word(name: str, cell: Callable[[Any], str], rank: int = 0, *, prose: bool = False) -> Column:
    """A column of texts, and its `Column.optional`."""
    return Column(name, optional=rank, prose=prose, cell=cell)


def number(name: str, cell: Callable[[Any], str], rank: int = 0) -> Column:
    """A column of numbers, and its `Column.optional`."""
    return Column(name, number=True, optional=rank, cell=cell)


def table_of(
    title: str, words: Sequence[str], numbers: Iterable[str] = (), *, keys: int = 1
) -> ReportTable:
    """Return an empty table.

    Args:
        title: of the table.
        words: names of the left columns, aligned left.
        numbers: names of the further columns, aligned right.
        keys: number of left columns that say what a row is about.
    """
    left = [Column(name, is_key=index < keys) for index, name in enumerate(words)]
    table = ReportTable(title, left)
    table.add_numbers(dict.fromkeys(numbers, 0))
    return table


# What Markdown, and HTML in it, would take for markup. A link needs what follows its brackets; a list begins a text.
_MARKUP = re.compile(r"[\\`*_<>|#~&$]|(?<=\])[(:\[]|^\[(?=. ?\])|^[-+](?=[-+ ]|$)")
# Addresses and mentions. Sites look for them in what Markdown shows, so that no backslash helps: an invisible joiner does.
_LINK = re.compile(r"//|www\.|#\d|(?<!\w)@\w|@[\w.-]*\.[a-z]", re.IGNORECASE)
_JOINTS = re.compile("[/.:@#](?=.)")


def as_markdown(text: str) -> str:
    """Text of other people as Markdown that shows it.

    Example:
        >>> print(as_markdown("0.86 [0.83, 0.89] | <c> [a](b)"))
        0.86 [0.83, 0.89] \\| \\<c\\> [a]\\(b)
    """
    words = printable(text).split()
    shown = (_JOINTS.sub("\\g<0>\u2060", word) if _LINK.search(word) else word for word in words)
    # A number with a point begins a list.
    return re.sub(r"^(\d+)([.)])(?= |$)", r"\1\\\2", _MARKUP.sub(r"\\\g<0>", " ".join(shown)))


def breakable(figure: str) -> str:
    """A figure that wraps before its interval only."""
    return figure.replace(" [", "\n[")


def plain(cell: Text) -> str:
    """A cell on one line."""
    return _joined(cell).plain.strip()


def _size(cell: Text) -> Measurement:
    # A word is never parted from the spaces in front of a text, which indent it.
    indent = len(cell.plain) - len(cell.plain.lstrip(" "))
    parts = (
        cell.split("\n")
        if "\n" in cell.plain
        else [Text(" " * indent + word) for word in cell.plain.split()]
    )
    widest = max((part.cell_len for part in parts), default=0)
    return Measurement(widest, _joined(cell).cell_len)


def _joined(cell: Text) -> Text:
    """A cell on one line."""
    return Text(" ").join(cell.split("\n")) if "\n" in cell.plain else cell


def _needed(widths: Iterable[int]) -> int:
    """The width of a table with columns of these widths, which have two spaces between them."""
    return sum(width + 2 for width in widths) - 2


def _widths(sizes: Sequence[Measurement], available: int) -> list[int]:
    """The width of each column: what its longest word needs, and an equal share of what is left."""
    widths = [size.minimum for size in sizes]
    left = available - _needed(widths)
    order = sorted(range(len(sizes)), key=lambda i: sizes[i].span)
    for _ in range(-left):
        # Not even the longest words fit: they are broken.
        widest = max(range(len(widths)), key=widths.__getitem__)
        widths[widest] -= 1
    for number, index in enumerate(order):
        grow = max(0, min(sizes[index].span, left // (len(order) - number)))
        widths[index] += grow
        left -= grow
    return widths
