"""The ONNX file of a package: as the Q/DQ writer made it, or rewritten for its target.

What edits graphs is imported where that is done: whoever predicts needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from octobert.core.files import link_or_copy
from octobert.core.session import ExportOptions

if TYPE_CHECKING:
    import onnx_ir as ir


def model_file(package: Path) -> Path:
    """The Q/DQ graph of a package."""
    return package / "onnx" / "model_quantized.onnx"


def put(quantized: Path, folder: Path, options: ExportOptions) -> Path:
    """The Q/DQ graph, its float parts in their type; where it is now."""
    if options.float_parts != "float32":
        return put_rewritten(quantized, folder, options)
    for file in quantized.parent.glob(f"{quantized.name}*"):
        link_or_copy(file, model_file(folder).with_name(file.name))
    return model_file(folder)


def put_rewritten(quantized: Path, folder: Path, options: ExportOptions, *passes: Callable[[ir.Model], object]) -> Path:
    """The Q/DQ graph after passes that edit it, then its float parts in their type; where it is now."""
    import onnx_ir as ir

    from octobert.graph import operators
    from octobert.graph.passes import float16

    model = ir.load(quantized)
    for one in passes:
        one(model)
    float16.halve_(model, options.float_parts)
    path = model_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    operators.save(model, path)
    return path


def put_fixed(quantized: Path, folder: Path, options: ExportOptions, *passes: Callable[[ir.Model], object]) -> Path:
    """The Q/DQ graph made for one shape, then after other passes."""
    from octobert.graph.passes import static_shapes

    shape = options.shape
    assert shape is not None
    fixed = partial(static_shapes.fix_shapes_, batch=shape.batch, sequence=shape.sequence)
    return put_rewritten(quantized, folder, options, fixed, *passes)


def inputs_of(path: Path) -> list[str]:
    """Names of a file's inputs."""
    import onnx_ir as ir

    return [str(value.name) for value in ir.load(path).graph.inputs]
