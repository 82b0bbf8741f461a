"""Figures of samples, with their intervals."""

from __future__ import annotations

import functools

import numpy as np

from octobert.core.measurements import Figure
from octobert.evaluation.statistics import percentile


@functools.lru_cache(maxsize=512)
def statistic(samples: tuple[float, ...], q: float) -> Figure:
    """A percentile of times, with its interval."""
    return with_interval(np.array(samples), q, None)


def with_interval(samples: np.ndarray, q: float, over: np.ndarray | None) -> Figure:
    """A percentile, or the ratio of two, with its 95 % interval over the rounds."""
    value, low, high = percentile(samples, q, seed=0, over=over)
    return Figure(value=value, low=low, high=high)
