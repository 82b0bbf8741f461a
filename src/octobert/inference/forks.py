"""Models in forked processes: servers load a model once, then fork their workers.

A forked child has the memory of its parent, but of its threads only the one that forked. Whoever waits for the others, which
belong to a runtime, a thread pool or OpenMP, waits for ever. So a child opens the model again from its files at its first use,
and does so on new threads: OpenMP and TBB keep their workers by thread, and those of the thread that forked are gone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from octobert.core.errors import ModelError

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value that is made at once, and made again at its first use in a forked child.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock, self._ended = make, threading.Lock(), False
        self._value: T | None = self._make_value()
        _ALIVE.add(self)

    def get(self) -> T:
        """Return the value of this process.

        Raises:
            ModelError: it was ended.
        """
        value = self._value
        if value is None:
            with self._lock:
                if self._ended:
                    raise closed()
                if self._value is None:
                    self._value = self._make_value()
                value = self._value
        return value

    def end(self) -> T | None:
        """Return the value for the last time, if this process has made it."""
        with self._lock:
            value, self._value, self._ended = self._value, None, True
        return value

    def forget_(self) -> None:
        """In a forked child: give up what the parent made."""
        never_free(self._value)
        # Another thread of the parent may have held the lock.
        self._value, self._lock = None, threading.Lock()

    def _make_value(self) -> T:
        value = on_live_thread(self._make)
        if _forked:
            never_free(value)
        return value


def never_free(value: object) -> None:
    """Keep a value until the process ends: freeing what a runtime made may await threads of the parent."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def closed() -> ModelError:
    """The error of a model that is used after `close`."""
    return ModelError("the model is closed", fix="load it again, or close it after its last use")


def is_child() -> bool:
    """Return whether this process was forked after this module was imported."""
    return _forked


def on_live_thread(work: Callable[[], T]) -> T:
    """Do something on a thread whose OpenMP and TBB workers are alive: in a forked child a new one, else this one."""
    if not _forked:
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


_ALIVE: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True
    for value in list(_ALIVE):
        value.forget_()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
