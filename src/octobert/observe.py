"""Stream batches through the float graph and keep constant-size statistics of chosen values.

In: a graph on disk, batches of token ids with their mask, and the measured layout of each value. Out: one
`TensorStatistics` a value. Padding never counts: every sequence axis of a value is restricted to the row's real tokens,
so padded token rows, and padded rows and columns of attention, are left out. Memory is one batch of activations, whatever
the number of samples; batches may differ in size and length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.errors import ModelError
from octobert.graph import shapes
from octobert.ranges import TensorStatistics
from octobert.session import Feeds

Layout = tuple[int | str, ...]


def observe(
    model_path: Path,
    batches: Iterable[Feeds],
    values: list[str],
    *,
    threads: int = 0,
    on_batch: Callable[[int], None] | None = None,
) -> dict[str, TensorStatistics]:
    """Statistics of `values` over `batches`.

    Args:
        model_path: a canonical float graph.
        batches: feeds with `attention_mask` [B, S] of ones and zeros.
        values: names of values in the graph.
        threads: for onnxruntime; 0 lets it choose.
        on_batch: called with the number of rows after each batch, for progress.

    Raises:
        ModelError: a value is not in the graph, or became NaN or infinite.
    """
    import onnxruntime as ort

    model = ir.load(model_path)
    found = {str(v.name): v for node in model.graph for v in node.outputs}
    missing = [name for name in values if name not in found]
    if missing:
        raise ModelError(f'the graph has no value "{missing[0]}"', where=str(model_path), fix="capture the model again")
    wanted = [found[name] for name in values]
    layouts = shapes.measure(model, wanted)
    statistics = {name: TensorStatistics.empty() for name in values}
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / "observed.onnx"
        shapes.save_with_outputs(model, wanted, path)
        del model, found, wanted
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_cpu_mem_arena = False
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for feeds in batches:
        mask = feeds["attention_mask"].astype(bool)
        for name, output in zip(values, session.run(values, feeds), strict=True):
            statistics[name] = statistics[name].update(real_values(output, layouts[name], mask))
            if not statistics[name].is_finite:
                raise ModelError(
                    f'the activation "{name}" became NaN or infinite', where=str(model_path), fix="check the model's weights"
                )
        if on_batch:
            on_batch(len(mask))
    return statistics


def real_values(output: np.ndarray, layout: Layout, mask: np.ndarray) -> np.ndarray:
    """The part of an activation that belongs to real tokens.

    Args:
        output: any shape.
        layout: its measured shape, with "batch" and "sequence" axes marked.
        mask: [B, S], True for real tokens.

    Raises:
        ModelError: an axis is neither fixed, nor batch, nor sequence.
    """
    if mask.all():
        return output
    if layout[0] == "tokens":
        return output[mask.reshape(-1)]
    axes = [axis for axis, size in enumerate(layout) if size == "sequence"]
    if "unknown" in layout or (axes and layout[0] != "batch"):
        raise ModelError("the axes of an activation are not known, so padding cannot be left out", got=str(layout))
    if not axes:
        return output
    keep = np.ones((1,) * output.ndim, dtype=bool)
    for axis in axes:
        shape = [1] * output.ndim
        shape[0], shape[axis] = mask.shape
        keep = keep & mask.reshape(shape)
    return output[np.broadcast_to(keep, output.shape)]
