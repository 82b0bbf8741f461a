"""SmoothQuant: move the scale of outlier channels from activations into weights.

Channel j of an activation is divided by s_j = max|x_j|^α / max|w_j|^(1−α), and row j of the weights is multiplied by s_j. α is
given, or searched per group of layers or for all groups together: the α with the smallest error of the 8-bit product on a
sample of calibration tokens. Q and K are balanced against each other, which needs no α.

Source: Xiao et al. 2023, arXiv:2211.10438.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from pydantic import field_validator

from octobert.core.axes import Axis
from octobert.core.family import EncoderFamily
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Quantizer
from octobert.core.ranges import Sample
from octobert.graph import qdq, smoothing

# Values of α that a search tries, beside no smoothing. Below 0.3 nearly all of the scale would move into activations.
_ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
# Ends of the activation's range that are tried, as fractions of the sample's range.
_SHRINK = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Floor of magnitudes: the scale of a channel that is always zero would be infinite.
_TINY = 1e-5
_WEIGHT = Quantizer(dtype="int8", symmetric=True, axis=1)

# Mean squared error of a group's 8-bit product by α; None stands for no smoothing.
Errors = Mapping[float | None, float]


class Options(FrozenModel):
    """Args:
    alpha: share of the scale that moves into weights, from 0 to 1; `per-layer` searches it for each group of layers, `one`
        searches one value for all groups.
    activation: also smooth the input of the second feed-forward layer, which costs one Mul after the activation function.
    """

    alpha: str | float = "per-layer"
    activation: bool = True

    @field_validator("alpha")
    @classmethod
    def _known_alpha(cls, value: str | float) -> str | float:
        if value in ("per-layer", "one") or (not isinstance(value, str) and 0 <= value <= 1):
            return value
        raise ValueError("alpha is a number from 0 to 1, or per-layer, or one")


AXES = (
    # Without it outliers are worth clipping.
    Axis(
        key="transforms",
        values=([],),
        changes=("numbers",),
        invalidates="transform",
        prior=0.9,
        requires={"calibrate": "mse"},
    ),
    Axis(
        key="transforms",
        values=tuple([{"smoothquant": {"alpha": alpha}}] for alpha in (0.5, 0.8, "one")),
        names=("smoothquant 0.5", "smoothquant 0.8", "smoothquant one α"),
        changes=("numbers",),
        invalidates="transform",
        prior=0.4,
    ),
    # BERT-base at 1 × 128: the Muls after the activation functions take up to 4 % of the time (docs/evidence/runtimes.md).
    Axis(
        key="transforms",
        values=([{"smoothquant": {"activation": False}}],),
        names=("smoothquant without Mul",),
        changes=("numbers", "time"),
        invalidates="transform",
        gain=1.04,
    ),
)


def values(graph: ir.Graph, family: EncoderFamily, options: Options) -> list[str]:
    """Return the names of the values that `transform_` needs samples of."""
    groups = _enabled(smoothing.groups(graph, family), options)
    keys = {
        place.readers[0] for group in groups if group.kind == "scores" for place in group.places
    }
    return sorted({value for group in groups for value in group.values} | keys)


def transform_(
    model: ir.Model,
    family: EncoderFamily,
    samples: Mapping[str, Sample],
    options: Options,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Smooth a float graph in place.

    Returns:
        One record per group: kind, module, α and the error of its 8-bit product; `channels`, the largest magnitudes before and
        after, where it was smoothed; `left` has the reason where a place cannot be smoothed.
    """
    groups, left = smoothing.find(model.graph, family)
    groups = _enabled(groups, options)
    balanced = [group for group in groups if group.kind == "scores"]
    linear = [group for group in groups if group.kind != "scores"]
    alphas = (None, *_ALPHAS) if isinstance(options.alpha, str) else (options.alpha,)
    errors: dict[smoothing.Group, Errors] = {}
    for done, group in enumerate(linear, start=1):
        weight = _weight(model.graph, group)
        rows, largest = _sampled(samples, group.values)
        errors[group] = {
            alpha: _error(rows, weight, _scales(largest, weight, alpha)) for alpha in alphas
        }
        progress(done, len(linear))
    chosen = _chosen(errors, options)
    records: list[dict[str, Any]] = []
    for group in linear:
        alpha = chosen[group]
        records.append(
            {
                "kind": group.kind,
                "module": group.source,
                "alpha": alpha,
                "error": errors[group][alpha],
            }
        )
        if alpha is not None:
            largest = _sampled(samples, group.values)[1]
            scales = _scales(largest, _weight(model.graph, group), alpha)
            smoothing.scale_(model, group, scales)
            records[-1]["channels"] = np.stack([largest, largest / scales])
    for group in balanced:
        query, key = (
            _sampled(samples, of)[1]
            for of in (group.values, [place.readers[0] for place in group.places])
        )
        scales = np.sqrt(np.maximum(query, _TINY) / np.maximum(key, _TINY))
        smoothing.scale_(model, group, scales)
        channels = np.stack([query, query / scales])
        records.append(
            {
                "kind": group.kind,
                "module": group.source,
                "alpha": 0.5,
                "error": None,
                "channels": channels,
            }
        )
    records += [
        {"kind": p.kind, "module": p.source, "alpha": None, "error": None, "left": p.reason}
        for p in left
    ]
    return records


def _enabled(groups: Sequence[smoothing.Group], options: Options) -> list[smoothing.Group]:
    return [group for group in groups if group.kind != "activation" or options.activation]


def _weight(graph: ir.Graph, group: smoothing.Group) -> np.ndarray:
    """Return the weights of all layers of a group side by side: [C, out]."""
    return np.concatenate([smoothing.weight_of(graph, reader) for reader in group.readers], axis=1)


def _sampled(samples: Mapping[str, Sample], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows [N, C] and the largest magnitudes [C] of values that get the same scales."""
    group = [samples[name] for name in names]
    return np.concatenate([sample.rows for sample in group]), np.max(
        [sample.largest for sample in group], axis=0
    )


def _scales(largest: np.ndarray, weight: np.ndarray, alpha: float | None) -> np.ndarray:
    if alpha is None:
        return np.ones(len(weight))
    activation, rows = np.maximum(largest, _TINY), np.maximum(np.abs(weight).max(axis=1), _TINY)
    scales: np.ndarray = activation.astype(np.float64) ** alpha / rows.astype(np.float64) ** (
        1 - alpha
    )
    # A common factor has no effect on quantization; a geometric mean of 1 keeps the magnitudes of the float model.
    return np.asarray(scales / np.exp(np.log(scales).mean()))


def _error(rows: np.ndarray, weight: np.ndarray, scales: np.ndarray) -> float:
    """Return the mean squared error of the 8-bit product, relative to the mean square of the float product.

    Args:
        rows: [N, C] sampled activations.
        weight: [C, out].
        scales: [C].
    """
    smoothed = (rows / scales).astype(np.float32)
    scaled = (weight * scales[:, None]).astype(np.float32)
    integers, step = qdq.quantize_weight(scaled, _WEIGHT)
    energy = (scaled**2).sum(axis=1)
    low, high = min(float(smoothed.min()), 0.0), max(float(smoothed.max()), 0.0)
    grids = (
        Quantizer(dtype="uint8", symmetric=False, low=low * shrink, high=high * shrink)
        for shrink in _SHRINK
    )
    candidates = (qdq.rounded_activation(smoothed, grid) for grid in grids)
    best = min(candidates, key=lambda rounded: float((((rounded - smoothed) ** 2) @ energy).sum()))
    product = rows @ weight
    difference = best @ (integers * step) - product
    return float(np.mean(difference**2) / max(float(np.mean(product**2)), _TINY**2))


def _chosen(
    errors: Mapping[smoothing.Group, Errors], options: Options
) -> dict[smoothing.Group, float | None]:
    if options.alpha == "per-layer":
        return {
            group: min(by_alpha, key=lambda alpha: by_alpha[alpha])
            for group, by_alpha in errors.items()
        }
    if options.alpha == "one":
        # Groups differ in scale. The mean of logarithms gives a halved error the same weight in every group.
        total = {
            a: float(np.mean([np.log(by[a] + 1e-30) for by in errors.values()]))
            for a in (None, *_ALPHAS)
        }
        return dict.fromkeys(errors, min(total, key=lambda alpha: total[alpha]))
    return dict.fromkeys(errors, float(options.alpha))
