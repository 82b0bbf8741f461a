"""Run calibration rows through the float graph and observe activations.

In: a graph on disk, and rows of token ids. Out: one `TensorStatistics` per value, or whatever a caller of `stream` collects.
Padding is left out: each sequence axis of a value is restricted to the tokens of the row, which removes padded tokens, and
padded rows and columns of attention scores. Memory holds the activations of one batch, whatever the number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core import budget, environment
from octobert.core.arrays import arrays_in
from octobert.core.errors import DataError, ModelError, TargetError, did_you_mean
from octobert.core.ranges import BINS, Collector, Sample, TensorStatistics
from octobert.data.encoded import Encoded, FeedRow, batches, feeds_of
from octobert.graph import operators
from octobert.graph.capture import shapes

Layout = tuple[int | str, ...]
# Most tokens of a batch. The inputs of all linear layers of a BERT-base then take about 0.26 GB.
TOKENS_PER_BATCH = 1024
# Tokens that tell the range of a channel, for each that is sampled, and the fewest texts: tokens of one are alike.
_TOKENS_FOR_ENDS, _FEWEST_ROWS = 8, 16
# Execution providers. What the first does not support runs on the next.
CPU = "CPUExecutionProvider"
_WITH = {"TensorrtExecutionProvider": ("TensorrtExecutionProvider", "CUDAExecutionProvider")}
# By default these compute float32 products with fewer digits, or in float16.
_EXACT = {
    "CUDAExecutionProvider": {"use_tf32": "0"},
    "OpenVINOExecutionProvider": {"precision": "FP32"},
}


def observe(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    values: Sequence[str],
    *,
    relative: Collection[str] = (),
    provider: str = CPU,
    name_of: Callable[[int], str] = "row {}".format,
    on_rows: Callable[[int], None] | None = None,
) -> dict[str, TensorStatistics]:
    """Observe values over rows.

    Args:
        model_path: a canonical float graph.
        rows: calibration rows.
        pad_id: id of the padding token.
        values: names of values of the graph.
        relative: those of shape [B, S, C] whose errors count relative to the energy of their token; see `Collector`.
        provider: the execution provider of ONNX Runtime that computes.
        name_of: index of a row → its name in errors.
        on_rows: called after each batch with the number of rows done.

    Returns:
        Name of a value → its statistics.

    Raises:
        ModelError: a value is not in the graph, or contains NaN or infinity.
    """
    collectors = {name: Collector(len(rows), relative=name in relative) for name in values}

    def take(name: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        bad = collectors[name].add(indices, parts)
        if bad is not None:
            raise ModelError(
                f'the activation "{name}" contains NaN or infinity',
                where=str(model_path),
                got=name_of(bad),
                fix="check the model's weights",
            )

    if values:
        model = ir.load(model_path)
        stream(model, rows, pad_id, values, take, provider=provider, on_rows=on_rows)
    return {name: collector.statistics() for name, collector in collectors.items()}


def sample(
    model: ir.Model,
    rows: Sequence[Encoded],
    pad_id: int,
    values: Sequence[str],
    *,
    tokens: int,
    seed: int,
    on_rows: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Sample]:
    """Sample tokens of values at random. All values get the same tokens.

    Args:
        model: a canonical float graph.
        rows: calibration rows.
        pad_id: id of the padding token.
        values: names of values of shape [B, S, C].
        tokens: expected number of sampled tokens.
        seed: of the random choice.
        on_rows: called after each batch with the rows done, and all rows that are run.

    Returns:
        Name of a value → its sample, with the range of each channel over eight times as many tokens.

    Raises:
        ModelError: a value is not in the graph.
    """
    generator = np.random.default_rng(seed)
    most = max(1, _TOKENS_FOR_ENDS * tokens)
    if sum(map(len, rows)) > most:
        drawn = [rows[i] for i in generator.permutation(len(rows))]
        rows = drawn[: max(len(rows_holding(most, drawn)), _FEWEST_ROWS)]
    share = min(1.0, tokens / max(sum(map(len, rows)), 1))
    chosen = [np.flatnonzero(generator.random(len(row)) < share) for row in rows]
    samples: dict[str, list[np.ndarray]] = {name: [] for name in values}
    ends: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def take(name: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        for index, part in zip(indices, parts, strict=True):
            low, high = ends.get(name, (np.inf, -np.inf))
            ends[name] = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
            # A graph of any kind may read texts of different lengths at once.
            samples[name].append(part[chosen[index] % len(part)])

    stream(model, rows, pad_id, values, take, on_rows=lambda done: on_rows(done, len(rows)))
    return {name: Sample(*ends[name], np.concatenate(samples[name])) for name in values}


def rows_holding(tokens: int, rows: Sequence[Encoded]) -> list[Encoded]:
    """Return rows from the start until they hold a number of tokens."""
    before = itertools.accumulate((len(row) for row in rows), initial=0)
    return [row for row, count in zip(rows, before, strict=False) if count < tokens]


def largest(
    model: ir.Model, rows: Sequence[Encoded], pad_id: int, values: Sequence[str]
) -> dict[str, float]:
    """Return the largest magnitude of values over rows, padding included: a device computes it, too.

    Args:
        model: a canonical float graph, which is changed.
        rows: calibration rows.
        pad_id: id of the padding token.
        values: names of float values of the graph, constants among them.
    """
    graph, by_name = model.graph, operators.named(model.graph)
    seen = []
    for name in values:
        chain = operators.Chain(graph, f"{name}.seen")
        magnitudes = chain.Abs("magnitudes", by_name[name])
        seen.append(chain.ReduceMax("largest", magnitudes, keepdims=0, shape=()))
        graph.extend(chain.nodes)
    session, found = shapes.open_session(model, seen, arena=False), np.zeros(len(values))
    names = {port.name for port in session.get_inputs()}
    for group in batches(rows, max_tokens=TOKENS_PER_BATCH):
        feeds = feeds_of([rows[i] for i in group], pad_id)
        found = np.maximum(
            found, session.run(None, {name: feed for name, feed in feeds.items() if name in names})
        )
    return dict(zip(values, found.tolist(), strict=True))


def stream(
    model: ir.Model,
    rows: Sequence[Encoded],
    pad_id: int,
    values: Sequence[str],
    take: Callable[[str, Sequence[int], Sequence[np.ndarray]], None],
    *,
    provider: str = CPU,
    on_rows: Callable[[int], None] | None = None,
) -> None:
    """Run the graph over all rows, in batches of similar length, and pass on the values without padding.

    Args:
        model: a canonical float graph.
        rows: token ids.
        pad_id: id of the padding token.
        values: names of values of the graph.
        take: called once per batch and value with (name of the value, indices of the rows, one array per row).
        provider: the execution provider of ONNX Runtime that computes.
        on_rows: called after each batch with the number of rows done.

    Raises:
        ModelError: a value is not in the graph, or its axes are unknown.
    """
    if not values:
        return
    alone = bool(rows) and isinstance(rows[0], FeedRow)
    session, layouts = open_with_outputs(model, values, provider, padded=not alone)
    heads = [layout[1] for layout in layouts.values() if layout.count("sequence") == 2]
    attention = budget.AttentionMemory(
        0 if alone else heads_of(model),
        sum(count for count in heads if isinstance(count, int)),
    )
    names = {value.name for value in session.get_inputs()}

    def run(group: Sequence[int]) -> None:
        feeds, lengths = feeds_of([rows[i] for i in group], pad_id), [len(rows[i]) for i in group]
        outputs = session.run(list(values), {k: v for k, v in feeds.items() if k in names})
        for name, output in zip(values, outputs, strict=True):
            # Of a graph of any kind the last axis is known alone.
            real = [output.reshape(-1, output.shape[-1])]
            if not alone:
                real = list(real_rows(output, layouts[name], lengths))
            take(name, group, real)

    done = 0
    for group in batches(rows, max_tokens=TOKENS_PER_BATCH):
        try:
            together = attention.rows_at_once(len(group), len(rows[group[0]]))
        except DataError as error:
            error.where = f"calibration row {group[0] + 1}"
            raise
        for start in range(0, len(group), together):
            run(group[start : start + together])
        done += len(group)
        if on_rows:
            on_rows(done)
    # It has two copies of the weights, and what comes next needs as much.
    session = None
    environment.release_memory()


def heads_of(model: ir.Model) -> int:
    """The attention heads of a layer of a canonical graph, as the shapes of its values state them; 0 where none does."""
    shapes_ = [node.outputs[0].shape for node in operators.of_type(model.graph, "Softmax")]
    counts = [shape[1] for shape in shapes_ if shape is not None and len(shape) == 4]
    return max((count for count in counts if isinstance(count, int)), default=0)


def check_provider(provider: str) -> None:
    """Check that this build of onnxruntime has an execution provider.

    Raises:
        TargetError: it does not.
    """
    import onnxruntime as ort

    installed = ort.get_available_providers()
    if provider not in installed:
        raise TargetError(
            "this build of onnxruntime does not have the provider",
            where="calibration_provider",
            got=provider,
            expected=" or ".join(installed),
            fix=(
                did_you_mean(provider, installed)
                if provider not in ort.get_all_providers()
                else "install a build that has it"
            ),
        )


def open_with_outputs(
    model: ir.Model, values: Sequence[str], provider: str = CPU, *, padded: bool = True
) -> tuple[Any, dict[str, Layout]]:
    """Open a session whose outputs are these values.

    Args:
        model: a canonical float graph.
        values: names of values of the graph.
        provider: the execution provider; what it does not support runs on the CPU.
        padded: which axes are batch and sequence is asked for; otherwise nothing is said of them.

    Returns:
        The session; and name of a value → its axes, with "batch" and "sequence" marked.

    Raises:
        ModelError: a value is not in the graph.
        TargetError: onnxruntime runs the graph without the provider.
    """
    by_name = operators.values_of(model.graph)
    missing = [name for name in values if name not in by_name]
    if missing:
        raise ModelError(
            f'the graph has no value "{missing[0]}"',
            fix="capture the model again",
        )
    outputs = [by_name[name] for name in values]
    chosen = [(name, _EXACT.get(name, {})) for name in (*_WITH.get(provider, (provider,)), CPU)]
    session = shapes.open_session(model, outputs, arena=False, providers=list(dict(chosen).items()))
    if provider not in session.get_providers():
        # onnxruntime drops a provider that does not start, and runs everything on the CPU.
        raise TargetError(
            f"onnxruntime runs the model without {provider}",
            where="calibration_provider",
            got=f"it uses {', '.join(session.get_providers())}",
            fix="see the provider's requirements, or calibrate on the CPU",
        )
    return session, shapes.measure(model, outputs, session) if padded else {}


def real_rows(output: np.ndarray, layout: Layout, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield an activation without padding, row by row.

    Args:
        output: the activation of a batch, which is padded on the right.
        layout: its axes, with "batch" and "sequence" marked.
        lengths: tokens of the rows, also those that no other attends to.

    Raises:
        ModelError: an axis is unknown.
    """
    axes = [axis for axis, size in enumerate(layout) if size == "sequence"]
    if layout[0] == "tokens":
        output, axes = output.reshape(len(lengths), -1, *output.shape[1:]), [1]
    elif "unknown" in layout or layout[0] != "batch":
        raise ModelError(
            "the axes of an activation are unknown, so padding cannot be removed", got=str(layout)
        )
    for row, length in zip(output, lengths, strict=True):
        for axis in axes:
            row = row[(*[slice(None)] * (axis - 1), slice(length))]
        yield row


def save(statistics: Mapping[str, TensorStatistics], path: Path) -> None:
    """Write statistics as `.npz`, with the occupied bins of the histograms only."""
    arrays: dict[str, np.ndarray] = {}
    for name, seen in statistics.items():
        bins = np.flatnonzero(seen.histogram)
        arrays[f"{name}/summary"] = np.array(
            [seen.minimum, seen.maximum, seen.count], dtype=np.float64
        )
        arrays[f"{name}/bins"] = bins.astype(np.uint16)
        arrays[f"{name}/counts"] = seen.histogram[bins]
        arrays[f"{name}/extremes"] = seen.extremes
        if seen.relative is not None:
            arrays[f"{name}/relative"] = seen.relative[bins]
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> dict[str, TensorStatistics]:
    """Read what `save` has written."""
    statistics: dict[str, TensorStatistics] = {}
    arrays = arrays_in(path)
    for key in arrays:
        name, _, part = key.rpartition("/")
        if part == "summary":
            bins, extremes = arrays[f"{name}/bins"], arrays[f"{name}/extremes"]
            histogram = np.zeros(BINS, dtype=np.int64)
            histogram[bins] = arrays[f"{name}/counts"]
            relative = None
            if f"{name}/relative" in arrays:
                relative = np.zeros(BINS)
                relative[bins] = arrays[f"{name}/relative"]
            low, high, count = arrays[key]
            statistics[name] = TensorStatistics(
                float(low), float(high), int(count), histogram, extremes, relative
            )
    return statistics
