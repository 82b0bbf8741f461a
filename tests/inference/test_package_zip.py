"""A package as one zip file: equal bytes from equal files, and compared with its own manifest."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

import octobert
from octobert.core import archives
from octobert.core.errors import ModelError
from octobert.core.files import file_digest
from octobert.inference import package_files


@pytest.fixture(scope="module")
def package(finished) -> Path:
    return finished[1] / "ort-cpu"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def archive(package: Path, tmp_path: Path) -> Path:
    names = [*package_files.read_manifest(package).files, "octobert.json"]
    package_files.write_zip(package, names, tmp_path / "ort-cpu.zip", "ort-cpu")
    return tmp_path / "ort-cpu.zip"


def test_equal_packages_give_equal_bytes_and_the_unpacked_one_opens(
    package: Path, archive: Path, tmp_path: Path
) -> None:
    shutil.copytree(package, tmp_path / "copy")
    names = [*package_files.read_manifest(package).files, "octobert.json"]
    for name in names:
        os.utime(tmp_path / "copy" / name, (0, 10**9))
    package_files.write_zip(tmp_path / "copy", reversed(names), tmp_path / "other.zip", "ort-cpu")
    assert file_digest(archive) == file_digest(tmp_path / "other.zip")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    assert (
        octobert.verify(tmp_path / "unpacked" / "ort-cpu").files == octobert.verify(archive).files
    )
    assert octobert.verify(archive).added == ()


def test_what_tune_wrote_into_the_unpacked_package_stays(
    archive: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("ort-cpu/tuned.json", "{}")
    folder = archives.unpacked(archive)
    for name in ("tuned.json", "config.json"):
        (folder / name).write_text('{"other": 1}')
    again = archives.unpacked(archive)
    assert (again / "config.json").read_text() != '{"other": 1}', "damage is mended"
    (again / "tuned.json").write_text('{"other": 1}')
    assert (archives.unpacked(archive) / "tuned.json").read_text() == '{"other": 1}'


def changed(archive: Path, name: str, content: bytes | None) -> Path:
    """The zip file with another content of a file, or without it."""
    path = archive.with_name("changed.zip")
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            if info.filename != name:
                new.writestr(info, old.read(info))
        if content is not None:
            new.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ort-cpu/config.json", b"{}"),
        ("ort-cpu/tokenizer.json", None),
        ("ort-cpu/octobert.json", None),
        ("ort-cpu/octobert.json", b"[]"),
        ("other/octobert.json", b"{}"),
    ],
)
def test_a_zip_file_that_is_not_as_it_was_written(
    golden, archive: Path, name: str, content: bytes | None
) -> None:
    with golden.raises(ModelError):
        octobert.verify(changed(archive, name, content))


def test_a_damaged_zip_file_is_one_sentence_and_a_file_beside_the_package_is_listed(
    golden,
    archive: Path,
) -> None:
    assert octobert.verify(changed(archive, "ort-cpu/beside.txt", b"x")).added == ("beside.txt",)
    with pytest.raises(ModelError, match="not a zip file of a package"):
        octobert.verify(changed(archive, "beside.txt", b"x"))
    with pytest.raises(ModelError, match="a file of the zip file lies outside of its folder"):
        octobert.verify(changed(archive, "../evil.txt", b"x"))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with golden.raises(ModelError):
        octobert.verify(archive)


def test_a_zip_file_is_opened_by_its_name(golden, archive: Path, package: Path) -> None:
    text = ("the one", "of it")
    assert octobert.load(archive)([text])[0]["label"] == octobert.load(package)([text])[0]["label"]
    with golden.raises(ModelError):
        octobert.manifest(archive)
    empty = archive.with_name("empty.zip")
    with zipfile.ZipFile(empty, "w") as other:
        other.writestr("x/readme.txt", "no package")
    with golden.raises(ModelError):
        octobert.load(empty)
