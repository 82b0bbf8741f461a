"""A corpus, and a run of `octobert embed` that was killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import octobert
from tests.support.corpora import ROWS, passages, write_corpus


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two files in a folder, 150 and 70 rows."""
    write_corpus(tmp_path / "corpus" / "a.parquet", passages(150))
    write_corpus(tmp_path / "corpus" / "b" / "a.parquet", passages(70, 150), 150)
    return tmp_path / "corpus"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "vectors.parquet"


@pytest.fixture
def begun(embedding_package, corpus, out) -> Path:
    """The folder of a run that was killed: its first parts."""
    octobert.embed(embedding_package, corpus, out, rows=ROWS)
    shutil.copy(out, out.with_name("undisturbed"))
    out.unlink()

    class Killed(BaseException):
        pass

    def kill(event: octobert.ProgressEvent) -> None:
        if event.done > 3 * ROWS:
            raise Killed

    with pytest.raises(Killed):
        octobert.embed(embedding_package, corpus, out, rows=ROWS, progress=kill)
    return out.with_name(f".{out.name}.octobert")
