"""How much octobert and the runtimes write to their logs during a run; the processes that it starts inherit it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
_VARIABLE = "OCTOBERT_LOG_LEVEL"


@contextmanager
def at_level(level: Level | None) -> Iterator[None]:
    """Log at a level, in this process and those that it starts; None changes nothing.

    Args:
        level: from `debug`, which shows most, to `error`.
    """
    if level is None:
        yield
        return
    logger, before = logging.getLogger("octobert"), os.environ.get(_VARIABLE)
    previous_level = logger.level
    logger.setLevel(level.upper())
    os.environ[_VARIABLE] = level
    try:
        yield
    finally:
        logger.setLevel(previous_level)
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def level() -> Level | None:
    """Return the level of the run, or None where none was set."""
    value = os.environ.get(_VARIABLE)
    return next((name for name in LEVELS if name == value), None)
