"""`octobert fuse MODEL.onnx --out FUSED.onnx`: write ONNX Runtime's fused operators into a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = ("octobert fuse out/ort-cpu/onnx/model.onnx --out fused.onnx",)


def command(
    model: Annotated[
        Path, typer.Argument(help="An ONNX file of an encoder, float or with Q/DQ pairs: of a package or of any tool.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Write ONNX Runtime's fused operators into a graph, count them, and verify that the outputs stay the same."""
    import octobert

    fused = octobert.fuse(model, out)
    if as_json:
        _show.document({"counts": fused.counts, "largest_difference": fused.parity.largest_difference})
        return
    for name, count in fused.counts.items():
        _show.line(f"{count:>4} {name}")
    _show.line(f"     largest difference of an output: {fused.parity.largest_difference:.1e}")
