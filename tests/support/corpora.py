"""Corpora in Parquet files, and processes that embed them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.checkpoints import WORDS
from tests.support.cli import PROGRAM

# Of a part.
ROWS = 16


def passages(count: int, start: int = 0) -> list[str]:
    """Texts of one to twelve words."""
    return [
        " ".join(WORDS[(i * 7 + k * 3) % len(WORDS)] for k in range(1 + i % 12))
        for i in range(start, start + count)
    ]


def write_corpus(path: Path, texts: list[str | None], start: int = 0, group: int = 40) -> Path:
    """A file with the columns `id`, `text` and `tags`, in small row groups."""
    ids = range(start, start + len(texts))
    columns = {"id": ids, "text": pa.array(texts, pa.string()), "tags": [[i % 3] for i in ids]}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def embedding(*arguments: object) -> subprocess.Popen[str]:
    """A process of `octobert embed`."""
    command = [*PROGRAM, "embed", *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
