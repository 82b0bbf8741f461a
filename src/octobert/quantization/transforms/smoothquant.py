"""SmoothQuant: move the scale of outlier channels from activations into weights (Xiao et al. 2023, arXiv:2211.10438).

Channel j of an activation is divided by s_j = max|x_j|^α / max|w_j|^(1−α), and row j of the weights multiplied by it. α is
fixed, or searched: the one whose 8-bit product is nearest to the float product on a sample of calibration tokens, for each
group of layers or for all of them together. Q and K are balanced against each other, which needs no α.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from pydantic import field_validator

from octobert.core.family import EncoderFamily
from octobert.core.frozen import FrozenModel
from octobert.core.plan import Quantizer
from octobert.core.ranges import Sample
from octobert.graph import qdq, smoothing

# α that a search tries beside "leave it": below 0.3 nearly everything would move into activations.
_ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
# Ends of the activation's range that are tried, as fractions of the sample's.
_SHRINK = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Channels that never move would otherwise be multiplied without end.
_TINY = 1e-5
_WEIGHT = Quantizer(dtype="int8", symmetric=True, axis=1)


class Options(FrozenModel):
    """Args:
    alpha: how much of the scale moves, from 0 to 1; `per-layer` searches one for each group of layers, `one` one for all.
    activation: also smooth the input of the second feed-forward layer, which costs one multiplication of GELU's output.
    """

    alpha: str | float = "per-layer"
    activation: bool = True

    @field_validator("alpha")
    @classmethod
    def _known_alpha(cls, value: str | float) -> str | float:
        if value in ("per-layer", "one") or (not isinstance(value, str) and 0 <= value <= 1):
            return value
        raise ValueError("alpha is a number from 0 to 1, or per-layer, or one")


def values(graph: ir.Graph, encoder: EncoderFamily, options: Options) -> list[str]:
    """The values that have to be sampled."""
    found = _groups(graph, encoder, options)
    keys = {place.readers[0] for group in found if group.kind == "scores" for place in group.places}
    return sorted({value for group in found for value in group.values} | keys)


def transform_(
    model: ir.Model,
    encoder: EncoderFamily,
    samples: Mapping[str, Sample],
    options: Options,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Smooth a float graph in place; what was done to each group, and why others were left alone."""
    found, left = smoothing.find(model.graph, encoder)
    found = [group for group in found if group.kind != "activation" or options.activation]
    balanced = [g for g in found if g.kind == "scores"]
    linear = [g for g in found if g.kind != "scores"]
    errors: dict[smoothing.Group, dict[float | None, float]] = {}
    tried = (None, *_ALPHAS) if isinstance(options.alpha, str) else (options.alpha,)
    for done, group in enumerate(linear, start=1):
        weight = _weight(model.graph, group)
        rows, largest = _sampled(samples, group.values)
        errors[group] = {alpha: _error(rows, weight, _scales(largest, weight, alpha)) for alpha in tried}
        progress(done, len(linear))
    chosen = _chosen(errors, options)
    facts: list[dict[str, Any]] = []
    for group in linear:
        alpha = chosen[group]
        if alpha is not None:
            largest = _sampled(samples, group.values)[1]
            smoothing.scale_(model, group, _scales(largest, _weight(model.graph, group), alpha))
        facts.append({"kind": group.kind, "module": group.source, "alpha": alpha, "error": errors[group][alpha]})
    for group in balanced:
        query, key = (_sampled(samples, of)[1] for of in (group.values, [place.readers[0] for place in group.places]))
        smoothing.scale_(model, group, np.sqrt(np.maximum(query, _TINY) / np.maximum(key, _TINY)))
        facts.append({"kind": group.kind, "module": group.source, "alpha": 0.5, "error": None})
    facts += [{"kind": one.kind, "module": one.source, "alpha": None, "error": None, "left": one.reason} for one in left]
    return facts


def _groups(graph: ir.Graph, encoder: EncoderFamily, options: Options) -> list[smoothing.Group]:
    return [g for g in smoothing.groups(graph, encoder) if g.kind != "activation" or options.activation]


def _weight(graph: ir.Graph, group: smoothing.Group) -> np.ndarray:
    """The weights of all layers of a group side by side: [C, out]."""
    return np.concatenate([smoothing.weight_of(graph, reader) for reader in group.readers], axis=1)


def _sampled(samples: Mapping[str, Sample], values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, C] and largest magnitudes [C] of values whose channels are scaled alike."""
    found = [samples[value] for value in values]
    return np.concatenate([one.rows for one in found]), np.max([one.largest for one in found], axis=0)


def _scales(largest: np.ndarray, weight: np.ndarray, alpha: float | None) -> np.ndarray:
    if alpha is None:
        return np.ones(len(weight))
    activation, rows = np.maximum(largest, _TINY), np.maximum(np.abs(weight).max(axis=1), _TINY)
    scales = activation.astype(np.float64) ** alpha / rows.astype(np.float64) ** (1 - alpha)
    # A common factor changes nothing that is quantized; with mean one the values stay in a range that people recognise.
    return scales / np.exp(np.log(scales).mean())


def _error(rows: np.ndarray, weight: np.ndarray, scales: np.ndarray) -> float:
    """Mean squared error of the 8-bit product, relative to the mean square of the float product.

    Args:
        rows: [N, C] sampled activations.
        weight: [C, out].
        scales: [C].
    """
    smoothed, scaled = (rows / scales).astype(np.float32), (weight * scales[:, None]).astype(np.float32)
    integers, step = qdq.quantize_weight(scaled, _WEIGHT)
    strength = (scaled**2).sum(axis=1)
    low, high = min(float(smoothed.min()), 0.0), max(float(smoothed.max()), 0.0)
    best: tuple[float, np.ndarray] | None = None
    for shrink in _SHRINK:
        grid = Quantizer(dtype="uint8", symmetric=False, low=low * shrink, high=high * shrink)
        rounded = qdq.rounded_activation(smoothed, grid)
        harm = float((((rounded - smoothed) ** 2) @ strength).sum())
        if best is None or harm < best[0]:
            best = harm, rounded
    assert best is not None
    product = rows @ weight
    difference = best[1] @ (integers * step) - product
    return float(np.mean(difference**2) / max(float(np.mean(product**2)), _TINY**2))


def _chosen(errors: Mapping[smoothing.Group, Mapping[float | None, float]], options: Options) -> dict[Any, float | None]:
    if options.alpha == "per-layer":
        return {group: min(tried, key=lambda a: tried[a]) for group, tried in errors.items()}
    if options.alpha == "one":
        # Groups differ in scale; the mean of logarithms weighs an improvement by half alike wherever it is.
        total = {a: float(np.mean([np.log(t[a] + 1e-30) for t in errors.values()])) for a in (None, *_ALPHAS)}
        best = min(total, key=lambda a: total[a])
        return dict.fromkeys(errors, best)
    return dict.fromkeys(errors, float(options.alpha))
