"""Parts of long texts that people can read: around what is marked, with an ellipsis where something was left out."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

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
    kept: list[Span] = []
    for start, end in sorted(spans) or [(0, 0)]:
        first, last = (
            _begin(text, max(start - around, 0), start),
            _end(text, min(end + around, len(text)), end),
        )
        if kept and first <= kept[-1][1]:
            kept[-1] = (kept[-1][0], max(last, kept[-1][1]))
        elif kept and sum(b - a for a, b in kept) + last - first > length:
            break
        else:
            kept.append((first, last))
    shown, moved = "", []
    for first, last in kept:
        shown += GAP.lstrip() if first and not shown else GAP if shown else ""
        moved.append((first, last, len(shown) - first))
        shown += text[first:last]
    ends = kept[-1][1] == len(text)
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
