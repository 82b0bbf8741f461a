"""A real search that is interrupted in every stage of its own comes to the choice of one that is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octobert.config.loading import parse
from octobert.config.training import Training
from octobert.engine.contract import Progress, Request, Response
from octobert.engine.executors import inline
from octobert.engine.publishing import HIDDEN
from octobert.pipeline import runner
from tests.support.runs import FAST


class Interrupting:
    """The executor `inline`, stopped by Ctrl-C once in each of some stages."""

    def __init__(self, *stages: str) -> None:
        self.left, self.ran = list(stages), list[str]()

    def __call__(
        self, request: Request, work: Path, progress: Progress, launch: Training | None = None
    ) -> Response:
        if request.stage in self.left:
            self.left.remove(request.stage)
            raise KeyboardInterrupt
        self.ran.append(request.stage)
        return inline.run(request, work, progress, launch)


# What is the smallest does not depend on times.
SEARCHES: dict[str, Any] = {
    "choose": {"goal": "size", "limits": {"max_drop": 0.5}, "vary": ["calibrate"]},
    "search": {
        "space": {"calibrate": ["held-out", "mse"], "quantize": ["static", "weight-only"]},
        "trials": 3,
        "goals": ["size"],
        "limits": [{"max_drop": 0.5}],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("key", SEARCHES)
def test_an_interrupted_search_comes_to_the_same_choice(
    checkpoint: Callable[..., Path], pairs: Path, out: Path, tmp_path: Path, key: str
) -> None:
    recipe = parse(
        {
            "model": str(checkpoint("bert")),
            "task": "text-classification",
            "data": {
                "source": str(pairs),
                "calibrate": {"from": "train", "samples": 24},
                "tune": {"from": "train"},
            },
            "targets": ["ort-cpu"],
            key: SEARCHES[key],
            "baselines": ["ort-f32"],
            "benchmark": FAST,
            "profile": False,
        }
    )
    executor = Interrupting("quantize", "judge", "package")
    interruptions = 0
    while True:
        try:
            report = runner.run(recipe, out, executor=executor)
            break
        except KeyboardInterrupt:
            interruptions += 1
            assert not (out / "best").exists()
    assert interruptions == 3
    assert report.choice is not None
    assert report.choice.met
    whole = runner.run(recipe, tmp_path / "whole", executor=inline.run).choice
    assert whole is not None
    # Their order follows from times.
    names = [{each.variant.name for each in choice.found} for choice in (report.choice, whole)]
    assert names[0] == names[1]
    assert report.choice.winner == whole.winner
    assert {each.name for each in out.iterdir()} == {
        HIDDEN,
        "best",
        "best.yaml",
        "report.json",
        "evidence.json",
        "report.html",
    }
    # Nothing that was stored is made again, by the same choice and by a second one.
    ran = len(executor.ran)
    assert runner.run(recipe, out, executor=executor).choice.best.drops == report.choice.best.drops
    assert len(executor.ran) == ran
