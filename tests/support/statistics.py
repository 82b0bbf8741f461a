"""Statistics of rows, as calibrators get them."""

from collections.abc import Sequence

import numpy as np

from octobert.core.ranges import Collector, TensorStatistics


def seen(*parts: np.ndarray) -> TensorStatistics:
    """Statistics of rows, each a batch of its own."""
    return batched(parts, [[index] for index in range(len(parts))])


def batched(parts: Sequence[np.ndarray], groups: Sequence[Sequence[int]]) -> TensorStatistics:
    """Statistics of rows in these batches, in this order."""
    collector = Collector(len(parts))
    for group in groups:
        assert collector.add(group, [parts[index] for index in group]) is None
    return collector.statistics()
