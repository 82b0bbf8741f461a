"""`octobert fuse MODEL.onnx --out FUSED.onnx`: write ONNX Runtime's fused operators into a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octobert.api import packages
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert fuse out/ort-cpu/onnx/model.onnx --out fused.onnx",
    "octobert fuse quantized.onnx --for ort-cuda --out fused.onnx",
)


@_options.filled(options=_options.from_function(packages.fuse))
def command(options: _options.Arguments) -> Iterator[Any]:
    """Write ONNX Runtime's fused operators into a graph, count them, and verify that the outputs stay the same."""
    fused = packages.fuse(**options)
    yield {"counts": fused.counts, "largest_difference": fused.parity.largest_difference}
    for name, count in fused.counts.items():
        _show.line(f"{count:>4} {name}")
    _show.line(f"     largest difference of an output: {fused.parity.largest_difference:.1e}")
