"""What a recipe needs on a machine: packages of extras, builds of onnxruntime, drivers; and what is not installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import octobert
from octobert.api import setup
from octobert.core.environment import Need, Setup
from octobert.core.errors import ModelError, TargetError
from octobert.report import terminal
from tests.support import cli

PLAIN: dict[str, Any] = {"model": "m", "task": "mrpc", "data": "d"}
FOREIGN = "package:no_such_package_of_octobert/model"


def wanted(**keys: Any) -> dict[str, Need]:
    return {need.name: need for need in octobert.setup({**PLAIN, **keys}).needs}


def test_packages_come_from_the_parts_of_the_recipe() -> None:
    plain = wanted(model="model.onnx")
    assert {"onnxruntime", "tokenizers"} <= set(plain)
    assert not {"torch", "accelerate", "openvino"} & set(plain)
    full = wanted(
        finetune={},
        targets=["openvino-cpu", "ort-cpu"],
        training={"tensorboard": "logs"},
        tune=["latency"],
    )
    assert full["accelerate"].wanted_by == ("training",)
    assert full["torch"].wanted_by == ("model", "training")
    assert full["openvino"].wanted_by == ("target openvino-cpu",)
    assert full["tensorboard"].required
    assert full["optuna"].wanted_by == ("tune",)
    judged = wanted(metric={"evaluate": "roc_auc"}, allow_code=True)
    # The latter where a checkout is newer than its installation.
    assert (judged.get("evaluate") or judged["octobert[metrics]"]).wanted_by == ("metric",)
    assert full["torch"].version == ">=2.9"
    assert all(need.fits for need in full.values())


def test_devices_need_builds_and_drivers_to_measure_and_none_to_write() -> None:
    needed = wanted(targets=["tensorrt", "openvino-npu"])
    assert needed["onnxruntime-gpu"].kind == "build"
    assert {name for name, need in needed.items() if need.kind == "driver"} == {
        "NVIDIA driver",
        "CUDA runtime",
        "cuDNN",
        "TensorRT",
        "Intel NPU driver",
    }
    assert not any(need.required for need in needed.values() if need.kind != "package")
    assert needed["openvino"].required


def test_a_build_under_no_name_is_told_by_its_target() -> None:
    found = octobert.setup({**PLAIN, "targets": ["vitisai", "tensorrt-rtx"]})
    said = "\n".join(terminal.needs_sentences(found))
    for target in ("vitisai", "tensorrt-rtx"):
        if not octobert.list_targets()[target][1].available:
            assert f"a build of ort for {target}: install " in said
    assert found.conflicts == ()


def test_a_name_that_no_package_can_have_is_one_sentence() -> None:
    with pytest.raises(ModelError, match="this is no name of a package"):
        octobert.setup({**PLAIN, "model": "package:foo bar/model"})


def test_another_build_of_onnxruntime_is_said_and_not_installed() -> None:
    found = octobert.setup({**PLAIN, "targets": ["ort-cuda"]})
    if all(need.fits for need in found.needs if need.kind == "build"):
        pytest.skip("this machine has the build")
    assert not any("onnxruntime-gpu" in command for command in found.commands)
    assert "onnxruntime-gpu is another build of the module onnxruntime" in found.conflicts[0]
    assert "pip install --force-reinstall --no-deps onnxruntime-gpu" in found.conflicts[0]
    assert found.conflicts[0] in terminal.needs_sentences(found)[-1]


def test_the_package_of_a_model_is_named_with_an_exit_code_and_never_installed(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({**PLAIN, "model": FOREIGN}))
    result = cli.octobert("run", str(recipe), "--setup")
    assert result.returncode == TargetError.exit_code
    assert "pip install no-such-package-of-octobert" in result.stdout
    assert (
        "the recipe needs what is not installed here (got no-such-package-of-octobert)"
        in result.stderr
    )
    printed = json.loads(cli.octobert("run", str(recipe), "--setup", "--json").stdout)
    # A recipe of somebody else could name any package.
    assert printed["commands"] == []
    assert printed["conflicts"][0].startswith("no-such-package-of-octobert has the recipe's model")
    assert [need["name"] for need in printed["needs"] if not need["fits"]] == [
        "no-such-package-of-octobert"
    ]


def test_a_version_that_is_too_old_does_not_fit() -> None:
    from packaging.requirements import Requirement

    need = setup._package(Requirement("numpy>=99"), "test", required=True)
    assert need.found
    assert not need.fits
    assert terminal._here(need) == f"{need.found}, which does not fit"


def test_pip_of_this_environment_runs_or_is_refused(golden) -> None:
    lines: list[str] = []
    setup.install(Setup(needs=(), commands=("pip --version",)), lines.append)
    assert lines[0].startswith("pip ")
    with golden.raises(TargetError):
        setup.install(
            Setup(needs=(), commands=("pip install --no-index no-such-package-of-octobert",)),
            lines.append,
        )
    refused = Setup(needs=(), commands=("pip install x",), problem="this environment has no pip")
    with golden.raises(TargetError):
        setup.install(refused, lines.append)


def test_yes_without_setup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(json.dumps(PLAIN))
    result = cli.octobert("run", str(tmp_path / "recipe.yaml"), "--yes")
    assert result.returncode == 2
    assert (
        "--yes: --yes agrees to the installation of packages; give it with --setup."
        in result.stderr
    )


def test_drivers_are_found_by_files_libraries_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed")

    def detected(**places: Any) -> str | None:
        return setup.Driver(title="", looks_for="", install="", **places).detect()

    assert detected(files=["/no/such/file", version]) == "580.105.08"
    assert detected(files=["/no/such/file", tmp_path]) == str(tmp_path)
    assert str(detected(libraries=["no_such_library"], packages=["numpy"])).startswith("numpy ")
    assert detected(libraries=["no_such_library"], packages=["no-such-package"]) is None
    monkeypatch.setenv("RYZEN_AI_INSTALLATION_PATH", "/opt/ryzen")
    assert setup.DRIVERS["ryzen-ai"].detect() == "/opt/ryzen"
    named = {
        name
        for _, (capabilities, _) in octobert.list_targets().items()
        for name in capabilities.needs.drivers
    }
    assert named <= set(setup.DRIVERS)
