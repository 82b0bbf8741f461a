"""`octobert embed MODEL FILE.parquet OUT.parquet`: the rows of Parquet files with their embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octobert.api import corpus
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert embed out/ort-cpu corpus.parquet vectors.parquet",
    "octobert embed out/ort-cpu corpus/ vectors.parquet --column passage --keep id --prompt passage",
    "octobert embed out/ort-cpu corpus/ vectors.parquet --vectors int8",
)


@_options.filled(
    options=_options.from_function(corpus.embed, without=("data", "out"), metavar="package")
)
def command(options: _options.Arguments, data: list[Path], out: Path) -> Iterator[Any]:
    """Write the rows of Parquet files with an embedding for each. The same command goes on where a killed one has stopped.

    Args:
        data: Parquet files, and folders of them.
        out: A Parquet file: the rows, in order, with the column embedding, lists of numbers of one length.
    """
    with _show.progress_of_run() as progress:
        rows = corpus.embed(**options, data=data, out=out, progress=progress)
    yield {"out": out, "rows": rows}
    _show.line(f"{out}: {rows:,} rows")
