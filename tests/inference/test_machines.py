"""Packages that were chosen by their figures: the warning on other machines."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import octobert
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.results import PACKAGE_FILE
from octobert.inference import machines
from tests.support.cli import octobert as octobert_cli

AVX2 = ("avx2",)
VNNI = ("avx2", "avx512f", "avx512_vnni")
AMX = (*VNNI, "avx512_bf16", "amx_int8", "amx_bf16")
PAIR = ("the of", "and a")


@pytest.fixture
def on(monkeypatch) -> Callable[..., Environment]:
    """`on(features, openvino="2030.1")`: this process runs on such a machine from now on."""
    real = environment.current()

    def move(features: tuple[str, ...], cpu: str = "a CPU", **versions: str) -> Environment:
        here = real.model_copy(
            update={"features": features, "cpu": cpu, "versions": real.versions | versions}
        )
        monkeypatch.setattr(environment, "current", lambda *_: here)
        machines._warn.cache_clear()
        return here

    return move


@pytest.fixture
def chosen(finished, tmp_path: Path) -> Callable[..., Path]:
    """`chosen("a", "ort-cpu", features)`: an output directory with a package that was chosen on such a machine."""

    def make(name: str, target: str, features: tuple[str, ...], **changes: object) -> Path:
        package = shutil.copytree(finished[1] / target, tmp_path / name / "best")
        manifest = json.loads((package / PACKAGE_FILE).read_text())
        manifest |= {"chosen": f"use {target}", **changes}
        manifest["environment"]["features"] = features
        (package / PACKAGE_FILE).write_text(json.dumps(manifest))
        return tmp_path / name

    return make


def noted(package: Path) -> list[str]:
    """What octobert warns about when it opens a package."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        octobert.load(package).close()
    return [
        str(each.message)
        for each in caught
        if issubclass(each.category, octobert.OtherMachineWarning)
    ]


def test_a_chosen_package_warns_once_on_another_kind_of_machine(chosen, on, finished) -> None:
    best = chosen("out", "ort-cpu", VNNI) / "best"
    on(VNNI, cpu="another CPU of this kind", openvino="1.0")
    assert noted(best) == []
    on((*VNNI, "amx_int8"))
    (sentence,) = noted(best)
    assert "this CPU also has amx_int8. Another model may be faster here" in sentence
    assert sentence.endswith("choose it with octobert auto, on this machine")
    assert noted(best) == []
    assert "avx512_vnni" in noted_on(on, AVX2, best)
    installed = environment.current().versions["onnxruntime"]
    assert f"onnxruntime is 0.9, not {'.'.join(installed.split('.')[:2])}" in noted_on(
        on, VNNI, best, onnxruntime="0.9.3"
    )
    on(VNNI, onnxruntime=f"{'.'.join(installed.split('.')[:2])}.99")
    assert noted(best) == []
    # A package that nobody has chosen by figures runs anywhere.
    on(AMX)
    assert noted(finished[1] / "ort-cpu") == []


def noted_on(on, features: tuple[str, ...], package: Path, **versions: str) -> str:
    on(features, **versions)
    return " ".join(noted(package))


def test_the_command_line_says_it_as_a_note(chosen, on) -> None:
    best = chosen("out", "ort-cpu", AMX) / "best"
    on(AVX2)
    done = octobert_cli("predict", best, "--pair", *PAIR)
    assert done.returncode == 0
    assert (
        "was chosen on another kind of machine: this CPU lacks avx512f, avx512_vnni" in done.stderr
    )
    assert done.stderr.count("another kind of machine") == 1
