"""Files: a write is whole or leaves no trace, and a link has the content of its source."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from octobert.core import files
from octobert.core.errors import StorageError


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with files.atomic_write(path) as partial:
        partial.write_text("old")
    with pytest.raises(TypeError), files.atomic_write(path) as partial:
        partial.write_text("new") and partial.write_text(1)  # type: ignore[operator]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_stands_where_a_file_is_written_is_not_written_into(tmp_path: Path) -> None:
    for stand in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "other")):
        stand(tmp_path / "partial-a.txt")
        with files.atomic_write(tmp_path / "a.txt") as partial:
            partial.write_text("new")
        assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_errors_of_the_disk_say_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"the disk is full .*; free some space"),
        files.storage_errors(tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=r"^$"), files.storage_errors(tmp_path):
        raise OSError


def test_a_link_falls_back_to_a_copy(tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "source"
    source.write_text("content")
    files.link_or_copy(source, tmp_path / "folder" / "link")
    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    files.link_or_copy(source, tmp_path / "folder" / "copy")
    assert files.digests_of(tmp_path / "folder") == {
        name: files.file_digest(source) for name in ("copy", "link")
    }


def test_a_file_of_unknown_origin_is_a_regular_one_of_bounded_size(tmp_path: Path) -> None:
    pipe, link, large = tmp_path / "pipe", tmp_path / "link", tmp_path / "large"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    large.write_bytes(b"12345")
    for path in (pipe, link, Path("/dev/zero"), Path("/dev/urandom"), Path("/dev/tty")):
        for read in (files.content_of, files.file_digest):
            with pytest.raises(OSError, match=r"not a regular file|No such device"):
                read(path)
    with pytest.raises(IsADirectoryError):
        files.content_of(tmp_path)
    with pytest.raises(OSError, match="more than 4 bytes"):
        files.content_of(large, 4)
    assert files.content_of(large, 5) == b"12345"


def test_a_sealed_file_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    assert files.read_sealed(path) is None
    files.write_sealed(path, b"content\n")
    assert files.read_sealed(path) == b"content\n"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert files.read_sealed(path) is None
        path.write_bytes(whole[:position])
        assert files.read_sealed(path) is None
