"""The ONNX file of a package: the Q/DQ graph unchanged, or rewritten for a target.

Modules that edit graphs are imported inside functions, because prediction does not need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octobert.core.files import link_or_copy
from octobert.core.session import ExportOptions

if TYPE_CHECKING:
    from octobert.graph.passes import Pass


def model_file(package: Path) -> Path:
    """Return the path of the Q/DQ graph in a package.

    Example:
        >>> model_file(Path("out/ort-cpu")).as_posix()
        'out/ort-cpu/onnx/model_quantized.onnx'
    """
    return package / "onnx" / "model_quantized.onnx"


def write(
    quantized: Path, folder: Path, options: ExportOptions, passes: Sequence[Pass] | None = None
) -> Path:
    """Write the Q/DQ graph into a package, rewritten by the passes that `options` ask for.

    Args:
        quantized: an ONNX file with Q/DQ.
        folder: of the package.
        passes: before the float operators and the opset are converted; by default products may become integer operators.

    Returns:
        The path of the written file.
    """
    import onnx_ir as ir

    from octobert.graph import operators
    from octobert.graph.passes import cpu, float16, opset

    path = model_file(folder)
    before = (cpu.INTEGERS,) if passes is None else passes
    calls = [
        (graph_pass.apply_, settings)
        for graph_pass in (*before, float16.FLOAT_PARTS, opset.OPSET)
        if (settings := graph_pass.options(options)) is not None
    ]
    if not calls:
        for file in quantized.parent.glob(f"{quantized.name}*"):
            link_or_copy(file, path.with_name(file.name))
        return path
    model = ir.load(quantized)
    for apply_, settings in calls:
        apply_(model, **settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    operators.save(model, path)
    return path


def inputs_of(path: Path) -> list[str]:
    """Return the names of a model's inputs."""
    import onnx_ir as ir

    return [str(value.name) for value in ir.load(path).graph.inputs]
