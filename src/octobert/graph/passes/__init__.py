"""Rewritings of finished graphs: a target lists those that its files need, and each says when a form of writing asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octobert.core.session import ExportOptions


@dataclass(frozen=True)
class Pass:
    """A rewriting of a finished graph.

    Args:
        apply_: edits a model in place, with keyword arguments of its own, and returns how many places it changed.
        options: form of writing → those keyword arguments, or None where the form does not ask for the pass.
    """

    apply_: Callable[..., int]
    options: Callable[[ExportOptions], Mapping[str, Any] | None] = lambda form: {}
