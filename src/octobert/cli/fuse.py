"""`octobert fuse MODEL.onnx --out FUSED.onnx`: ONNX Runtime's fused operators written into a graph, counted and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "fuse"


def command(
    model: Annotated[Path, typer.Argument(help="A graph that octobert wrote, float or quantized: onnx/*.onnx of a package.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Write ONNX Runtime's fused operators into a graph, count them, and verify that the outputs stay the same."""
    import onnx_ir as ir

    from octobert.core import files
    from octobert.core.errors import ModelError
    from octobert.graph import operators
    from octobert.graph.passes import fusion

    if not model.is_file():
        raise ModelError("there is no such file", where=str(model), fix="check the path")
    graph = ir.load(model)
    if graph.metadata_props.get("producer") != "octobert":
        fix = "quantize the model first (--method float leaves it float), then take onnx/model.onnx or model_quantized.onnx"
        raise ModelError("only graphs in octobert's own form are fused", where=str(model), fix=fix)
    fused = fusion.fuse(graph)
    out.parent.mkdir(parents=True, exist_ok=True)
    with files.storage_errors(out), files.atomic_write(out) as partial:
        operators.save(fused.model, partial)
    if as_json:
        _show.document({"counts": fused.counts, "largest_difference": fused.parity.largest_difference})
        return
    for name, count in fused.counts.items():
        typer.echo(f"{count:>4} {name}")
    typer.echo(f"     largest difference of an output: {fused.parity.largest_difference:.1e}")
