"""The encoder layer and part that an operator belongs to, by the names of the nodes that it computes.

Runtimes keep node names where they can. An operator without any name of the model, such as a fused norm, gets the place of the
operator that reads it, or else of the operator that it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from octobert.core.family import EncoderFamily, part_of
from octobert.core.profile import Operator
from octobert.models import families

Place = tuple[int | None, str]
NOWHERE: Place = (None, "")


def operators(
    ran: Sequence[tuple[Operator, Sequence[str]]], family: str | None
) -> tuple[Operator, ...]:
    """Assign every operator to an encoder layer and part.

    Args:
        ran: the operators without a place, in the order of the run, each with the names of the operators that it reads.
        family: plugin name of the encoder family; None to choose the family that most names fit.
    """
    encoder = _family([operator for operator, _ in ran], family)
    places = {operator.name: _own(operator, encoder) for operator, _ in ran}
    readers: dict[str, list[str]] = {}
    for operator, reads in ran:
        for name in reads:
            readers.setdefault(name, []).append(operator.name)
    # Backwards: a chain without names gets the place of its end. Then forwards, for operators whose readers have no place.
    for operator, _ in reversed(ran):
        if places[operator.name] == NOWHERE:
            places[operator.name] = _first(places, readers.get(operator.name, ()))
    for operator, reads in ran:
        if places[operator.name] == NOWHERE:
            places[operator.name] = _first(places, reads)
    return tuple(
        operator.model_copy(update=dict(zip(("layer", "part"), places[operator.name], strict=True)))
        for operator, _ in ran
    )


def place(name: str, family: EncoderFamily) -> Place:
    """`encoder.layer.3.attention.self.query.matmul` → (3, "query"); `pooler.dense` → (None, "pooler")."""
    pattern = re.escape(family.layer).replace(r"\{\}", r"(\d+)") + r"\.(.+)"
    match = re.match(pattern, name)
    if match is None:
        head, dot, _ = name.partition(".")
        return (None, head) if dot else NOWHERE
    rest = match[2]
    fitting = [
        role for role, path in family.parts.items() if re.match(re.escape(path) + r"($|[./])", rest)
    ]
    role = max(fitting, key=lambda each: len(family.parts[each]), default="")
    return int(match[1]), part_of(role)


def _own(operator: Operator, family: EncoderFamily) -> Place:
    """Return the place by the operator's own names: the first for a product, whatever is fused into it; the last for others."""
    places = [at for at in (place(name, family) for name in operator.covers) if at != NOWHERE]
    if not places:
        return NOWHERE
    return places[0] if operator.kind == "product" else places[-1]


def _first(places: Mapping[str, Place], names: Sequence[str]) -> Place:
    return next((places[n] for n in names if places.get(n, NOWHERE) != NOWHERE), NOWHERE)


def _family(ran: Sequence[Operator], family: str | None) -> EncoderFamily:
    """Return the named family, or the family in whose layers most operators have a part."""
    candidates = [families.load(name) for name in ((family,) if family else families.names())]
    names = [name for operator in ran for name in operator.covers] if len(candidates) > 1 else []
    return max(
        candidates,
        key=lambda each: sum(all(p not in (None, "") for p in place(n, each)) for n in names),
    )
