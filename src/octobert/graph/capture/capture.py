"""Capture: a checkpoint or a user's ONNX file becomes the canonical float graph, which is compared with its source.

PyTorch is needed for checkpoints only, and only here.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core import environment
from octobert.core.errors import ModelError, ParityError, did_you_mean
from octobert.core.family import GRAPH, EncoderFamily
from octobert.core.heads import head_of
from octobert.core.model_config import Pooling
from octobert.core.onnx_files import TensorInfo, ports_of, read_onnx
from octobert.core.results import Parity, Sizes
from octobert.core.session import GRAPH_METADATA, Feeds
from octobert.graph import operators, parity, parts, sites
from octobert.graph.capture import canonical, lowering, shapes, structure
from octobert.graph.capture.pooling import append_pooling_
from octobert.models import checkpoint, weights
from octobert.models.heads import outputs_of
from octobert.models.pooling import pooler_of
from octobert.models.source import ModelSource
from octobert.models.torch_pooling import answers

_FILE = "the original ONNX file"
# Operators that take time, besides linear layers.
_HEAVY = ("LSTM", "GRU", "RNN", "Conv", "ConvTranspose", "Einsum", "Gemm", "Loop", "Scan", "If")


@dataclass(frozen=True)
class Captured:
    """A canonical graph, its family and sizes, its comparison with the source, how it pools, and what stays as it is."""

    model: ir.Model
    family: EncoderFamily
    sizes: Sizes
    parity: Parity
    pooling: Pooling | None = None
    rest: str = ""


def capture(
    source: ModelSource, head: str, texts: parity.Batches, *, allow_pickle: bool = False
) -> Captured:
    """Return the canonical float graph of a model.

    Args:
        source: a checkpoint or an ONNX file.
        head: a key of `core.heads.HEADS`.
        texts: batches of real inputs on which the graph is compared with its source.
        allow_pickle: accept pickle weights.

    Raises:
        ModelError: the model is not supported, not safe to load, or broken.
        ParityError: the graph and its source compute different outputs.
    """
    chosen, family, where = head_of(head), source.family, source.tokenizer_folder
    pooler = pooler_of(where, chosen, allow_pickle=allow_pickle) if chosen.pooled else None
    original: Any
    if source.is_checkpoint:
        original = checkpoint.load_torch(source.path, head, allow_pickle=allow_pickle)
        model = export(original, head)
    else:
        model, original = read_onnx(source.path), read_onnx(source.path)
        names = outputs_of(chosen, ports_of(original).outputs, where=str(source.path))
        for graph in (model, original):
            _name_outputs_(graph, names)
    sizes = canonicalize_(model, family)
    # What exporters keep is several times as large as the model.
    environment.release_memory()
    if not source.is_checkpoint:
        # Masks of exporters are infinite; the canonical one is not.
        values = model.graph.initializers.values()
        weights.check_finite(((str(v.name), operators.const_array(v)) for v in values), source.path)
    pools = False
    if pooler is not None:
        for graph in (model,) if source.is_checkpoint else (model, original):
            pools = append_pooling_(graph, graph.graph.outputs[-1], pooler, chosen.outputs[-1])
    shapes.annotate_(model)
    feeds = [parity.only(batch, model) for batch in texts]
    if source.is_checkpoint:
        against = "PyTorch"
        reference = [[*answers(original, batch, chosen, pooler).values()] for batch in feeds]
    else:
        against = _FILE
        reference = parity.onnx_outputs(original, feeds)
    # It is as large as the graph that is run next.
    del original
    compared = _compared(model, feeds, reference, against)
    return Captured(model, family, sizes, compared, pooler.pooling if pooler and pools else None)


def capture_graph(
    path: Path,
    feeds: parity.Batches,
    axes: Mapping[str, int] = MappingProxyType({}),
    *,
    compared: int | None = None,
) -> Captured:
    """Return a graph of any kind whose encoder layers have names; all else stays as it is.

    Args:
        path: an ONNX file.
        feeds: inputs for it.
        compared: on how many of them the result is compared with the file; None for all.
        axes: sizes of free axes of its inputs that are fixed, by their names.

    Raises:
        ModelError: the feeds do not fit, the file has no encoder layer, or it is broken.
        ParityError: the graph and the file compute different outputs.
    """
    model, original = read_onnx(path), read_onnx(path)
    for graph in (model.graph, original.graph):
        _fix_(graph, axes)
    ports = ports_of(original).inputs
    for number, feed in enumerate(feeds, start=1):
        check_feed(ports, feed, where=f"feed {number}")
    lowering.prepare_(model, whole=False)
    found, others = structure.layers_in(model.graph)
    layers = [layer for layer in found if layer.roles <= GRAPH.parts.keys()]
    if not layers:
        why = next((str(error) for error in others.values() if error is not None), "no attention")
        raise ModelError(
            "the graph has no encoder layer",
            where=str(path),
            got=why,
            expected="attention, residual add, feed-forward, residual add, and a norm before or after each",
            fix="export it in plain ONNX operators, with eager attention",
        )
    canonical.bound_masks_(model.graph, layers)
    model.metadata_props[GRAPH_METADATA] = "1"
    canonical.name_(model, layers, GRAPH)
    feeds = feeds[:compared]
    reference = parity.onnx_outputs(original, feeds)
    for value, array in zip(model.graph.outputs, reference[0], strict=True):
        # The standard wants both, and exporters leave them out.
        if value.shape is None:
            value.shape = ir.Shape([None] * array.ndim)
        if value.type is None:
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    found_parity = _compared(model, feeds, reference, _FILE, padded=False)
    probs = layers[0].attention.softmax.outputs[0]
    shape = parity.onnx_outputs(model, feeds[:1], values=[probs])[0][0].shape
    sizes = Sizes(
        layers=len(layers), heads=shape[1] if len(shape) == 4 else 1, hidden=layers[0].width
    )
    return Captured(
        model, GRAPH, sizes, found_parity, rest=_rest(model.graph, len(found) - len(layers), others)
    )


def _fix_(graph: ir.Graph, axes: Mapping[str, int]) -> None:
    """Fix free axes of the inputs, in place.

    Raises:
        ModelError: there is no axis of that name.
    """
    shapes_ = [value.shape for value in graph.inputs if value.shape is not None]
    free = {str(size.value) for shape in shapes_ for size in shape if not isinstance(size, int)}
    for name in axes:
        if name not in free:
            raise ModelError(
                f'no input of the graph has a free axis "{name}"',
                where="task.graph.axes",
                got=", ".join(sorted(free)) or "no free axes",
                fix=did_you_mean(name, free),
            )
    for value in graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape(
                [
                    size if isinstance(size, int) else axes.get(str(size.value), size.value)
                    for size in value.shape
                ]
            )


def check_feed(ports: Sequence[TensorInfo], feed: Feeds, *, where: str) -> None:
    """Check that a feed has the inputs of a graph, in their types and with as many axes.

    Raises:
        ModelError: with the input.
    """
    for port in ports:
        array = feed.get(port.name)
        if array is None:
            raise ModelError(
                f'the feed has no input "{port.name}"',
                where=where,
                got=", ".join(feed) or "nothing",
                expected=", ".join(each.name for each in ports),
                fix="give an array for each input of the graph, under its name",
            )
        axes = None if port.shape is None else len(port.shape)
        fixed = zip(port.shape or (), array.shape, strict=False)
        if (
            array.dtype.name != port.dtype
            or axes not in (None, array.ndim)
            or any(size not in (-1, other) for size, other in fixed)
        ):
            raise ModelError(
                f'the array of the input "{port.name}" is of another type or shape',
                where=where,
                got=f"{array.dtype} {list(array.shape)}",
                expected=str(port),
                fix="convert it, or export the graph with free axes",
            )


def _rest(graph: ir.Graph, apart: int, others: Mapping[str, ModelError | None]) -> str:
    """What is not part of an encoder layer, in words."""
    inside = {site.node for site in sites.find_sites(graph, GRAPH)}
    linears = [linear.matmul for linear in parts.all_linears(graph)]
    outside = Counter(
        node.op_type for node in graph if node.op_type in _HEAVY and node.name not in inside
    )
    outside["linear layer"] = sum(node.name not in inside for node in linears)
    outside["other attention"] = apart + sum(error is not None for error in others.values())
    return ", ".join(
        f"{count} {name}{'s' * (count > 1 and name.islower())}"
        for name, count in outside.items()
        if count
    )


def canonical_of(path: Path, family: EncoderFamily) -> ir.Model:
    """Return the graph of a file for rewriting: canonical if it is float, with canonical inputs if it has Q/DQ pairs.

    Args:
        path: an ONNX file of any origin.
        family: of the encoder.

    Raises:
        ModelError: the file is not that of a supported encoder, or computes with integer operators.
        ParityError: the canonical graph computes something else than the file.
    """
    model, original = read_onnx(path), read_onnx(path)
    if any(
        node.op_type in ("DequantizeLinear", *lowering.INTEGER_OPERATORS)
        for node in model.graph.all_nodes()
    ):
        lowering.prepare_pairs_(model)
        return model
    canonicalize_(model, family)
    feeds = parity.sample_batches(model)
    reference = parity.onnx_outputs(original, feeds)
    _compared(model, feeds, reference, _FILE)
    return model


def _compared(
    model: ir.Model,
    feeds: parity.Batches,
    reference: list[list[np.ndarray]],
    against: str,
    *,
    padded: bool = True,
) -> Parity:
    """Compare a canonical graph with its source; where they are apart, lower its masks first, in place: padding may show.

    Raises:
        ParityError: the graph and its source compute different outputs.
    """
    try:
        return parity.compare(model, feeds, reference, against, padded=padded)
    except ParityError:
        if not canonical.lower_masks_(model.graph):
            raise
        return parity.compare(model, feeds, reference, against, padded=padded)


def export(torch_model: Any, head: str) -> ir.Model:
    """Export a PyTorch model to ONNX, with the outputs of one head and dynamic batch and sequence."""
    import torch

    for noisy in ("torch.onnx", "onnxscript"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    # Tracing gradients takes a fifth of the exporter's time, and a captured model is not trained.
    torch_model.requires_grad_(False)
    used = checkpoint.inputs_of(torch_model)
    example = {name: torch.ones(2, 7, dtype=torch.int64) for name in used}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            torch_model,
            (),
            kwargs=example,
            dynamo=True,
            opset_version=canonical.OPSET,
            dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in used},
            verbose=False,
        )
    assert program is not None
    model = program.model
    names = head_of(head).model_outputs
    # transformers returns the outputs of a head first, in this order; the exporter gives them names of its own.
    model.graph.outputs[:] = model.graph.outputs[: len(names)]
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name
    operators.clean_(model)
    return model


def canonicalize_(model: ir.Model, family: EncoderFamily) -> Sizes:
    """Bring a raw graph into canonical form in place, and return its sizes."""
    lowering.prepare_(model)
    layers = structure.find_layers(model.graph)
    probs = [layer.attention.softmax.outputs[0] for layer in layers]
    split = [x.heads for layer in layers for x in layer.attention.inputs if x.heads is not None]
    measured = shapes.measure(model, list(dict.fromkeys([*probs, *split])))
    heads = [_heads(measured[str(value.name)], str(value.name)) for value in (*probs, *split)]
    canonical.rebuild_attention_(model, layers, heads[: len(layers)], family)
    layers = structure.find_layers(model.graph)
    canonical.name_(model, layers, family)
    return Sizes(layers=len(layers), heads=heads[0], hidden=layers[-1].width)


def _heads(shape: tuple[int | str, ...], name: str) -> int:
    if len(shape) != 4 or not isinstance(shape[1], int):
        raise ModelError(
            "the attention is not split into heads",
            where=name,
            got=", ".join(map(str, shape)),
            expected="four axes: batch, heads, sequence and one more",
            fix="export the model with torch.onnx.export(dynamo=True)",
        )
    return shape[1]


def _name_outputs_(model: ir.Model, names: Mapping[str, str]) -> None:
    """Keep the outputs of a head, under their usual names.

    Args:
        names: usual name → name in the file.
    """
    by_name = {str(value.name): value for value in model.graph.outputs}
    model.graph.outputs[:] = [by_name[name] for name in names.values()]
    for name, value in zip(names, model.graph.outputs, strict=True):
        value.name = name
