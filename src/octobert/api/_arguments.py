"""Checks of what a caller passes, so that a wrong type is a sentence that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from octobert.core.errors import RecipeError


def path_of(value: Any, name: str) -> Path:
    """A path given as `str` or `Path`.

    Args:
        value: what was passed.
        name: of the argument.

    Raises:
        RecipeError: it is neither, or empty.
    """
    if isinstance(value, str | os.PathLike) and os.fspath(value):
        return Path(value)
    raise RecipeError("not a path", where=name, got=repr(value)[:100], expected="a str or a Path")


def numbers_of(value: Any, name: str, least: int = 1) -> tuple[int, ...]:
    """One whole number or several, as a tuple.

    Args:
        value: what was passed.
        name: of the argument.
        least: smallest number that is accepted.

    Raises:
        RecipeError: one is not a whole number, or too small.
    """
    values = (value,) if isinstance(value, int | str) or not isinstance(value, Iterable) else tuple(value)
    for each in values:
        if isinstance(each, bool) or not isinstance(each, int) or each < least:
            raise RecipeError("not a whole number", where=name, got=repr(each)[:100], expected=f"{least} or more")
    return values


def names_of(value: Any, name: str) -> tuple[str, ...]:
    """One name or several, as a tuple.

    Raises:
        RecipeError: one is not a text.
    """
    values = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for each in values:
        if not isinstance(each, str):
            raise RecipeError("not a name", where=name, got=repr(each)[:100], expected="a str")
    return values
