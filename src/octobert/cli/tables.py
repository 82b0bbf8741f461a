"""`octobert tables PACKAGE`: the ranges of a package as calibration tables for other runtimes; or the contents of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = ("octobert tables out/ort-cpu --out calibration",)


def command(
    source: Annotated[Path, typer.Argument(help="A package, OUT/TARGET; or a calibration table, to print it.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the tables. Default: calibration in the package.")] = None,
    tensorrt: Annotated[
        int | None, typer.Option(help="Also write the cache of this TensorRT version: 101401 is 10.14.1.")
    ] = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Write calibration tables for ONNX Runtime's TensorRT and MIGraphX providers, or print one."""
    import octobert

    if source.is_dir():
        files = octobert.calibration_tables(source, out, tensorrt=tensorrt)
        if as_json:
            _show.document([str(path) for path in files])
            return
        for path in files:
            _show.line(str(path))
        return
    intervals = octobert.read_calibration_table(source)
    if as_json:
        _show.document({name: interval.model_dump() for name, interval in intervals.items()})
        return
    for name, interval in intervals.items():
        _show.line(f"{interval.low:>14.6g} {interval.high:>14.6g}   {name}")
