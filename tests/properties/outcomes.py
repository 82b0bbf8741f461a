"""What an operation ends with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octobert.core.errors import OctobertError


def sentence_of(
    kind: type[OctobertError], operation: Callable[..., Any], *arguments: Any
) -> str | None:
    """What an error of this kind says; None where there is no error. Other exceptions are not caught."""
    try:
        operation(*arguments)
    except kind as error:
        return str(error)
    return None
