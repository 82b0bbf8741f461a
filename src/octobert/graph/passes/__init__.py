"""Rewritings of finished graphs: a target lists those that its files need, and each says when a form of writing asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

    from octobert.core.session import ExportOptions


def _always(form: ExportOptions) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Pass:
    """A rewriting of a finished graph.

    Args:
        apply_: edits a model in place, with keyword arguments of its own, and returns how many places it changed.
        options: form of writing → those keyword arguments, or None where the form does not ask for the pass.
    """

    apply_: Callable[..., int]
    options: Callable[[ExportOptions], Mapping[str, Any] | None] = _always


def wanted(passes: Iterable[Pass], form: ExportOptions) -> list[Pass]:
    """Return the passes that a form of writing asks for."""
    return [each for each in passes if each.options(form) is not None]


def run_(model: ir.Model, passes: Iterable[Pass], form: ExportOptions) -> None:
    """Apply the passes that a form of writing asks for, in this order, in place."""
    for each in wanted(passes, form):
        each.apply_(model, **(each.options(form) or {}))
