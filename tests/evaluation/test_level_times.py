"""Times of pruned models: rounds are added until a speedup is known well enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octobert.evaluation import level_times

WORKLOADS: Any = [SimpleNamespace(rounds=[{}]), SimpleNamespace(rounds=[{}])]


@pytest.mark.parametrize(
    ("noise", "parts"), [(0.0, 1), (0.15, 2), (2.0, level_times.TIMES_AGAINST)]
)
def test_a_noisy_speedup_is_measured_longer(
    monkeypatch: pytest.MonkeyPatch, noise: float, parts: int
) -> None:
    made: list[np.ndarray] = []

    def interleaved(sessions, feeds, seconds, seed):
        chance = np.random.default_rng(seed)
        made.append(
            np.array([6.0, 4.0])[:, None, None]
            + noise * chance.exponential(size=(2, 20, len(feeds)))
        )
        return made[-1]

    monkeypatch.setattr(level_times, "interleaved", interleaved)
    found = level_times.against(*[SimpleNamespace()] * 2, WORKLOADS)  # type: ignore[arg-type]
    assert len(made) == parts
    whole, cut = np.concatenate(made, axis=1).mean(axis=2)
    assert found.value == pytest.approx(np.median(whole / cut), rel=1e-12)
    assert found.low <= found.value <= found.high
    assert (found.high - found.low <= level_times.NARROW * found.value) == (
        parts < level_times.TIMES_AGAINST
    )
