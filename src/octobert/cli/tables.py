"""`octobert tables`: the ranges of a finished model as calibration tables for other runtimes; or what such a table holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "tables"


def command(
    source: Annotated[Path, typer.Argument(help="A packaged directory, OUT/<target>; or a calibration table, to print it.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the tables; default: `calibration` in the directory.")] = None,
    tensorrt: Annotated[
        int | None, typer.Option(help="Also write TensorRT's own cache, for this version of it: 101401 is 10.14.1.")
    ] = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Write calibration tables that ONNX Runtime's TensorRT and MIGraphX providers read, or print one."""
    from octobert.core.errors import ModelError
    from octobert.inference.predictor import read_manifest
    from octobert.quantization import tables

    if source.is_dir():
        manifest = read_manifest(source)
        if manifest.recipe["prepare"]:
            # A prepared graph computes the same by other values; the package holds the float graph as it was captured.
            raise ModelError(
                "the ranges are those of a prepared graph, not of the float model in the package",
                where=str(source),
                got=f"prepare: {', '.join(one['name'] for one in manifest.recipe['prepare'])}",
                fix="quantize with prepare: [] for tables",
            )
        written = tables.write(manifest.ranges.intervals, out or source / "calibration", tensorrt=tensorrt)
        if as_json:
            _show.document([str(path) for path in written])
            return
        for path in written:
            typer.echo(str(path))
        return
    found = tables.read(source)
    if as_json:
        _show.document({name: interval.model_dump() for name, interval in found.items()})
        return
    for name, interval in found.items():
        typer.echo(f"{interval.low:>14.6g} {interval.high:>14.6g}   {name}")
