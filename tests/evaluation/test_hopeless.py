"""A model that is hopelessly slow is timed in a few rounds only; a disturbed one is not taken for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from octobert.evaluation import latency
from octobert.evaluation.interleaving import unless_hopeless


def test_a_model_is_hopeless_when_six_rounds_say_so(monkeypatch) -> None:
    """Fewer rounds have no interval, and the fastest of each round is the one that was disturbed least."""
    times = {
        "fast": [1.0] * 20,
        "disturbed": [9.0] * 3 + [1.5] * 17,
        # The fastest in one round, and as slow as others in the rest.
        "uneven": [0.2] + [3.0] * 19,
        "hopeless": [5.0] * 20,
    }

    def worker(name: str) -> Any:
        left = iter(times[name])
        return SimpleNamespace(
            candidate=SimpleNamespace(title=name, size_bytes=1, device="CPU"),
            facts=SimpleNamespace(load_ms=1.0, precision="f32", threads=1),
            ask=lambda what, _: next(left) if what == "time" else 1 if what == "peak" else "CPU",
        )

    class Working:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> list[Any]:
            return [worker(name) for name in times]

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(latency, "working", Working)
    ones = np.ones((1, 4), np.int64)
    load = latency.Workload(1, "data", ({"input_ids": ones, "attention_mask": ones},))
    measured = latency.measure([], [load], repeats=12, threads=1, stays=unless_hopeless(4.0))
    rounds = {each.candidate: len(each.samples_ms) for each in measured.latencies}
    assert rounds == {"fast": 12, "disturbed": 12, "uneven": 12, "hopeless": 6}
