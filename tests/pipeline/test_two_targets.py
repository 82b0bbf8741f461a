"""Weights are corrected once for all targets whose plans quantize linear layers alike."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octobert.config.loading import parse
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.quantization import apply_corrections
from tests.support.runs import write_pairs

# Target → whether its plan quantizes linear layers as that of ort-cpu does.
OTHERS = {"openvino-cpu": True, "qnn": False, "tensorrt": False}


def weights(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Target → the corrected constants that its step has stored."""
    steps = (folder / ".octobert" / "store").glob("quantize-*")
    found = {}
    for step in steps:
        target = json.loads((step / "plan.json").read_text(encoding="utf-8"))["target"]
        with np.load(step / "corrections.npz") as arrays:
            found[target] = dict(arrays)
    return found


@pytest.mark.parametrize(("second", "same"), OTHERS.items())
def test_weights_are_corrected_once_where_plans_agree(
    checkpoint, tmp_path, monkeypatch, second: str, same: bool
) -> None:
    write_pairs(tmp_path / "data")
    corrected, correct = [], apply_corrections.correct_layers
    monkeypatch.setattr(
        apply_corrections,
        "correct_layers",
        lambda graph, rows, pad, plan, *rest: (
            corrected.append(plan.target) or correct(graph, rows, pad, plan, *rest)
        ),
    )

    def run(name: str, *targets: str) -> dict[str, np.ndarray]:
        recipe = {
            "model": str(checkpoint("bert")),
            "task": "text-classification",
            "data": {
                "source": str(tmp_path / "data"),
                "calibrate": {"from": "train", "samples": 24},
            },
            "targets": list(targets),
            "measure": False,
        }
        shape = {"shape": {"batch": 1, "sequence": 64}} if "qnn" in targets else {}
        runner.run(parse({**recipe, **shape}), tmp_path / name, executor=inline.run)
        return weights(tmp_path / name)[second]

    together = run("both", "ort-cpu", second)
    assert corrected == (["ort-cpu"] if same else ["ort-cpu", second])
    if not same:
        return
    corrected.clear()
    alone = run("alone", second)
    assert corrected == [second]
    assert together.keys() == alone.keys()
    assert len(alone) > 2
    for name, expected in alone.items():
        np.testing.assert_array_equal(together[name], expected)
