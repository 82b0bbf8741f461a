"""Divide each token of a feed-forward's neurons by its largest value before the 8-bit product, and multiply the product by it.

The range then is that of a token, not of all tokens of all texts: most tokens stay far below the largest one. Unlike
activations that a runtime quantizes per token, this is part of the graph, in standard operators, and the integers have one
static scale. It is done where it pays: neurons differ from token to token, norms do not.

Tokens are divided by no less than a floor. The floor has the smallest expected error of rounding, the mean of (r Δ)² / 12 over
sampled tokens: r is what a token is divided by, and Δ the step of what is left, which is larger where small tokens are far
below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from pydantic import Field

from octobert.core.axes import Axis
from octobert.core.family import EncoderFamily
from octobert.core.ranges import STEPS, Sample
from octobert.graph import smoothing
from octobert.quantization.transforms import Record, Transform

# Floors that are tried, in units of the largest value of all tokens. With the last one nothing changes.
_FLOORS = np.geomspace(1 / 32, 1, 21)


class TokenScales(Transform):
    """Tokens that are divided by their largest value.

    Args:
        gain: divide where the expected error of rounding falls by this share or more.
    """

    needs_float: ClassVar[str | None] = "tokens would be divided in float"
    axes: ClassVar[tuple[Axis, ...]] = (
        # all-mpnet-base-v2 in ONNX Runtime, AVX512-VNNI: 1.02 to 1.06 × the time without (docs/evidence/accuracy.md).
        Axis(
            key="transforms",
            values=(["outlier-neurons", "smoothquant"],),
            names=("no token scales",),
            changes=("numbers", "time"),
            invalidates="transform",
            gain=1.06,
        ),
    )

    gain: float = Field(default=1 / 3, gt=0, lt=1)

    def values(self, graph: ir.Graph, family: EncoderFamily) -> list[str]:
        """Return the names of the values that `transform_` needs samples of."""
        return sorted(place.value for place in _places(graph, family))

    def transform_(
        self,
        model: ir.Model,
        family: EncoderFamily,
        samples: MutableMapping[str, Sample],
        progress: Callable[[int, int], None],
    ) -> list[Record]:
        """Divide tokens in place.

        Returns:
            One record per feed-forward: kind, module, and the expected error of rounding before and after, `error` and
            `left_error`, relative to the energy of the neurons; they are equal where nothing was changed.
        """
        records, places = [], _places(model.graph, family)
        for done, place in enumerate(places, start=1):
            sample = samples[place.value]
            signed = -float(sample.low.min()) > float(sample.high.max()) / 2
            floor, error, left = _floor(sample.rows, signed=signed)
            if left <= error * (1 - self.gain) and error > 0:
                smoothing.divide_tokens_(model, place, floor, signed=signed)
            else:
                left = error
            module = place.readers[0]
            records.append({"kind": "tokens", "module": module, "error": error, "left_error": left})
            progress(done, len(places))
        return records

    def summary(self, records: Sequence[Mapping[str, Any]]) -> str:
        """Return what was done in words."""
        done = sum(record["left_error"] < record["error"] for record in records)
        return f"neurons divided by the largest one of their token in {done} of {len(records)} feed-forwards"


def _places(graph: ir.Graph, family: EncoderFamily) -> list[smoothing.Place]:
    groups = (group for group in smoothing.groups(graph, family) if group.kind == "activation")
    return [place for group in groups for place in group.places]


def _floor(rows: np.ndarray, *, signed: bool) -> tuple[float, float, float]:
    """Return the floor with the smallest expected error, the error of one range for all tokens, and that with this floor.

    Args:
        rows: [N, C] sampled tokens.
        signed: tokens are divided by their largest magnitude, not by their largest value.
    """
    largest = (np.abs(rows) if signed else rows).max(axis=1).astype(np.float64)
    lowest, top = rows.min(axis=1).astype(np.float64), float(largest.max())
    if top <= 0:
        return 1.0, 0.0, 0.0
    divisors = np.maximum(largest, (top * _FLOORS)[:, None])
    extents = (largest / divisors).max(axis=1) - np.minimum(lowest / divisors, 0).min(axis=1)
    errors = (divisors**2).mean(axis=1) * (extents / STEPS) ** 2 / 12
    errors /= float(np.square(rows, dtype=np.float64).mean())
    best = int(errors.argmin())
    return top * float(_FLOORS[best]), float(errors[-1]), float(errors[best])
