"""Packages that were chosen by their figures: the warning on other machines, and one folder for several kinds of machines."""

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
        monkeypatch.setattr(environment, "current", lambda: here)
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
        (tmp_path / name / "report.json").touch()
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
    assert sentence.endswith(f"octobert auto {best.parent} --again")
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


def test_a_merged_folder_opens_the_package_of_this_kind_of_machine(
    chosen, on, tmp_path: Path
) -> None:
    old, new = chosen("old", "ort-cpu", AVX2), chosen("new", "openvino-cpu", VNNI)
    (new / "best" / "tuned.json").write_text("{}")
    index = octobert.merge([old, new], tmp_path / "merged")
    assert [each.folder for each in index.packages] == ["avx2-ort-cpu", "avx512-vnni-openvino-cpu"]
    assert (tmp_path / "merged" / "avx512-vnni-openvino-cpu" / "tuned.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged", "new", "old"]
    assert len(octobert.packages(tmp_path / "merged")) == 2
    for features, target in ((AVX2, "ort-cpu"), (VNNI, "openvino-cpu")):
        on(features)
        assert noted(tmp_path / "merged") == []
        model = octobert.load(tmp_path / "merged", verify=True)
        assert (model.target, len(model([PAIR]))) == (target, 1)
        assert octobert.manifest(tmp_path / "merged").target == target
        model.close()
    # No package for AMX: the nearest has all of its features here.
    assert "this CPU also has avx512_bf16" in noted_on(on, AMX, tmp_path / "merged")
    # One more machine, and a newer choice for one that is there.
    third = chosen("third", "openvino-cpu", AVX2)
    index = octobert.merge(
        [tmp_path / "merged", third, chosen("amx", "ort-cpu", AMX)], tmp_path / "more"
    )
    assert [each.folder for each in index.packages] == [
        "avx512-vnni-openvino-cpu",
        "avx2-openvino-cpu",
        "amx-bf16-ort-cpu",
    ]


def test_the_nearest_package_is_one_whose_runtime_is_installed(
    golden, chosen, on, tmp_path: Path, monkeypatch
) -> None:
    octobert.merge(
        [chosen("a", "ort-cpu", AVX2), chosen("b", "openvino-cpu", VNNI)], tmp_path / "merged"
    )
    missing = (
        machines.targets.load("openvino-cpu")
        .probe()
        .model_copy(update={"available": False, "install": "pip install it"})
    )
    monkeypatch.setattr(machines.targets.load("openvino-cpu"), "probe", lambda: missing)
    on(AMX)
    assert octobert.manifest(tmp_path / "merged").target == "ort-cpu"
    monkeypatch.setattr(machines.targets.load("ort-cpu"), "probe", lambda: missing)
    with golden.raises(octobert.TargetError):
        octobert.manifest(tmp_path / "merged")
    # The package of this kind is never replaced by another one.
    on(AVX2)
    assert octobert.manifest(tmp_path / "merged").target == "ort-cpu"


def test_packages_that_cannot_be_merged(chosen, finished, tmp_path: Path) -> None:
    one, out = chosen("one", "ort-cpu", AVX2), tmp_path / "merged"
    other_task = {
        **json.loads((one / "best" / PACKAGE_FILE).read_text())["task"],
        "labels": ["a", "b", "c"],
    }
    for wrong, kind, message in (
        ([one], octobert.RecipeError, r"packages for two kinds of machines \(got avx2\)"),
        (
            [one, chosen("two", "openvino-cpu", AVX2)],
            octobert.RecipeError,
            "run octobert auto on another kind of machine",
        ),
        (
            [one, finished[1] / "ort-cpu"],
            octobert.ModelError,
            "the package was not chosen on a machine",
        ),
        (
            [one, finished[1]],
            octobert.ModelError,
            r"no model was chosen in this folder \(expected best/octobert.json\)",
        ),
        (
            [one, chosen("x", "ort-cpu", AMX, model_digest="f" * 64)],
            octobert.ModelError,
            "made from another model .*got ffff",
        ),
        (
            [one, chosen("y", "ort-cpu", AMX, task=other_task)],
            octobert.ModelError,
            "for another task",
        ),
    ):
        with pytest.raises(kind, match=message):
            octobert.merge(wrong, out)
    two = chosen("three", "ort-cpu", VNNI)
    with pytest.raises(octobert.StorageError, match="the folder exists already"):
        octobert.merge([one, two], tmp_path)
    with (two / "best" / "onnx" / "model_quantized.onnx").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(octobert.ModelError, match=r"model_quantized\.onnx has another content"):
        octobert.merge([one, two], out)
    assert not out.exists()
    assert not out.with_name("partial-merged").exists()


UNFIT = {
    "outside": (
        lambda index: index["packages"][0].update(folder="../a"),
        "not the name of a folder",
    ),
    "itself": (lambda index: index["packages"][0].update(folder="."), "not the name of a folder"),
    "twice": (
        lambda index: index["packages"][1].update(folder=index["packages"][0]["folder"]),
        "listed twice",
    ),
    "nothing": (
        lambda index: index.update(packages=[]),
        "packages: Tuple should have at least 1 item",
    ),
    "another package": (
        lambda index: index["packages"][0].update(manifest="0" * 64),
        "octobert.json has another content",
    ),
    "missing": (
        lambda index: index["packages"][0].update(folder="gone"),
        "gone/octobert.json is missing",
    ),
    "large": (
        lambda index: index.update(octobert="x" * (1 << 20)),
        "machines.json cannot be read .*more than 1,048,576 bytes",
    ),
}


def test_an_index_of_unknown_origin_is_checked(chosen, on, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    octobert.merge([chosen("a", "ort-cpu", AVX2), chosen("b", "ort-cpu", VNNI)], merged)
    on(AVX2)
    index = (merged / "machines.json").read_text()
    for edit, message in UNFIT.values():
        content = json.loads(index)
        edit(content)
        (merged / "machines.json").write_text(json.dumps(content))
        with pytest.raises(octobert.ModelError, match=message):
            octobert.load(merged)
    # A link would lead outside of the folder.
    (merged / "machines.json").write_text(index)
    (merged / "avx2-ort-cpu").rename(tmp_path / "elsewhere")
    (merged / "avx2-ort-cpu").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(octobert.ModelError, match=r"octobert\.json is missing"):
        octobert.load(merged)
