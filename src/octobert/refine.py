"""Run refiners over the linear layers of a plan: gather the moments of their inputs, refine, put the result into a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert import observe
from octobert.graph import ops, qdq, sites
from octobert.plan import OUTPUT, Quantizer, QuantPlan, Site
from octobert.refinement import Change, Layer, Moments, MomentsCollector
from octobert.texts import Encoded

# Square matrices of all layers at once would not fit; as many as stay below this are gathered in one pass over the rows.
_PRODUCTS_BYTES = 1 << 29
# Tokens that moments are taken over; four times the widest layer of a BERT-base.
MAX_TOKENS = 12_288

Refiners = Sequence[tuple[Any, Any]]


def refine(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    plan: QuantPlan,
    refiners: Refiners,
    progress: Callable[[str, int, int], None],
) -> dict[str, Change]:
    """Module path → its refined constants, for every linear layer whose input and weight the plan quantizes statically.

    Args:
        refiners: (module of a refiner, its options), applied in order.
    """
    graph = ir.load(model_path).graph
    nodes = {str(node.name): node for node in graph}
    layers = list(_layers(plan))
    shared = qdq.shared_scales(nodes, plan)
    widths = {site.value: int(nodes[site.node].inputs[1].shape[0]) for site, _, _ in layers}  # type: ignore[union-attr,index,arg-type]
    products = any(refiner.NEEDS_PRODUCTS for refiner, _ in refiners)
    kept = _few(rows)
    found: dict[str, Change] = {}
    for chunk in _chunks(widths, products=products):
        inside = [one for one in layers if one[0].value in chunk]
        quantizers = {site.value: quantizer for site, quantizer, _ in inside}
        moments = _moments(model_path, kept, pad_id, quantizers, {v: widths[v] for v in chunk}, products=products)
        for site, _, weight in inside:
            before = layer = _constants(nodes, site, weight, shared)
            for refiner, options in refiners:
                layer = refiner.refine(layer, moments[site.value], options)
            found[site.module] = Change(None if layer.weight is before.weight else layer.weight, layer.bias, layer.scale)
            progress("refining", len(found), len(layers))
    return found


def apply_(model: ir.Model, changes: Mapping[str, Change], plan: QuantPlan) -> dict[str, np.ndarray]:
    """Put refined constants into a float graph, for the layers that the plan quantizes; the chosen scales, by weight."""
    nodes = {str(node.name): node for node in model.graph}
    scales: dict[str, np.ndarray] = {}
    for site, _, _ in _layers(plan):
        if site.module not in changes:
            continue
        layer, matmul = changes[site.module], sites.linear_node(nodes, site.module)
        if layer.weight is not None:
            _set_(matmul, 1, layer.weight)
        add = nodes.get(site.module)
        if layer.bias is not None and add is not None and add is not matmul:
            _set_(add, 1, layer.bias)
        if layer.scale is not None:
            scales[str(matmul.inputs[1].name)] = layer.scale  # type: ignore[union-attr]
    return scales


def save(changes: Mapping[str, Change], path: Path) -> None:
    """Write refined constants."""
    arrays: dict[str, np.ndarray] = {}
    for module, change in changes.items():
        for part in ("weight", "bias", "scale"):
            array = getattr(change, part)
            if array is not None:
                arrays[f"{module}/{part}"] = array
    np.savez(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> dict[str, Change]:
    """The inverse of `save`."""
    with np.load(path) as arrays:
        modules = dict.fromkeys(key.rpartition("/")[0] for key in arrays.files)
        return {m: Change(*(arrays.get(f"{m}/{part}") for part in ("weight", "bias", "scale"))) for m in modules}


def _layers(plan: QuantPlan) -> Iterator[tuple[Site, Quantizer, Quantizer]]:
    """(site of the input, its quantizer, the weight's quantizer) of every layer that reads and has 8 bits."""
    weights = {site.node: quantizer for site, quantizer in plan.quantized if site.is_weight}
    made = {site.value: quantizer for site, quantizer in plan.quantized if site.input == OUTPUT}
    for decision in plan.decisions:
        site, quantizer = decision.site, decision.quantizer or made.get(decision.site.value)
        if site.role in ("linear.input", "head.input") and site.node in weights and quantizer and not quantizer.dynamic:
            yield site, quantizer, weights[site.node]


def _constants(nodes: dict[str, ir.Node], site: Site, quantizer: Quantizer, shared: qdq.Scales) -> Layer:
    weight = ops.const_array(nodes[site.node].inputs[1])
    add = nodes.get(site.module)
    bias = ops.const_array(add.inputs[1]) if add is not None and add.op_type == "Add" else None
    assert weight is not None
    return Layer.of(weight, bias, quantizer, shared.get(str(nodes[site.node].inputs[1].name)))  # type: ignore[union-attr]


def _few(rows: Sequence[Encoded]) -> list[Encoded]:
    kept: list[Encoded] = []
    tokens = 0
    for row in rows:
        if tokens >= MAX_TOKENS:
            break
        kept.append(row)
        tokens += len(row)
    return kept


def _chunks(widths: dict[str, int], *, products: bool) -> Iterator[list[str]]:
    """Values whose matrices fit into memory together."""
    chunk: list[str] = []
    used = 0
    for value, width in widths.items():
        cost = 2 * 8 * width * width if products else 0
        if chunk and used + cost > _PRODUCTS_BYTES:
            yield chunk
            chunk, used = [], 0
        chunk.append(value)
        used += cost
    if chunk:
        yield chunk


def _moments(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    quantizers: dict[str, Quantizer],
    widths: dict[str, int],
    *,
    products: bool,
) -> dict[str, Moments]:
    collectors = {value: MomentsCollector(width, products=products) for value, width in widths.items()}

    def take(value: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        # Poolers read one vector a row: [C] instead of [tokens, C].
        tokens = np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
        collectors[value].add(tokens, qdq.rounded_activation(tokens, quantizers[value]))

    observe.stream(model_path, rows, pad_id, list(widths), take)
    return {value: one.moments() for value, one in collectors.items()}


def _set_(node: ir.Node, index: int, array: np.ndarray) -> None:
    value = node.inputs[index]
    value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)  # type: ignore[union-attr]
