"""Attributes that are computed at their first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

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
