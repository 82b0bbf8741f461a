"""Profilers: one file per runtime, named like it. A profiler shows which operators ran, for how long and in which precision."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from octobert.core import plugins
from octobert.core.profile import Product, Profile
from octobert.core.session import Feeds, SessionOptions
from octobert.targets import runtimes


class Profiler(Protocol):
    """The functions of a profiler's module."""

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
            family: plugin name of the encoder family, or None if it is not known.

        Raises:
            TargetError: the runtime cannot open or run the model.
            ModelError: the model has an input that is not in `feeds`.
        """
        ...

    def products(self, path: Path) -> tuple[Product, ...]:
        """Return the matrix products of a model file that have an 8-bit or 16-bit input."""
        ...

    def why(self, product: Product, features: frozenset[str]) -> str | None:
        """Return why the runtime computes a product in float, or None if the file does not show a reason.

        Args:
            product: a product of the file.
            features: instruction sets of the CPU (`Environment.features`).
        """
        ...


_PLUGINS = plugins.Family[Profiler]("profilers")
names, load = _PLUGINS.names, _PLUGINS.load


def targets() -> tuple[str, ...]:
    """Return the targets whose operators can be timed: kernels of other devices end after their operators."""
    return tuple(runtimes.load(name).CPU_TARGET for name in names())


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
