"""Every change of one value of a document: what a damaged or hostile file may say where the code reads a number, a text or a list."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

# What a reader of numbers, texts and lists does not expect: nothing, other types, and numbers that no float and no counter holds.
VALUES: tuple[Any, ...] = (None, "x", [[]], {"x": {}}, 2**53, 10**400, -1e308, float("nan"))


def places(document: Any, items: int = 2, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document are. Of a list, only its first items: the others are alike."""
    if path:
        yield path
    parts = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document[:items])
        if isinstance(document, list)
        else ()
    )
    for name, inner in parts:
        yield from places(inner, items, (*path, name))


def cases(document: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Place and value of every change."""
    return [(path, value) for path in places(document, items=1) for value in VALUES]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a place."""
    result = copy.deepcopy(document)
    inner = result
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return result
