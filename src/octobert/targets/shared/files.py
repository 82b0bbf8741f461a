"""The ONNX file of a package: the Q/DQ graph unchanged, or rewritten for a target.

Modules that edit graphs are imported inside functions, because prediction does not need them.
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
    """Return the path of the Q/DQ graph in a package.

    Example:
        >>> model_file(Path("out/ort-cpu")).as_posix()
        'out/ort-cpu/onnx/model_quantized.onnx'
    """
    return package / "onnx" / "model_quantized.onnx"


def write(quantized: Path, folder: Path, options: ExportOptions) -> Path:
    """Write the Q/DQ graph into a package, in the opset and with float operators of the type that `options` name.

    Args:
        quantized: an ONNX file with Q/DQ.
        folder: of the package.

    Returns:
        The path of the written file.
    """
    if options.qoperator:
        from octobert.graph.passes import qoperator

        return write_rewritten(quantized, folder, options, qoperator.rewrite_)
    if options.float_parts != "float32" or options.opset is not None:
        return write_rewritten(quantized, folder, options)
    for file in quantized.parent.glob(f"{quantized.name}*"):
        link_or_copy(file, model_file(folder).with_name(file.name))
    return model_file(folder)


def write_rewritten(quantized: Path, folder: Path, options: ExportOptions, *passes: Callable[[ir.Model], object]) -> Path:
    """Apply passes to the Q/DQ graph, convert its float operators, and write it into a package.

    Args:
        passes: functions that edit a model in place, in this order.

    Returns:
        The path of the written file.
    """
    import onnx_ir as ir

    from octobert.graph import operators
    from octobert.graph.passes import float16, opset

    model = ir.load(quantized)
    for edit in passes:
        edit(model)
    float16.convert_(model, options.float_parts)
    if options.opset is not None:
        opset.convert_checked_(model, options.opset)
    path = model_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    operators.save(model, path)
    return path


def write_static(quantized: Path, folder: Path, options: ExportOptions, *passes: Callable[[ir.Model], object]) -> Path:
    """Give the Q/DQ graph the static shape of `options`, apply other passes, and write it into a package.

    Returns:
        The path of the written file.
    """
    from octobert.graph.passes import static_shapes

    shape = options.shape
    assert shape is not None
    make_static = partial(static_shapes.make_static_, batch=shape.batch, sequence=shape.sequence)
    return write_rewritten(quantized, folder, options, make_static, *passes)


def inputs_of(path: Path) -> list[str]:
    """Return the names of a model's inputs."""
    import onnx_ir as ir

    return [str(value.name) for value in ir.load(path).graph.inputs]
