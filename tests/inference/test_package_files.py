"""The files of a package: what is said of changed, missing and added ones, and of a manifest that is damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import octobert
from octobert.api.clients import CLIENTS
from octobert.core.errors import ModelError
from octobert.core.results import PACKAGE_FILE
from tests.support.cli import octobert as octobert_cli


@pytest.fixture
def package(finished, tmp_path: Path) -> Path:
    """A package that may be changed, with a file of the user."""
    folder = shutil.copytree(finished[1] / "openvino-cpu", tmp_path / "package")
    (folder / "notes.txt").write_text("mine")
    return folder


def model_files(package: Path) -> list[str]:
    """The files that OpenVINO opens."""
    return [name for name in octobert.manifest(package).files if name.endswith((".xml", ".bin"))]


def test_a_package_as_it_was_packaged(package: Path) -> None:
    verified = octobert.verify(package)
    assert verified.files == octobert.manifest(package).files
    assert verified.added == ("notes.txt",)
    assert len(octobert.load(package, verify=True)([("the of", "and a")])) == 1
    done = octobert_cli("verify", str(package), "--no-run")
    assert (done.returncode, done.stdout) == (
        0,
        f"{package}: {len(verified.files)} files as packaged; added since: notes.txt\n",
    )
    (shown,) = json.loads(octobert_cli("verify", str(package), "--json").stdout)
    assert shown["files"] == verified.files
    assert shown["batches"]["state"] == "bounded"


# Everything that hands files of a package on, or opens them.
READERS: dict[str, Callable[[Path], object]] = {
    "verify": octobert.verify,
    "load": octobert.load,
    "load and verify": lambda package: octobert.load(package, verify=True),
    "push": lambda package: octobert.push(package, "me/model", dry_run=True),
    **{
        f"export for {client}": lambda package, client=client: octobert.export(package, client)
        for client in CLIENTS
    },
}


@pytest.mark.parametrize("reader", READERS)
def test_links_are_not_followed(package: Path, tmp_path: Path, reader: str) -> None:
    """A link of a package of unknown origin may lead to a private key, which would be served, or published."""
    key, before = tmp_path / "key", {path.name for path in tmp_path.iterdir()} | {"key"}
    weights = next(name for name in model_files(package) if name.endswith(".bin"))
    for name in ("tokenizer.json", weights, "onnx", PACKAGE_FILE):
        place = package / name
        place.rename(key)
        place.symlink_to(key)
        with pytest.raises(ModelError, match="is a link") as error:
            READERS[reader](package)
        assert name in error.value.got
        place.unlink()
        key.rename(place)
    assert {path.name for path in tmp_path.iterdir()} <= before


@pytest.mark.parametrize("reader", [name for name in READERS if name != "load"])
def test_files_that_were_changed_are_not_handed_on(package: Path, reader: str) -> None:
    with (package / "tokenizer.json").open("a") as stream:
        stream.write(" ")
    with pytest.raises(ModelError, match=r"tokenizer\.json has another content"):
        READERS[reader](package)


def test_links_of_the_hubs_cache_lead_to_its_own_files(package: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / ("1" * 40)
    blobs.mkdir(parents=True)
    for number, name in enumerate([*octobert.manifest(package).files, PACKAGE_FILE]):
        (package / name).rename(blobs / f"{number}")
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blobs / f"{number}", (snapshot / name).parent))
    assert octobert.verify(snapshot).added == ()
    assert len(octobert.load(snapshot)([("the of", "and a")])) == 1


def test_weights_that_no_list_names_are_not_opened(finished, tmp_path: Path) -> None:
    """What a runtime reads is what was packaged, also where an ONNX file names another file for its weights."""
    package = shutil.copytree(finished[1] / "ort-cpu", tmp_path / "package")
    path = package / "onnx" / "model_quantized.onnx"
    model = onnx.load(path)
    onnx.save_model(model, path, save_as_external_data=True, location="more.bin", size_threshold=0)
    stated = json.loads((package / PACKAGE_FILE).read_text())
    name = "onnx/model_quantized.onnx"
    stated["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    stated["sizes"][name] = path.stat().st_size
    (package / PACKAGE_FILE).write_text(json.dumps(stated))
    uses = (
        octobert.verify,
        lambda folder: octobert.load(folder, verify=True),
        lambda folder: octobert.push(folder, "me/x", dry_run=True),
        lambda folder: octobert.export(folder, "triton", tmp_path / "new"),
    )
    for use in uses:
        with pytest.raises(octobert.ModelError, match=r"more\.bin is not listed"):
            use(package)


@pytest.mark.parametrize("name", ["*", "a?", "[ab]", "onnx/*.onnx", "a\nb", "a\x1b[2J"])
def test_a_name_that_means_other_files(package: Path, name: str) -> None:
    manifest = json.loads((package / PACKAGE_FILE).read_text())
    manifest["files"][name] = "0" * 64
    (package / PACKAGE_FILE).write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"octobert\.json cannot be read"):
        octobert.verify(package)


def test_every_changed_and_missing_file_is_named(package: Path) -> None:
    names = list(octobert.manifest(package).files)
    for name in names[1:]:
        path = package / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    (package / names[0]).unlink()
    for check in (octobert.verify, lambda folder: octobert.load(folder, verify=True)):
        with pytest.raises(ModelError, match="the package is not as octobert wrote it") as error:
            check(package)
        assert error.value.got == ", ".join(
            [f"{names[0]} is missing", *(f"{name} has another content" for name in names[1:])]
        )
    assert octobert_cli("verify", str(package)).returncode == ModelError.exit_code


@pytest.mark.parametrize("change", ["cut", "missing"])
def test_a_model_file_that_was_cut_is_named_without_reading_it(package: Path, change: str) -> None:
    assert len(model_files(package)) == 2
    for name in model_files(package):
        path = package / name
        content = path.read_bytes()
        path.unlink()
        if change == "cut":
            path.write_bytes(content[: len(content) // 2])
        said = (
            f"{name} has {len(content) // 2:,} bytes, not {len(content):,}"
            if change == "cut"
            else f"{name} is missing"
        )
        with pytest.raises(ModelError) as error:
            octobert.load(package)
        assert error.value.got == said
        path.write_bytes(content)
    # What prediction does not open may be changed or removed.
    (package / "onnx" / "model.onnx").unlink()
    octobert.load(package).close()


def test_a_model_without_the_outputs_of_its_task_is_named(golden, finished, tmp_path: Path) -> None:
    package = shutil.copytree(finished[1] / "ort-cpu", tmp_path / "package")
    path = package / "onnx" / "model_quantized.onnx"
    path.write_bytes(path.read_bytes().replace(b"logits", b"LOGITS"))
    with golden.raises(ModelError) as error:
        octobert.load(package)
    assert error.value.where == str(path)


def edited(package: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    path = package / PACKAGE_FILE
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


UNFIT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no such target": (lambda m: m.update(target="ort-gpu"), 'there is no target "ort-gpu"'),
    "a target of octobert 0.1": (lambda m: m.update(target="torch-cpu"), "it is gone; use ort-cpu"),
    "a target that is no text": (
        lambda m: m.update(target=None),
        "target: Input should be a valid string, not None",
    ),
    "no such task": (lambda m: m["task"].update(name="x"), "the task x cannot be made"),
    "an option of another task": (
        lambda m: m["task"].update(options={"stride": 1}),
        "the task text-classification cannot",
    ),
    "no files": (lambda m: m.pop("files"), "files: Field required"),
    "no sizes, as an earlier version wrote it": (
        lambda m: m.pop("sizes"),
        "sizes: Field required); copy the package again, or run the recipe again",
    ),
    "a key of a later version": (
        lambda m: m.update(later=1),
        "later: Extra inputs are not permitted",
    ),
    **{
        name: (
            lambda m, name=name: m["files"].update({name: "0" * 64}),
            "the path leaves the package",
        )
        for name in ("../outside", "/etc/passwd", "a/../../b", "C:\\x", "..", "")
    },
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_damaged_manifest_is_named(package: Path, name: str) -> None:
    edit, said = UNFIT[name]
    edited(package, edit)
    with pytest.raises(octobert.OctobertError) as error:
        octobert.load(package)
    assert said in str(error.value)
    assert str(package / PACKAGE_FILE) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[" * 100_000, b"\xff", b"{}"])
def test_a_manifest_that_is_no_manifest(package: Path, content: bytes) -> None:
    (package / PACKAGE_FILE).write_bytes(content)
    with pytest.raises(ModelError, match=f"{PACKAGE_FILE} cannot be read") as error:
        octobert.manifest(package)
    assert len(str(error.value)) < 500


def test_answers_that_are_not_numbers_are_an_error(finished, tmp_path: Path) -> None:
    """JSON has no NaN, and no program expects one."""
    package = shutil.copytree(finished[1] / "ort-cpu", tmp_path / "package")
    name = "onnx/model_quantized.onnx"
    model = onnx.load(package / name)
    last = next(t for t in model.graph.initializer if t.dims == [2] and t.data_type == 1)
    last.CopyFrom(onnx.numpy_helper.from_array(np.full(2, np.nan, np.float32), last.name))
    onnx.save_model(model, package / name)
    stated = json.loads((package / PACKAGE_FILE).read_text())
    stated["files"][name] = hashlib.sha256((package / name).read_bytes()).hexdigest()
    stated["sizes"][name] = (package / name).stat().st_size
    (package / PACKAGE_FILE).write_text(json.dumps(stated))
    with octobert.load(package) as predictor:
        for ask in (predictor, predictor.stream):
            with pytest.raises(ModelError, match=r"logits: .*numbers that are not finite"):
                list(ask([("a", "b")]))
    done = octobert_cli("predict", str(package), "--pair", "a", "b", "--json")
    assert done.returncode == ModelError.exit_code
    assert "not finite" in done.stdout
