"""Move the scale of outlier channels from activations into weights, and shift channels to the middle of their range.

By default scales are learned: those for which the 8-bit product of each group of layers has the smallest expected error, the
weights' and the activations' together. Channels that can be shifted at no cost are centred first. With a fixed α channel j of
an activation is divided by s_j = max|x_j|^α / max|w_j|^(1−α) (SmoothQuant), without a shift. Q and K are balanced against each
other.

Expected error: the sum over weights of Var[x_j] · e(w_jo, Δ_o / s_j), and over channels of n_j(Δ s_j) · Σ_o w_jo². Δ_o is the
step of an output channel's weights and Δ that of the activation, which both follow from s; e is the error of a rounded weight,
at most its own square; n_j is the variance of the rounding error of channel j, as sampled.

Sources: Xiao et al. 2023, arXiv:2211.10438; Wei et al. 2023, arXiv:2304.09145 (shifts).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import onnx_ir as ir
from pydantic import Field, field_validator

from octobert.core import environment
from octobert.core.axes import Axis
from octobert.core.family import EncoderFamily
from octobert.core.plan import Quantizer
from octobert.core.ranges import Sample
from octobert.graph import qdq, smoothing
from octobert.quantization.transforms import Record, Transform

LEARNED: Literal["learned"] = "learned"
# Floor of magnitudes: the scale of a channel that is always zero would be infinite.
_TINY = 1e-5
_WEIGHT = Quantizer(dtype="int8", symmetric=True, axis=1)
# Iterations end where the next lowers the logarithm of the error by less, relative to it.
_ITERATIONS, _WORTH = 60, 1e-4
# Logarithm of a scale, where a search goes astray: squares of scaled weights stay numbers of single precision.
_LARGEST = 20.0
# Steps of activations that the variance of rounding errors is sampled at, and how far apart the smallest and largest are from
# the step of the whole range: channels are scaled by no more.
_STEPS, _FINEST, _COARSEST = 28, 1 / 64, 4.0
# Output channels whose weights are looked at; half of them where there are more than `_WIDE` input channels.
_COLUMNS, _WIDE = 256, 2048
# Exponent of the mean that stands for a maximum, which has no gradient.
_SQUARINGS = 4


class SmoothQuant(Transform):
    """Channels whose scales move from activations into weights.

    Args:
        alpha: `learned`: scales and shifts with the smallest expected error; or the share of the scale that moves into weights,
            from 0 to 1, the same for all layers and without shifts.
        activation: also scale the input of the second feed-forward layer, which costs one Mul after the activation function.
    """

    axes: ClassVar[tuple[Axis, ...]] = (
        # Without it outliers are worth clipping.
        Axis(
            key="transforms",
            values=([],),
            changes=("numbers",),
            invalidates="transform",
            prior=0.3,
            requires={"calibrate": "mse"},
        ),
        Axis(
            key="transforms",
            values=tuple(
                ["outlier-neurons", {"smoothquant": {"alpha": alpha}}, "token-scales"]
                for alpha in (0.5, 0.8)
            ),
            names=("smoothquant 0.5", "smoothquant 0.8"),
            changes=("numbers",),
            invalidates="transform",
            prior=0.2,
        ),
        # BERT-base at 1 × 128: the Muls after the activation functions take up to 4 % of the time (docs/evidence/runtimes.md).
        Axis(
            key="transforms",
            values=(["outlier-neurons", {"smoothquant": {"activation": False}}, "token-scales"],),
            names=("smoothquant without Mul",),
            changes=("numbers", "time"),
            invalidates="transform",
            gain=1.04,
        ),
    )

    alpha: Annotated[float, Field(ge=0, le=1)] | Literal["learned"] = LEARNED
    activation: bool = True

    @field_validator("alpha", mode="before")
    @classmethod
    def _known_alpha(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value == LEARNED or (is_number and 0 <= value <= 1):
            return value
        raise ValueError(f"alpha is a number from 0 to 1, or {LEARNED}")

    def values(self, graph: ir.Graph, family: EncoderFamily) -> list[str]:
        """Return the names of the values that `transform_` needs samples of."""
        groups = self._enabled(smoothing.groups(graph, family))
        keys = {
            place.readers[0] for group in groups if group.kind == "scores" for place in group.places
        }
        return sorted({value for group in groups for value in group.values} | keys)

    def transform_(
        self,
        model: ir.Model,
        family: EncoderFamily,
        samples: MutableMapping[str, Sample],
        progress: Callable[[int, int], None],
    ) -> list[Record]:
        """Smooth a float graph in place.

        Returns:
            One record per group: kind, module, α and the error of its 8-bit product; `channels`, the largest magnitudes before
            and after, where it was smoothed; `left` has the reason where a place cannot be smoothed.
        """
        groups, left = smoothing.find(model.graph, family)
        groups = self._enabled(groups)
        records, chosen = list[Record](), []
        # No scale changes what another is chosen from. Threads begin with NumPy's own treatment of what overflows.
        ignored = functools.partial(np.seterr, **np.geterr())
        with ThreadPoolExecutor(environment.cores(), initializer=ignored) as pool:
            for choice in pool.map(lambda group: self._chosen(model, group, samples), groups):
                chosen.append(choice)
                progress(len(chosen), len(groups))
        for group, (scales, shifts, error) in zip(groups, chosen, strict=True):
            smoothing.scale_(model, group, scales, shifts)
            before = _joined([samples[name] for name in group.values])
            for place in group.places:
                samples[place.value] = _shifted(samples[place.value], shifts).times(1 / scales)
                if group.kind == "scores":
                    key = place.readers[0]
                    samples[key] = samples[key].times(scales)
            after = _joined([samples[name] for name in group.values])
            records.append(
                {
                    "kind": group.kind,
                    "module": group.source,
                    "alpha": 0.5 if group.kind == "scores" else self.alpha,
                    "error": error,
                    "channels": np.stack([before.largest, after.largest]),
                }
            )
        records += [
            {"kind": p.kind, "module": p.source, "alpha": None, "error": None, "left": p.reason}
            for p in left
        ]
        return records

    def _enabled(self, groups: Sequence[smoothing.Group]) -> list[smoothing.Group]:
        return [group for group in groups if group.kind != "activation" or self.activation]

    def _chosen(
        self, model: ir.Model, group: smoothing.Group, samples: Mapping[str, Sample]
    ) -> tuple[np.ndarray, np.ndarray | None, float | None]:
        """Return scales [C], shifts [C] or None, and the error of the 8-bit product of a group of linear layers."""
        sample = _joined([samples[name] for name in group.values])
        if group.kind == "scores":
            keys = _joined([samples[place.readers[0]] for place in group.places])
            ratio = np.maximum(sample.largest, _TINY) / np.maximum(keys.largest, _TINY)
            return np.sqrt(ratio).astype(np.float64), None, None
        readers = [smoothing.weight_of(model.graph, reader) for reader in group.readers]
        weight = np.concatenate(readers, axis=1)
        shifts = None
        if self.alpha == LEARNED:
            if smoothing.can_shift(model.graph, group):
                shifts = ((sample.low.astype(np.float64) + sample.high) / 2).astype(np.float32)
            sample = _shifted(sample, shifts)
            scales = _learned(sample, weight)
        else:
            scales = balanced(sample.largest, weight, float(self.alpha))
        return scales, shifts, product_error(sample, weight, scales)


def _joined(samples: Sequence[Sample]) -> Sample:
    """Return the sample of several values that get the same scales."""
    if len(samples) == 1:
        return samples[0]
    return Sample(
        np.min([sample.low for sample in samples], axis=0),
        np.max([sample.high for sample in samples], axis=0),
        np.concatenate([sample.rows for sample in samples]),
    )


def _shifted(sample: Sample, shifts: np.ndarray | None) -> Sample:
    if shifts is None:
        return sample
    return Sample(sample.low - shifts, sample.high - shifts, sample.rows - shifts)


def balanced(largest: np.ndarray, weight: np.ndarray, alpha: float) -> np.ndarray:
    """The scales [C] of SmoothQuant, of channels with these largest magnitudes [C] and weights [C, out]."""
    activation, rows = np.maximum(largest, _TINY), np.maximum(np.abs(weight).max(axis=1), _TINY)
    scales: np.ndarray = activation.astype(np.float64) ** alpha / rows.astype(np.float64) ** (
        1 - alpha
    )
    return _centred(np.log(scales))


def _centred(logarithms: np.ndarray) -> np.ndarray:
    # A common factor has no effect on quantization; a geometric mean of 1 keeps the magnitudes of the float model.
    return np.asarray(np.exp(logarithms - logarithms.mean()))


def _learned(sample: Sample, weight: np.ndarray) -> np.ndarray:
    """Return the scales [C] with the smallest expected error of the 8-bit product; see the docstring of this module.

    Args:
        sample: of the shifted activation.
        weight: [C, out].
    """
    from scipy.optimize import minimize

    every = np.maximum(weight.astype(np.float64) ** 2, _TINY**4)
    totals = every.sum(axis=1)
    # The error of the weights' own rounding is a mean over output channels, which some of them tell as well.
    squares = some_columns(every).astype(weight.dtype)
    # In the precision of the weights: sums over many numbers of which none matters alone, in half the time of double precision.
    of_all = every.shape[1] / squares.shape[1]
    variance = np.maximum(sample.rows.var(axis=0, dtype=np.float64), _TINY**2)
    most = variance.max()
    shares = (variance / most).astype(weight.dtype)
    low, high = np.maximum(-sample.low, _TINY**2), np.maximum(sample.high, _TINY**2)
    noise = _Noise(sample.rows)
    levels = float(_WEIGHT.weight_limits[1])

    def error(logarithms: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the logarithm of the expected error, and its gradient."""
        power = np.exp(2 * np.clip(logarithms, -_LARGEST, _LARGEST)).astype(weight.dtype)[:, None]
        largest, weights_of_rows = _soft_maximum(squares * power, _SQUARINGS)
        # Variance of the rounding of each weight in units of the unscaled weight, [C, out].
        step = largest / (12 * levels**2) / power
        share = step + squares
        np.divide(squares, share, out=share)
        step *= share
        of_weights = of_all * float(variance @ step.sum(axis=1))
        step *= share
        of_columns = (shares @ step).astype(np.float64) * most
        of_rows = variance * step.sum(axis=1)
        gradient = 2 * of_all * (weights_of_rows @ of_columns - of_rows)
        above, above_change = _soft_maximum((high / np.exp(logarithms))[:, None], _SQUARINGS + 1)
        below, below_change = _soft_maximum((low / np.exp(logarithms))[:, None], _SQUARINGS + 1)
        extent = float(above[0] + below[0])
        rounding, slope = noise.at(np.log(extent / 255) + logarithms)
        of_channels, slope = rounding * totals, rounding * totals * slope
        narrower = (above_change[:, 0] * above[0] + below_change[:, 0] * below[0]) / extent
        gradient += slope - slope.sum() * narrower
        total = of_weights + float(of_channels.sum())
        return float(np.log(total)), gradient / total

    found = minimize(
        error,
        np.zeros(len(totals)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _ITERATIONS, "ftol": _WORTH},
    )
    return _centred(found.x)


def _soft_maximum(values: np.ndarray, squarings: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a norm of each column that is close to its largest entry, and how it depends on each entry.

    Args:
        values: [C, N], positive.
        squarings: the norm has exponent 2 ** squarings.

    Returns:
        ([N] norms, [C, N] change of the norm's logarithm by the logarithm of each entry; each column adds up to 1).
    """
    top = values.max(axis=0)
    powers = values / top
    # What is far below the largest has no effect, and its powers would be subnormal numbers, which CPUs are slow with.
    np.maximum(powers, 1e-32 ** (1 / 2**squarings), out=powers)
    for _ in range(squarings):
        powers *= powers
    sums = powers.sum(axis=0)
    powers /= sums
    return top * sums ** (1 / 2**squarings), powers


class _Noise:
    """The variance of each channel's rounding error, by the step.

    Args:
        rows: [N, C] sampled activations.
    """

    def __init__(self, rows: np.ndarray) -> None:
        whole = max(float(np.abs(rows).max()), _TINY) / 255
        steps = np.geomspace(whole * _FINEST, whole * _COARSEST, _STEPS)
        self._first, self._between = np.log(steps[0]), np.log(steps[1] / steps[0])
        variances, error = [], np.empty_like(rows)
        for step in steps.astype(rows.dtype):
            np.rint(np.divide(rows, step, out=error), out=error)
            error *= step
            np.subtract(rows, error, out=error)
            squares = np.einsum("ij,ij->j", error, error) / len(rows)
            variances.append(np.maximum(squares - error.mean(axis=0) ** 2, _TINY**3))
        self._table = np.log(variances, dtype=np.float64).T

    def at(self, logarithms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return variances [C], and the change of their logarithms by that of the step.

        Args:
            logarithms: [C] of each channel's step. Below the table, a variance falls with the square of the step.
        """
        place = np.clip((logarithms - self._first) / self._between, 0, _STEPS - 1.001)
        index = place.astype(int)
        lower, upper = (
            np.take_along_axis(self._table, i[:, None], axis=1)[:, 0] for i in (index, index + 1)
        )
        result = lower + (upper - lower) * (place - index)
        below = logarithms < self._first
        result = np.where(below, result + 2 * (logarithms - self._first), result)
        return np.exp(result), np.where(below, 2.0, (upper - lower) / self._between)


def some_columns(weight: np.ndarray) -> np.ndarray:
    """Return a weight [C, out] with as many of its output channels as tell a mean over all."""
    channels, count = weight.shape
    most = _COLUMNS // 2 if channels > _WIDE else _COLUMNS
    return weight[:, np.linspace(0, count - 1, min(count, most)).astype(int)]


def product_error(sample: Sample, weight: np.ndarray, scales: np.ndarray) -> float:
    """Return the variance of the 8-bit product's error, relative to that of the float product. A bias takes the mean error.

    Args:
        sample: of the shifted activation [N, C].
        weight: [C, out].
        scales: [C].
    """
    low, high = float((sample.low / scales).min()), float((sample.high / scales).max())
    grid = Quantizer(dtype="uint8", symmetric=False, low=min(low, 0.0), high=max(high, 0.0))
    weight = some_columns(weight)
    rounded = qdq.rounded_activation((sample.rows / scales).astype(np.float32), grid)
    weights = qdq.dequantized_weight((weight * scales[:, None]).astype(np.float32), _WEIGHT)
    product = sample.rows @ weight
    difference = rounded @ weights - product
    return float(difference.var(axis=0).sum() / max(float(product.var(axis=0).sum()), _TINY**2))
