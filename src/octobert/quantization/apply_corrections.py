"""Run refiners over the linear layers of a plan: gather the moments of their inputs, refine, put the result into a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.plan import OUTPUT, Quantizer, QuantPlan, Site
from octobert.data.tokenization import Encoded
from octobert.graph import operators, qdq, sites
from octobert.quantization import observer
from octobert.quantization.layers import LayerChange, LinearLayer, Moments, MomentsCollector

# Square matrices of all layers at once would not fit; as many as stay below this are gathered in one pass over the rows.
_PRODUCTS_BYTES = 1 << 29
# Tokens that moments are taken over; four times the widest layer of a BERT-base.
MAX_TOKENS = 12_288

Refiners = Sequence[tuple[Any, Any]]
# The values that one weight is multiplied with: one, but for layers that share their weights.
Inputs = tuple[str, ...]


def correct_layers(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    plan: QuantPlan,
    refiners: Refiners,
    progress: Callable[[str, int, int], None],
) -> dict[str, LayerChange]:
    """Module path → its refined constants, for every linear layer whose input and weight the plan quantizes statically.

    Layers that share a weight are refined as one, by all their inputs, and found under the path of the first.

    Args:
        refiners: (module of a refiner, its options), applied in order.
    """
    graph = ir.load(model_path).graph
    nodes = {str(node.name): node for node in graph}
    shared = qdq.shared_scales(nodes, plan)
    together = _by_weight(nodes, plan)
    inputs = {weight: tuple(dict.fromkeys(site.value for site, _, _ in layers)) for weight, layers in together.items()}
    quantizers = {site.value: quantizer for layers in together.values() for site, quantizer, _ in layers}
    widths = {inputs[name]: int(graph.initializers[name].shape[0]) for name in together}  # type: ignore[index,arg-type]
    products = any(refiner.NEEDS_PRODUCTS for refiner, _ in refiners)
    kept = _few(rows)
    found: dict[str, LayerChange] = {}
    for chunk in _chunks(widths, products=products):
        moments = _moments(
            model_path, kept, pad_id, quantizers, {values: widths[values] for values in chunk}, products=products
        )
        for name, ((site, _, weight), *_others) in together.items():
            if inputs[name] not in moments:
                continue
            before = layer = _constants(nodes, site, weight, shared)
            for refiner, options in refiners:
                layer = refiner.correct(layer, moments[inputs[name]], options)
            found[site.module] = LayerChange(None if layer.weight is before.weight else layer.weight, layer.bias, layer.scale)
            progress("refining", len(found), len(together))
    return found


def apply_(model: ir.Model, changes: Mapping[str, LayerChange], plan: QuantPlan) -> dict[str, np.ndarray]:
    """Put refined constants into a float graph, for the layers that the plan quantizes; the chosen scales, by weight."""
    graph = model.graph
    nodes = {str(node.name): node for node in graph}
    refined = {sites.linear_node(nodes, module).inputs[1].name: change for module, change in changes.items()}  # type: ignore[union-attr]
    scales: dict[str, np.ndarray] = {}
    for name, layers in _by_weight(nodes, plan).items():
        if name not in refined:
            continue
        change, modules = refined[name], [site.module for site, _, _ in layers]
        if change.weight is not None:
            _set_(graph, [sites.linear_node(nodes, module) for module in modules], change.weight)
        adds = [add for module in modules if (add := nodes.get(module)) is not None and add.op_type == "Add"]
        if change.bias is not None and adds:
            _set_(graph, adds, change.bias)
        if change.scale is not None:
            scales[name] = change.scale
    return scales


def save(changes: Mapping[str, LayerChange], path: Path) -> None:
    """Write refined constants."""
    arrays: dict[str, np.ndarray] = {}
    for module, change in changes.items():
        for part in ("weight", "bias", "scale"):
            array = getattr(change, part)
            if array is not None:
                arrays[f"{module}/{part}"] = array
    np.savez(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> dict[str, LayerChange]:
    """The inverse of `save`."""
    with np.load(path) as arrays:
        modules = dict.fromkeys(key.rpartition("/")[0] for key in arrays.files)
        return {m: LayerChange(*(arrays.get(f"{m}/{part}") for part in ("weight", "bias", "scale"))) for m in modules}


def _layers(plan: QuantPlan) -> Iterator[tuple[Site, Quantizer, Quantizer]]:
    """(site of the input, its quantizer, the weight's quantizer) of every layer that reads and has 8 bits."""
    weights = {site.node: quantizer for site, quantizer in plan.quantized if site.is_weight}
    made = {site.value: quantizer for site, quantizer in plan.quantized if site.input == OUTPUT}
    for decision in plan.decisions:
        site, quantizer = decision.site, decision.quantizer or made.get(decision.site.value)
        if site.role in ("linear.input", "head.input") and site.node in weights and quantizer and not quantizer.dynamic:
            yield site, quantizer, weights[site.node]


def _by_weight(nodes: dict[str, ir.Node], plan: QuantPlan) -> dict[str, list[tuple[Site, Quantizer, Quantizer]]]:
    """Name of a weight → the layers of the plan that have it."""
    found: dict[str, list[tuple[Site, Quantizer, Quantizer]]] = {}
    for one in _layers(plan):
        found.setdefault(str(nodes[one[0].node].inputs[1].name), []).append(one)  # type: ignore[union-attr]
    return found


def _constants(nodes: dict[str, ir.Node], site: Site, quantizer: Quantizer, shared: qdq.Scales) -> LinearLayer:
    weight = operators.const_array(nodes[site.node].inputs[1])
    add = nodes.get(site.module)
    bias = operators.const_array(add.inputs[1]) if add is not None and add.op_type == "Add" else None
    assert weight is not None
    return LinearLayer.of(weight, bias, quantizer, shared.get(str(nodes[site.node].inputs[1].name)))  # type: ignore[union-attr]


def _few(rows: Sequence[Encoded]) -> list[Encoded]:
    kept: list[Encoded] = []
    tokens = 0
    for row in rows:
        if tokens >= MAX_TOKENS:
            break
        kept.append(row)
        tokens += len(row)
    return kept


def _chunks(widths: dict[Inputs, int], *, products: bool) -> Iterator[list[Inputs]]:
    """Inputs whose matrices fit into memory together."""
    chunk: list[Inputs] = []
    used = 0
    for values, width in widths.items():
        cost = 2 * 8 * width * width if products else 0
        if chunk and used + cost > _PRODUCTS_BYTES:
            yield chunk
            chunk, used = [], 0
        chunk.append(values)
        used += cost
    if chunk:
        yield chunk


def _moments(
    model_path: Path,
    rows: Sequence[Encoded],
    pad_id: int,
    quantizers: dict[str, Quantizer],
    widths: dict[Inputs, int],
    *,
    products: bool,
) -> dict[Inputs, Moments]:
    collectors = {values: MomentsCollector(width, products=products) for values, width in widths.items()}

    def take(value: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        # Poolers read one vector a row: [C] instead of [tokens, C].
        tokens = np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
        rounded = qdq.rounded_activation(tokens, quantizers[value])
        for values, collector in collectors.items():
            if value in values:
                collector.add(tokens, rounded)

    observer.stream(model_path, rows, pad_id, sorted({value for values in widths for value in values}), take)
    return {values: one.moments() for values, one in collectors.items()}


def _set_(graph: ir.Graph, readers: Sequence[ir.Node], array: np.ndarray) -> None:
    """Change the constant that nodes read as their second input; whatever else reads it goes on reading it as it was."""
    value = readers[0].inputs[1]
    assert value is not None
    others = [(node, index) for node, index in value.uses() if node not in readers]
    if others:
        kept = operators.initializer(graph, f"{value.name}.float", value.const_value.numpy())  # type: ignore[union-attr]
        for node, index in others:
            node.replace_input_with(index, kept)
    value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
