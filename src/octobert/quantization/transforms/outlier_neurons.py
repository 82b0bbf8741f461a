"""Compute the few neurons of a feed-forward whose values are far larger than all others apart, in float.

A feed-forward is a sum over its neurons, f(x W₁ + b₁) W₂: the chosen columns of W₁, f, and rows of W₂ become a branch whose
output is added to that of the rest. The rest has an interval that is several times narrower, and 8 bits for it alone. All
operators are standard. The branch is as wide as kernels like, and costs less than 1 % of the time of the block.

How many neurons follows from the expected error of the 8-bit product that reads them, on sampled tokens, after scales that even
out its channels (SmoothQuant, α = 0.5): they are taken while that lowers the error by a third or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from pydantic import Field

from octobert.core.family import EncoderFamily
from octobert.core.ranges import Sample
from octobert.graph import branches, smoothing
from octobert.quantization.transforms import Record, Transform, smoothquant

# Widths of branches. Kernels compute eight numbers at once, or more.
_WIDTHS = (8, 16)


class OutlierNeurons(Transform):
    """Neurons with the largest values, apart in float.

    Args:
        gain: take more neurons apart while the expected error of the block's second layer falls by this share or more.
    """

    needs_float: ClassVar[str | None] = "outlier neurons would be computed in float"

    gain: float = Field(default=1 / 3, gt=0, lt=1)

    def values(self, graph: ir.Graph, family: EncoderFamily) -> list[str]:
        """Return the names of the values that `transform_` needs samples of."""
        return sorted(place.value for place, _ in _places(graph, family))

    def transform_(
        self,
        model: ir.Model,
        family: EncoderFamily,
        samples: MutableMapping[str, Sample],
        progress: Callable[[int, int], None],
    ) -> list[Record]:
        """Move neurons into branches, in place.

        Returns:
            One record per feed-forward: kind, module, the number of neurons, the expected error before and after; `channels`,
            the largest magnitudes before and after, where some moved.
        """
        places, records = _places(model.graph, family), []
        apart = dict[str, np.ndarray]()
        for done, (place, module) in enumerate(places, start=1):
            sample = samples[place.value]
            weight = smoothing.weight_of(model.graph, module)
            neurons, errors = _chosen(sample, weight, self.gain)
            record = {
                "kind": "neurons",
                "module": module,
                "neurons": len(neurons),
                "error": errors[0],
                "left_error": errors[-1],
            }
            if len(neurons):
                apart[module] = neurons
                # What is left of them is the activation function at 0.
                samples[place.value] = rest = sample.times(
                    np.isin(np.arange(len(weight)), neurons, invert=True)
                )
                record["channels"] = np.stack([sample.largest, rest.largest])
            records.append(record)
            progress(done, len(places))
        branches.split_(model, family, apart)
        return records

    def summary(self, records: Sequence[Mapping[str, Any]]) -> str:
        """Return what was moved in words."""
        moved = [record["neurons"] for record in records if record["neurons"]]
        widths = " or ".join(map(str, sorted(set(moved)))) or "no"
        return f"{widths} neurons in float in {len(moved)} of {len(records)} feed-forwards"


def _places(graph: ir.Graph, family: EncoderFamily) -> list[tuple[smoothing.Place, str]]:
    """The feed-forwards that can be parted: the place of their neurons, and their second layer."""
    separable = branches.separable(graph, family)
    groups = (group for group in smoothing.groups(graph, family) if group.kind == "activation")
    # Layers that share weights would get weights of their own.
    places = (group.places[0] for group in groups if len(group.places) == 1)
    return [(place, place.readers[0]) for place in places if place.readers[0] in separable]


def _chosen(sample: Sample, weight: np.ndarray, gain: float) -> tuple[np.ndarray, list[float]]:
    """Return the neurons that are worth a branch, and the errors without one and with it.

    Args:
        sample: of the neurons [N, C].
        weight: [C, out] of the layer that reads them.
    """
    order = np.argsort(-sample.largest * np.abs(weight).max(axis=1), kind="stable")
    weight = smoothquant.some_columns(weight)
    chosen, errors = order[:0], [_error(sample, weight, order[:0])]
    for width in (width for width in _WIDTHS if width <= len(order) // 6):
        error = _error(sample, weight, order[:width])
        if error > errors[-1] * (1 - gain):
            break
        chosen = order[:width]
        errors.append(error)
    return np.sort(chosen), errors


def _error(sample: Sample, weight: np.ndarray, apart: np.ndarray) -> float:
    """The variance of the 8-bit product's error without these neurons, relative to that of the whole float product."""
    stay = np.delete(np.arange(len(weight)), apart)
    rest = Sample(sample.low[stay], sample.high[stay], sample.rows[:, stay])
    scales = smoothquant.balanced(rest.largest, weight[stay], 0.5)
    whole = (sample.rows @ weight).var(axis=0).sum()
    part = (rest.rows @ weight[stay]).var(axis=0).sum()
    return smoothquant.product_error(rest, weight[stay], scales) * float(part / max(whole, 1e-20))
