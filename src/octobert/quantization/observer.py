"""Stream batches through the float graph and keep what planners need of chosen values.

In: a graph on disk, and batches of token ids with their mask. Out: one `TensorStatistics` a value, or whatever else is gathered
row by row with `stream`. Padding never counts: every sequence axis of a value is restricted to the row's real tokens, so padded
token rows, and padded rows and columns of attention, are left out. Memory is one batch of activations, whatever the number of
samples; batches may differ in size and length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.ranges import BINS, Collector, Sample, TensorStatistics
from octobert.core.session import Feeds
from octobert.data.tokenization import Encoded, batches, feeds_of
from octobert.graph.capture import shapes

Layout = tuple[int | str, ...]
# A batch of so many tokens bounds the activations in memory: about 0.26 GB for all linear inputs of a BERT-base.
TOKENS_PER_BATCH = 1024


def observe(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    values: Sequence[str],
    *,
    name_of: Callable[[int], str] = "row {}".format,
    on_rows: Callable[[int], None] | None = None,
) -> dict[str, TensorStatistics]:
    """Statistics of `values` over `rows`.

    Args:
        model_path: a canonical float graph.
        values: names of values in the graph.
        name_of: what a row is called in errors.
        on_rows: called with the number of rows done after each batch, for progress.

    Raises:
        ModelError: a value is not in the graph, or became NaN or infinite.
    """
    collectors = {name: Collector(len(rows)) for name in values}

    def take(name: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        bad = collectors[name].add(indices, parts)
        if bad is not None:
            raise ModelError(
                f'the activation "{name}" became NaN or infinite',
                where=str(model_path),
                got=name_of(bad),
                fix="check the model's weights",
            )

    stream(model_path, rows, pad_id, values, take, on_rows=on_rows)
    return {name: one.statistics() for name, one in collectors.items()}


def sample(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    values: Sequence[str],
    *,
    tokens: int,
    seed: int,
    on_rows: Callable[[int], None] | None = None,
) -> dict[str, Sample]:
    """About `tokens` tokens of each value, drawn at random, the same ones of all; and the largest of each channel over all.

    Args:
        values: names of values whose last axis is the channels: [B, S, C].

    Raises:
        ModelError: a value is not in the graph.
    """
    generator = np.random.default_rng(seed)
    share = min(1.0, tokens / max(sum(map(len, rows)), 1))
    picked = [np.flatnonzero(generator.random(len(row)) < share) for row in rows]
    kept: dict[str, list[np.ndarray]] = {name: [] for name in values}
    largest: dict[str, np.ndarray] = {}

    def take(name: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        for index, part in zip(indices, parts, strict=True):
            highest = np.maximum(part.max(axis=0), -part.min(axis=0))
            largest[name] = np.maximum(largest[name], highest) if name in largest else highest
            kept[name].append(part[picked[index]])

    stream(model_path, rows, pad_id, values, take, on_rows=on_rows)
    return {name: Sample(largest[name], np.concatenate(kept[name])) for name in values}


def stream(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    values: Sequence[str],
    take: Callable[[str, Sequence[int], Sequence[np.ndarray]], None],
    *,
    on_rows: Callable[[int], None] | None = None,
) -> None:
    """Run the graph over all rows, similar lengths together, and hand over the real part of each value, row by row.

    Args:
        take: called with (value, indices of rows, one array a row).

    Raises:
        ModelError: a value is not in the graph, or its axes are not known.
    """
    if not values:
        return
    session, layouts = open_with_outputs(model_path, values)
    names = {one.name for one in session.get_inputs()}
    done = 0
    for group in batches(rows, max_tokens=TOKENS_PER_BATCH):
        feeds = feeds_of([rows[i] for i in group], pad_id)
        outputs = session.run(list(values), {k: v for k, v in feeds.items() if k in names})
        for name, output in zip(values, outputs, strict=True):
            take(name, group, list(real_rows(output, layouts[name], feeds)))
        done += len(group)
        if on_rows:
            on_rows(done)


def open_with_outputs(model_path: Path, values: Sequence[str]) -> tuple[Any, dict[str, Layout]]:
    """A session of a graph that gives these values, and which of their axes are batch and sequence.

    Raises:
        ModelError: a value is not in the graph.
    """
    import onnxruntime as ort

    model = ir.load(model_path)
    found = {str(v.name): v for node in model.graph for v in node.outputs}
    missing = [name for name in values if name not in found]
    if missing:
        raise ModelError(f'the graph has no value "{missing[0]}"', where=str(model_path), fix="capture the model again")
    wanted = [found[name] for name in values]
    layouts = shapes.measure(model, wanted)
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        path = Path(folder) / "observed.onnx"
        shapes.save_with_outputs(model, wanted, path)
        del model, found, wanted
        options = ort.SessionOptions()
        options.enable_cpu_mem_arena = False
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]), layouts


def real_rows(output: np.ndarray, layout: Layout, feeds: Feeds) -> Iterator[np.ndarray]:
    """The part of an activation that belongs to real tokens, row by row.

    Args:
        output: of any shape.
        layout: its measured shape, with "batch" and "sequence" axes marked.
        feeds: with `attention_mask` [B, S] of ones and zeros.

    Raises:
        ModelError: an axis is neither fixed, nor batch, nor sequence.
    """
    mask = feeds["attention_mask"].astype(bool)
    axes = [axis for axis, size in enumerate(layout) if size == "sequence"]
    if layout[0] == "tokens":
        output, axes = output.reshape(*mask.shape, *output.shape[1:]), [1]
    elif "unknown" in layout or layout[0] != "batch":
        raise ModelError("the axes of an activation are not known, so padding cannot be left out", got=str(layout))
    for row, kept in zip(output, mask, strict=True):
        length = int(kept.sum())
        for axis in axes:
            # Padding is at the end as a rule, and a slice costs nothing; elsewhere the tokens have to be picked.
            row = _first(row, axis - 1, length) if kept[:length].all() else np.compress(kept, row, axis=axis - 1)
        yield row


def _first(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    return array[(slice(None),) * axis + (slice(length),)]


def save(statistics: Mapping[str, TensorStatistics], path: Path) -> None:
    """Write statistics as `.npz`, with the occupied bins of the histograms only."""
    arrays: dict[str, np.ndarray] = {}
    for name, seen in statistics.items():
        bins = np.flatnonzero(seen.histogram)
        arrays[f"{name}/summary"] = np.array([seen.minimum, seen.maximum, seen.count], dtype=np.float64)
        arrays[f"{name}/bins"] = bins.astype(np.uint16)
        arrays[f"{name}/counts"] = seen.histogram[bins]
        arrays[f"{name}/extremes"] = seen.extremes
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> dict[str, TensorStatistics]:
    """Read what `save` wrote."""
    statistics: dict[str, TensorStatistics] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            name, _, part = key.rpartition("/")
            if part == "summary":
                histogram = np.zeros(BINS, dtype=np.int64)
                histogram[arrays[f"{name}/bins"]] = arrays[f"{name}/counts"]
                low, high, count = arrays[key]
                extremes = arrays[f"{name}/extremes"]
                statistics[name] = TensorStatistics(float(low), float(high), int(count), histogram, extremes)
    return statistics
