"""Text of other people: names in a model file, labels, rows of data, file names. For terminals and errors, and in excerpts.

A terminal obeys control characters: they move the cursor, hide text, change the title or the clipboard. Characters that
override the direction of text make a line read as another one. All are replaced by characters that only show.
"""

from __future__ import annotations

import json
import re
import reprlib
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

# Directions of text, and separators of lines and paragraphs that only some programs know.
_OTHERS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
_SHOWN = {
    # Unicode has pictures of the ASCII controls: ␛ for escape.
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x80, 0xA0), *_OTHERS), "\ufffd"),
}
_ESCAPED = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), *_OTHERS)}


def printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey. Tabs and line breaks stay.

    Example:
        >>> printable("red \\x1b[31m, right to left \\u202e")
        'red ␛[31m, right to left �'
    """
    # Half characters stand for bytes of file names that are not UTF-8; no encoding of a terminal has them.
    return text.translate(_SHOWN).encode("utf-8", "replace").decode("utf-8")


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = 20


def preview(value: Any, longest: int = 100) -> str:
    """Return what somebody gave in place of something else, as Python writes it, for an error.

    Example:
        >>> preview([None]), preview(10**5000)
        ('[None]', 'int')
    """
    try:
        # Arrays are written in lines.
        return " ".join(_REPR.repr(value)[:longest].split("\n"))
    except ValueError:  # Python writes no number of thousands of digits
        return type(value).__name__


# The part of a URL with a user's name and a password. A password in the URL of a database may have any character but spaces.
_PASSWORDS = (
    (
        re.compile(r"\b((?:postgres|mysql|mariadb|mssql|oracle|redis)[\w+]*://)[^\s'\"]*@"),
        r"\1***@",
    ),
    (re.compile(r"(://)[^\s/'\"]*@"), r"\1***@"),
    (re.compile(r"([?&]\w*password=)[^\s&'\"]*", re.IGNORECASE), r"\1***"),
)


def without_passwords(text: str) -> str:
    """Return a text with `***` in place of the passwords in its URLs.

    Example:
        >>> without_passwords("cannot open postgresql://me:secret@host/db")
        'cannot open postgresql://***@host/db'
    """
    if "://" not in text:
        return text
    for pattern, shown in _PASSWORDS:
        text = pattern.sub(shown, text)
    return text


def parsed_json(content: str | bytes, **hooks: Any) -> Any:
    """What JSON of unknown origin says.

    Args:
        hooks: as those of `json.loads`.

    Raises:
        ValueError: it is not JSON, or is nested more deeply than Python reads.
    """
    try:
        return json.loads(content, **hooks)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def as_json(data: Any, default: Callable[[Any], Any] | None = None, **form: Any) -> str:
    """JSON of data; null stands for what JSON cannot say: NaN and infinities.

    Args:
        default, form: as those of `json.dumps`.
    """
    plain = json.loads(json.dumps(data, default=default), parse_constant=lambda _: None)
    return json.dumps(plain, ensure_ascii=False, **form)


def printable_json(text: str) -> str:
    """Return a JSON document that a terminal shows and does not obey, and that means the same.

    Example:
        >>> printable_json('"\\x9b31m"')
        '"\\\\u009b31m"'
    """
    return text.translate(_ESCAPED)


Span = tuple[int, int]
GAP = " … "
# How far an end moves to come to lie between two words, and the least that is shown on both sides of a mark.
_WORD, _LEAST = 24, 20


def excerpt(text: str, spans: Sequence[Span], length: int) -> tuple[str, list[Span | None]]:
    """Cut a text around spans.

    Args:
        text: of any length.
        spans: (first character, end) of what should stay.
        length: characters to aim at. The first span stays even where it is longer.

    Returns:
        (the text, or its parts with ellipses between them; the place of each span in it, None for those that were left out).

    Example:
        >>> excerpt("Ada wrote it, and nobody has noticed that it was she.", [(0, 3)], 20)
        ('Ada wrote it, and …', [(0, 3)])
        >>> excerpt("short", [(1, 3)], 12)
        ('short', [(1, 3)])
    """
    if len(text) <= length:
        return text, list(spans)
    around = max(
        _LEAST, (length - sum(end - start for start, end in spans)) // (2 * len(spans) or 1)
    )
    windows: list[Span] = []
    for start, end in sorted(spans) or [(0, 0)]:
        first, last = (
            _begin(text, max(start - around, 0), start),
            _end(text, min(end + around, len(text)), end),
        )
        if windows and first <= windows[-1][1]:
            windows[-1] = (windows[-1][0], max(last, windows[-1][1]))
        elif windows and sum(b - a for a, b in windows) + last - first > length:
            break
        else:
            windows.append((first, last))
    shown, moved = "", []
    for first, last in windows:
        shown += GAP.lstrip() if first and not shown else GAP if shown else ""
        moved.append((first, last, len(shown) - first))
        shown += text[first:last]
    ends = windows[-1][1] == len(text)
    places = [
        next(((s + by, e + by) for a, b, by in moved if a <= s and e <= b), None) for s, e in spans
    ]
    return shown if ends else shown + GAP.rstrip(), places


def beginning(text: str, length: int) -> str:
    """The beginning of a text.

    Example:
        >>> beginning("Ada wrote it", 6)
        'Ada wr…'
    """
    return text if len(text) <= length else f"{text[:length]}…"


def _begin(text: str, at: int, mark: int) -> int:
    """Where a word begins, at or after `at` and before the mark."""
    for place in range(at, min(at + _WORD, mark)):
        if place == 0 or text[place - 1].isspace():
            return place
    while at < mark and unicodedata.category(text[at]).startswith("M"):
        at += 1
    return at


def _end(text: str, at: int, mark: int) -> int:
    """Where a word ends, at or before `at` and after the mark."""
    for place in range(at, max(at - _WORD, mark), -1):
        if place == len(text) or text[place].isspace():
            return place
    while at > mark and at < len(text) and unicodedata.category(text[at]).startswith("M"):
        at -= 1
    return at
