"""The ONNX file of a package: the Q/DQ graph unchanged, or rewritten for a target.

Modules that edit graphs are imported inside functions, because prediction does not need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octobert.core.files import link_or_copy
from octobert.core.session import SHORTER_METADATA, ExportOptions, file_of

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
    forms, shape = {path: options}, options.shape
    if shape is not None:
        forms = {path: options.replaced(shape=shape.of(shape.sequence))}
        for length in shape.lengths[1:]:
            forms[file_of(path, length)] = options.replaced(shape=shape.of(length))
    models: dict[Path, ir.Model] = {}
    for file, form in forms.items():
        calls = [
            (graph_pass.apply_, settings)
            for graph_pass in (*before, float16.FLOAT_PARTS, opset.OPSET)
            if (settings := graph_pass.options(form)) is not None
        ]
        if not calls:
            for whole in quantized.parent.glob(f"{quantized.name}*"):
                link_or_copy(whole, path.with_name(whole.name))
            return path
        models[file] = ir.load(quantized)
        for apply_, settings in calls:
            apply_(models[file], **settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    if shape is not None and shape.lengths[1:]:
        models[path].metadata_props[SHORTER_METADATA] = ",".join(map(str, shape.lengths[1:]))
    operators.save_all(models)
    return path


def inputs_of(path: Path) -> list[str]:
    """Return the names of a model's inputs."""
    import onnx_ir as ir

    return [str(value.name) for value in ir.load(path).graph.inputs]
