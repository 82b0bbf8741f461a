"""`octobert tables PACKAGE`: the ranges of a package as calibration tables for other runtimes; or the contents of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octobert.api import packages
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = ("octobert tables out/ort-cpu --out calibration",)


@_options.filled(options=_options.from_function(packages.calibration_tables, without=("package",)))
def command(
    source: Path,
    options: _options.Arguments,
) -> Iterator[Any]:
    """Write calibration tables for ONNX Runtime's TensorRT and MIGraphX providers, or print one.

    Args:
        source: A package, OUT/TARGET; or a calibration table, to print it.
    """
    if source.is_dir():
        files = packages.calibration_tables(source, **options)
        yield files
        for path in files:
            _show.line(str(path))
        return
    intervals = packages.read_calibration_table(source)
    yield intervals
    for name, interval in intervals.items():
        _show.line(f"{interval.low:>14.6g} {interval.high:>14.6g}   {name}")
