"""The typed keywords of `octobert.quantize` and `auto` are the keys of a recipe."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

import octobert
from octobert.config.recipe import Choice, Recipe, RecipeKeys
from octobert.core.frozen import FrozenModel

OPTIONS = Mapping[str, Any]
KEYS = [key for key in Recipe.model_fields if key not in ("model", "task", "data")]


def plain(kind: Any) -> Any:
    """What a caller may pass for a value of a recipe."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(plain, arguments))
    if get_origin(kind) is tuple:
        return Sequence[plain(arguments[0])]
    if get_origin(kind) is dict:
        return Mapping[str, plain(arguments[1])]
    if kind is Choice:
        return str | OPTIONS
    return OPTIONS if isinstance(kind, type) and issubclass(kind, FrozenModel) else kind


def test_the_keywords_are_the_keys() -> None:
    assert list(RecipeKeys.__annotations__) == KEYS
    assert RecipeKeys.__total__ is False


@pytest.mark.parametrize("key", KEYS)
def test_a_keyword_has_the_type_of_its_key(key: str) -> None:
    wanted = plain(Recipe.model_fields[key].annotation)
    # A metric may stand alone.
    wanted = get_args(wanted)[0] | wanted if key == "metric" else wanted
    assert get_type_hints(RecipeKeys)[key] == wanted


@pytest.mark.parametrize("function", [octobert.quantize, octobert.auto])
def test_the_functions_take_them(function: Any) -> None:
    assert function.__annotations__["keys"] == "Unpack[RecipeKeys]"
