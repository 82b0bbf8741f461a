"""Runs whose models would be far from float for a few layers: these stay in float, and the report says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import octobert
from octobert.config.loading import parse
from octobert.core.results import Report
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.report.summary import verdicts
from tests.support.runs import write_pairs

UNIT = "layer 1 ffn_down"


@pytest.fixture(scope="module")
def planted(checkpoint, tmp_path_factory) -> Path:
    """A tiny BERT with a neuron in its last layer that is hundreds of times larger than all others."""
    folder = tmp_path_factory.mktemp("planted") / "model"
    shutil.copytree(checkpoint("bert"), folder)
    weights = {k: np.array(v) for k, v in load_file(folder / "model.safetensors").items()}
    stem = next(k for k in weights if k.endswith("layer.1.intermediate.dense.weight"))
    stem = stem.removesuffix("intermediate.dense.weight")
    weights[f"{stem}intermediate.dense.bias"][3] = 400.0
    weights[f"{stem}output.dense.weight"][:, 3] /= 400.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def made(model: Path, folder: Path, **keys: object) -> Report:
    """A run that measures nothing, without the transforms that would mend the neuron."""
    folder.mkdir(exist_ok=True)
    write_pairs(folder / "data")
    data = {"source": str(folder / "data"), "calibrate": {"from": "train", "samples": 24}}
    recipe = {"model": str(model), "task": "text-classification", "data": data, "measure": False}
    changes = {"transforms": [], "targets": ["ort-cpu", "openvino-cpu"], **keys}
    return runner.run(parse({**recipe, **changes}), folder / "out", executor=inline.run)


def test_a_layer_with_a_far_too_large_neuron_stays_in_float(planted, tmp_path) -> None:
    report = made(planted, tmp_path)
    for target in ("ort-cpu", "openvino-cpu"):
        expected = report.sensitivities[target]
        assert expected.fallback == (UNIT,)
        assert expected.left < expected.together / 10
        plan = octobert.manifest(tmp_path / "out" / target).plan
        assert plan == report.plans[target]
        layer = [d for d in plan.decisions if (d.site.layer, d.site.part) == (1, "ffn_down")]
        (reason,) = {d.reason for d in layer if d.site.role in ("linear.input", "linear.weight")}
        assert reason == f"fallback to float for the error that is expected of 8 bits ({UNIT})"
    said = "\n".join(verdicts(report))
    assert f"ort-cpu: {UNIT} stay in float; in 8 bits the expected error would be" in said
    assert "Expected error, before weights are corrected: " in said


def test_without_the_estimate_nothing_stays_in_float(planted, tmp_path) -> None:
    report = made(planted, tmp_path, sensitivity=False, targets=["ort-cpu"])
    assert report.sensitivities == {}
    assert "expected of 8 bits" not in str(report.plans)
    assert not any("xpected error" in sentence for sentence in verdicts(report))


def test_transforms_that_mend_the_neuron_leave_nothing_to_do(planted, tmp_path) -> None:
    """The weights that read it are small, so that smoothing is all that it takes."""
    report = made(planted, tmp_path, transforms=["smoothquant"], targets=["ort-cpu"])
    assert report.sensitivities["ort-cpu"].fallback == ()
    before = made(planted, tmp_path / "plain", targets=["ort-cpu"]).sensitivities["ort-cpu"]
    assert report.sensitivities["ort-cpu"].together < before.together / 10
