"""What an enemy puts into a folder in the hope that it is copied, or waited for: links to files of its reader, and pipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.numpy import load_file, save_file

# In every file that a link leads to.
SECRET = "BEGIN-OPENSSH-PRIVATE-KEY-c2VjcmV0"
# Seconds, for what takes two on a quiet machine.
_LIMIT = 300


def with_secret(path: Path) -> None:
    """Add the secret to a file, so that it is still one of its kind."""
    if path.is_dir():
        (path / "notes.txt").write_text(SECRET)
        for file in filter(Path.is_file, path.iterdir()):
            with_secret(file)
    elif path.suffix == ".safetensors":
        save_file(load_file(path), path, {"format": "pt", "notes": SECRET})
    elif path.suffix == ".json":
        content = json.loads(path.read_text())
        (content if isinstance(content, dict) else content[0])["notes"] = SECRET
        path.write_text(json.dumps(content))
    else:
        path.write_text(path.read_text() + f"\n{SECRET}\n")


def linked_outside(place: Path, elsewhere: Path) -> None:
    """Put a link in the place of a file or a folder, which now lies elsewhere and has the secret; or make such a file."""
    target = elsewhere / place.name
    elsewhere.mkdir(exist_ok=True)
    if os.path.lexists(place):
        shutil.move(place, target)
        with_secret(target)
    else:
        target.write_text(SECRET)
    place.symlink_to(target)


def with_the_secret(*folders: Path) -> list[Path]:
    """The files below folders that have the secret in them. Links are not followed."""
    return [
        file
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.is_symlink() and SECRET.encode() in file.read_bytes()
    ]


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise where something waits, as for the other end of a pipe."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer in {_LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
