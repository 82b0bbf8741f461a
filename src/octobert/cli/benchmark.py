"""`octobert benchmark PACKAGE…`: time packages and their float models in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = ("octobert benchmark out/ort-cpu out/openvino-cpu --batch 1 --sequence 128",)


def command(
    directories: Annotated[list[Path], typer.Argument(help="Packages, OUT/TARGET.")],
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch sizes. Default: 1 and 8.")] = None,
    sequence: Annotated[
        list[int] | None, typer.Option(min=1, help="Sequence lengths in tokens. Default: 128, or the model's limit.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="File of rows that are also timed, at their own lengths.")] = None,
    repeats: Annotated[int, typer.Option(min=3, help="Rounds of each shape.")] = 30,
    threads: Annotated[int, typer.Option(min=0, help="Threads of one inference. 0: the runtime's default.")] = 0,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Time packages and their float models in turn, each in a process of its own."""
    import octobert

    with _show.progress() as progress:
        result = octobert.benchmark(
            directories,
            batch=batch or (1, 8),
            sequence=sequence or (),
            data=data,
            repeats=repeats,
            threads=threads,
            progress=progress,
        )
    if as_json:
        _show.document(result.model_dump(mode="json"))
        return
    from octobert.report import terminal, times

    lines = times.timings(result.latencies, result.footprints, result.speedups)
    sentences = [sentence for line in lines for sentence in times.speed(line)]
    table = terminal.latency_table(lines, times.shapes(result.latencies))
    _show.render(table, *terminal.notes(sentences, times.noise(result.latencies, result.load)))
