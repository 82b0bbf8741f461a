"""Profilers: one file per runtime, named like it. A profiler shows which operators ran, for how long and in which precision.

Operators belong to an encoder layer and part by the names of the nodes that they compute. Runtimes keep node names where they
can. An operator without any name of the model, such as a fused norm, gets the place of the operator that reads it, or else of
the operator that it reads.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from octobert.core import families
from octobert.core.family import EncoderFamily, part_of
from octobert.core.frozen import FrozenModel
from octobert.core.plugins import Plugins
from octobert.core.profile import Operator, Product, Profile
from octobert.core.session import Feeds, SessionOptions
from octobert.targets import runtimes

Place = tuple[int | None, str]
NOWHERE: Place = (None, "")


class Profiler(FrozenModel, ABC):
    """A way to see what a runtime runs."""

    @abstractmethod
    def profile(
        self,
        path: Path,
        feeds: Feeds,
        options: SessionOptions,
        *,
        warmup: int,
        runs: int,
        family: str | None,
    ) -> Profile:
        """Run a model under the runtime's own profiler.

        Args:
            path: the model file.
            feeds: one batch; arrays of shape [batch, sequence] by name.
            options: how to open the model: threads, and entries of its recipe.
            warmup: runs before the profiled ones.
            runs: profiled runs.
            family: a model type of the encoder family, or None if it is not known.

        Raises:
            TargetError: the runtime cannot open or run the model.
            ModelError: the model has an input that is not in `feeds`.
        """

    @abstractmethod
    def products(self, path: Path) -> tuple[Product, ...]:
        """Return the matrix products of a model file that have an 8-bit or 16-bit input."""

    @abstractmethod
    def why(self, product: Product, features: frozenset[str]) -> str | None:
        """Return why the runtime computes a product in float, or None if the file does not show a reason.

        Args:
            product: a product of the file.
            features: instruction sets of the CPU (`Environment.features`).
        """


PLUGINS = Plugins("profilers", Profiler)
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each


def targets() -> tuple[str, ...]:
    """Return the targets whose operators can be timed: kernels of other devices end after their operators."""
    return tuple(runtimes.load(name).cpu_target for name, _ in each())


def reason_in_file(product: Product) -> str | None:
    """Return why no runtime computes a product in integers, or None if the file allows it.

    Returns:
        A clause that continues "because".
    """
    left, right = product.inputs
    if left is None or right is None:
        return (
            "only the weights are 8-bit in the file"
            if product.weight
            else "only one of the two inputs is 8-bit in the file"
        )
    return "16-bit activations are simulated in float" if "16" in left.dtype + right.dtype else None


def placed(
    ran: Sequence[tuple[Operator, Sequence[str]]], family: str | None
) -> tuple[Operator, ...]:
    """Assign every operator to an encoder layer and part.

    Args:
        ran: the operators without a place, in the order of the run, each with the names of the operators that it reads.
        family: a model type of the encoder family; None to choose the family that most names fit.
    """
    encoder = _family([operator for operator, _ in ran], family)
    places = {operator.name: _place_by_names(operator, encoder) for operator, _ in ran}
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
        operator.replaced(**dict(zip(("layer", "part"), places[operator.name], strict=True)))
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
    role = max(fitting, key=lambda candidate: len(family.parts[candidate]), default="")
    return int(match[1]), part_of(role)


def _place_by_names(operator: Operator, family: EncoderFamily) -> Place:
    """Return the place by the operator's own names: the first for a product, whatever is fused into it; the last for others."""
    places = [at for at in (place(name, family) for name in operator.covers) if at != NOWHERE]
    if not places:
        return NOWHERE
    return places[0] if operator.kind == "product" else places[-1]


def _first(places: Mapping[str, Place], names: Sequence[str]) -> Place:
    return next((places[n] for n in names if places.get(n, NOWHERE) != NOWHERE), NOWHERE)


def _family(ran: Sequence[Operator], family: str | None) -> EncoderFamily:
    """Return the named family, or the family in whose layers most operators have a part."""
    named = families.family_of(family) if family else None
    candidates = [named] if named else [found for _, found in families.each()]
    names = [name for operator in ran for name in operator.covers] if len(candidates) > 1 else []
    return max(
        candidates,
        key=lambda candidate: sum(
            all(p not in (None, "") for p in place(n, candidate)) for n in names
        ),
    )
