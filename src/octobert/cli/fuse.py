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
    """Write ONNX Runtime's fused operators, say how many there are and what was left, and prove that nothing changes."""
    import onnx_ir as ir

    from octobert.core import files
    from octobert.core.errors import ModelError
    from octobert.graph import operators, parity
    from octobert.graph.passes import fusion

    if not model.is_file():
        raise ModelError("there is no such file", where=str(model), fix="check the path")
    graph = ir.load(model)
    if graph.metadata_props.get("producer") != "octobert":
        fix = "quantize the model first (--method float leaves it float), then take onnx/model.onnx or model_quantized.onnx"
        raise ModelError("only graphs in octobert's own form are fused", where=str(model), fix=fix)
    fused = graph.clone()
    found = fusion.fuse_(fused)
    proof = fusion.check(fused, graph, parity.sample_batches(graph))
    out.parent.mkdir(parents=True, exist_ok=True)
    with files.storage_errors(out), files.atomic_write(out) as partial:
        operators.save(fused, partial)
    if as_json:
        _show.document({**found.model_dump(mode="json"), "largest_difference": proof.largest_difference})
        return
    for name, count in found.counts.items():
        typer.echo(f"{count:>4} {name}")
    for one in found.left:
        typer.echo(f"     left: {one}")
    typer.echo(f"     largest difference of an output: {proof.largest_difference:.1e}")
