"""Second moments of the inputs of output projections, over calibration tokens: all that removing units needs of the data.

A last column of ones stands for the bias, so that the mean output of what is removed moves into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from octobert.data.tokenization import Encoded
from octobert.quantization import observer


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
