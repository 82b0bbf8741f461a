"""Remove the units of a sublayer that its output misses least, and adapt the weights of the others in closed form.

Optimal brain surgeon for groups of channels (Hassibi and Stork 1992; ZipLM, Kurtic et al. 2023, arXiv 2302.04089). With
H = XᵀX / tokens + damping and the output projection W, removing the channels S of a unit costs tr(W_Sᵀ (H⁻¹_SS)⁻¹ W_S) in mean
squared error of the output if the other weights change by -H⁻¹[:, S] (H⁻¹_SS)⁻¹ W_S. Units are removed one after the other, the
cheapest first. `moments` gives XᵀX over calibration tokens, all that this needs of the data. A last column of ones stands for
the bias, so that the mean output of what is removed moves into it; it is never removed and not damped.

After k removals, H⁻¹ and W are those of before minus products of rank k. For neurons these are applied in blocks: until then
only the column of H⁻¹ and the scores that a step needs are computed. A feed-forward of BERT-base takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octobert.data.tokenization import Encoded
from octobert.graph import cutting
from octobert.quantization import observer

# Neurons whose removal is applied at once.
_BLOCK = 64


class Sums:
    """Adds up products over blocks of tokens: float32 within a block, float64 between blocks.

    Args:
        channels: C, without the ones.
        outputs: columns of a second factor.

    Attributes:
        count: tokens.
        products: [C + 1, C + 1] float64, the sum over tokens of [x, 1]ᵀ [x, 1].
        mixed: [C + 1, outputs] float64, the sum over tokens of [x, 1]ᵀ y.
    """

    def __init__(self, channels: int, outputs: int = 0) -> None:
        self.count = 0
        self.products = np.zeros((channels + 1, channels + 1))
        self.mixed = np.zeros((channels + 1, outputs))

    def add(self, x: np.ndarray, y: np.ndarray | None = None) -> None:
        """Add tokens.

        Args:
            x: [N, C] float32.
            y: [N, outputs] float32.
        """
        ones = np.concatenate([x, np.ones((len(x), 1), dtype=np.float32)], axis=1)
        self.count += len(x)
        self.products += ones.T @ ones
        if y is not None:
            self.mixed += ones.T @ y


def moments(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    values: Sequence[str],
    *,
    on_rows: Callable[[int], None] | None = None,
) -> dict[str, Sums]:
    """Collect moments in one pass. Padding is left out.

    Memory holds one matrix per value: 0.9 GB for all feed-forwards of a BERT-base.

    Args:
        model_path: a canonical float graph.
        rows: token ids.
        pad_id: id of the padding token.
        values: names of values of shape [B, S, C]: inputs of output projections.
        on_rows: called after each batch with the number of rows done.

    Returns:
        Name of a value → its sums.

    Raises:
        ModelError: a value is not in the graph.
    """
    sums: dict[str, Sums] = {}

    def take(name: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        tokens = np.concatenate(parts)
        sums.setdefault(name, Sums(tokens.shape[-1])).add(tokens)

    observer.stream(model_path, rows, pad_id, values, take, on_rows=on_rows)
    return sums


@dataclass(frozen=True)
class Level:
    """A sublayer with fewer units.

    Args:
        units: that are left.
        kept: [units] their indices, ascending.
        weight: [units × width, out] float32.
        bias: [out] float32.
        error: mean squared error of the output, as a share of its mean square.
    """

    units: int
    kept: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    error: float


def removed(
    products: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    width: int,
    levels: Sequence[int],
    damping: float,
) -> list[Level]:
    """Remove units one after the other, and return the levels on the way.

    Args:
        products: [C + 1, C + 1], the sum of [x, 1]ᵀ [x, 1] over tokens (`moments`).
        weight: [C, out] of the output projection.
        bias: [out].
        width: channels per unit.
        levels: numbers of units that are left, in any order; all units is error 0, and 0 leaves only the mean output.
        damping: added to the energy of each channel, as a share of the mean energy.

    Returns:
        One level per number, with the most units first.
    """
    channels = len(weight)
    full = np.concatenate([weight, bias[None]]).astype(np.float64)
    hessian = damped(products, damping)
    added = hessian[0, 0] - products[0, 0] / products[-1, -1] if channels else 0.0
    power = float(np.sum(full * (products @ full))) / products[-1, -1]
    path = _Path(np.linalg.inv(hessian), full.copy(), width)
    results = []
    for units in sorted(set(levels), reverse=True):
        path.remove_until(units)
        changed = np.zeros_like(full)
        changed[path.channels] = path.weight
        # The sum of the costs is the error with damping.
        error = path.cost - added * float(np.sum((changed[:-1] - full[:-1]) ** 2))
        results.append(
            Level(
                units=units,
                kept=path.units.copy(),
                weight=path.weight[:-1].astype(np.float32),
                bias=path.weight[-1].astype(np.float32),
                error=max(error, 0.0) / max(power, 1e-30),
            )
        )
    return results


def damped(products: np.ndarray, damping: float) -> np.ndarray:
    """Return the mean of products [C + 1, C + 1], with a share of the mean energy added to all channels but the ones."""
    mean: np.ndarray = products / products[-1, -1]
    energy = np.diagonal(mean)[:-1]
    added = damping * float(energy.mean()) if len(energy) else 0.0
    diagonal = np.arange(len(energy))
    mean[diagonal, diagonal] += max(added, 1e-12)
    return mean


class _Path:
    """The state while units are removed: what is left of H⁻¹ and W, whose last row and column belong to the ones."""

    def __init__(self, inverse: np.ndarray, weight: np.ndarray, width: int) -> None:
        self.width = width
        self.units = np.arange((len(weight) - 1) // width)
        self.inverse, self.weight = inverse, weight
        self.cost = 0.0

    @property
    def channels(self) -> np.ndarray:
        """Indices of what is left, the ones included, among all channels."""
        everything: np.ndarray = np.append(cutting.channels_of(self.units, self.width), -1)
        return everything

    def remove_until(self, units: int) -> None:
        """Remove the cheapest units until `units` are left."""
        while len(self.units) > units:
            count = len(self.units) - units
            if self.width == 1:
                self._remove_neurons(min(_BLOCK, count))
            else:
                self._remove_group()

    def _remove_group(self) -> None:
        """Remove the cheapest unit of several channels."""
        costs, moves = [], []
        for unit in range(len(self.units)):
            block = slice(unit * self.width, (unit + 1) * self.width)
            moves.append(np.linalg.solve(self.inverse[block, block], self.weight[block]))
            costs.append(float(np.sum(self.weight[block] * moves[-1])))
        cheapest = int(np.argmin(costs))
        channels = np.arange(cheapest * self.width, (cheapest + 1) * self.width)
        columns = self.inverse[:, channels]
        self.cost += costs[cheapest]
        self.weight -= columns @ moves[cheapest]
        self.inverse -= columns @ np.linalg.solve(
            self.inverse[np.ix_(channels, channels)], columns.T
        )
        self._drop(channels, [cheapest])

    def _remove_neurons(self, count: int) -> None:
        """Remove the cheapest neurons, one after the other; H⁻¹ and W are updated at the end."""
        size = len(self.units)
        columns = np.zeros((size + 1, count))
        rows = np.zeros((count, self.weight.shape[1]))
        diagonal = np.diagonal(self.inverse)[:size].copy()
        norms = np.einsum("ij,ij->i", self.weight[:size], self.weight[:size])
        gone: list[int] = []
        for step in range(count):
            costs = norms / diagonal
            chosen = int(np.argmin(costs))
            gone.append(chosen)
            self.cost += float(costs[chosen])
            column = self.inverse[:, chosen] - columns[:, :step] @ columns[chosen, :step]
            pivot = column[chosen]
            row = self.weight[chosen] - columns[chosen, :step] @ rows[:step]
            column, row = column / np.sqrt(pivot), row / np.sqrt(pivot)
            # The squared norms of W - column · row, without computing it.
            along = self.weight[:size] @ row - columns[:size, :step] @ (rows[:step] @ row)
            norms = norms - 2 * column[:size] * along + column[:size] ** 2 * float(row @ row)
            diagonal = diagonal - column[:size] ** 2
            diagonal[gone] = 1.0
            columns[:, step], rows[step] = column, row
            norms[gone] = np.inf
        self.weight -= columns @ rows
        self.inverse -= columns @ columns.T
        self._drop(np.array(gone), gone)

    def _drop(self, channels: np.ndarray, units: Sequence[int]) -> None:
        left = np.delete(np.arange(len(self.weight)), channels)
        self.weight, self.inverse = self.weight[left], self.inverse[np.ix_(left, left)]
        self.units = np.delete(self.units, units)
