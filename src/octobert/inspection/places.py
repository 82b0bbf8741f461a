"""Which encoder layer and part an operator belongs to, by the names of the nodes that it stands for.

Runtimes keep the names of nodes where they can. An operator that lost all of them, as a fused norm may, is placed with the one
that reads it, or else with the one that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from octobert.core import plugins
from octobert.core.family import EncoderFamily, part_of
from octobert.core.profile import Kind, Operator

Place = tuple[int | None, str]
NOWHERE: Place = (None, "")


@dataclass(frozen=True)
class Ran:
    """What a runtime says of one operator: `Operator` without its place, and the names of operators that it reads."""

    name: str
    type: str
    kernel: str
    kind: Kind
    precision: str
    integer: bool
    ms: float
    covers: tuple[str, ...]
    reads: tuple[str, ...]


def operators(ran: Sequence[Ran], family: str | None) -> tuple[Operator, ...]:
    """Place every operator.

    Args:
        family: plugin name of the encoder; None to find out which one's names these are.
    """
    encoder = _encoder(ran, family)
    places = {one.name: _own(one, encoder) for one in ran}
    readers: dict[str, list[str]] = {}
    for one in ran:
        for name in one.reads:
            readers.setdefault(name, []).append(one.name)
    # Backwards, so that a chain without names goes where its end goes; then forwards for what nothing placed reads.
    for one in reversed(ran):
        if places[one.name] == NOWHERE:
            places[one.name] = _first(places, readers.get(one.name, ()))
    for one in ran:
        if places[one.name] == NOWHERE:
            places[one.name] = _first(places, one.reads)
    return tuple(
        Operator(
            **{field.name: getattr(one, field.name) for field in fields(one) if field.name != "reads"},
            layer=places[one.name][0],
            part=places[one.name][1],
        )
        for one in ran
    )


def place(name: str, encoder: EncoderFamily) -> Place:
    """`encoder.layer.3.attention.self.query.matmul` → (3, "query"); `pooler.dense` → (None, "pooler")."""
    pattern = re.escape(encoder.layer).replace(r"\{\}", r"(\d+)") + r"\.(.+)"
    found = re.match(pattern, name)
    if found is None:
        head, dot, _ = name.partition(".")
        return (None, head) if dot else NOWHERE
    rest = found[2]
    fitting = [role for role, path in encoder.parts.items() if re.match(re.escape(path) + r"($|[./])", rest)]
    role = max(fitting, key=lambda one: len(encoder.parts[one]), default="")
    return int(found[1]), part_of(role)


def _own(one: Ran, encoder: EncoderFamily) -> Place:
    """By the operator's own names: a product is where it begins, whatever is fused into it; others are where they end."""
    found = [at for at in (place(name, encoder) for name in one.covers) if at != NOWHERE]
    if not found:
        return NOWHERE
    return found[0] if one.kind == "product" else found[-1]


def _first(places: Mapping[str, Place], names: Sequence[str]) -> Place:
    return next((places[n] for n in names if places.get(n, NOWHERE) != NOWHERE), NOWHERE)


def _encoder(ran: Sequence[Ran], family: str | None) -> EncoderFamily:
    """The family that is named, or the one in whose layers most operators have a part."""
    known = [plugins.load("families", name).FAMILY for name in ((family,) if family else plugins.names("families"))]
    names = [name for one in ran for name in one.covers] if len(known) > 1 else []
    return max(known, key=lambda encoder: sum(all(p not in (None, "") for p in place(n, encoder)) for n in names))
