"""Run weight corrections over the linear layers of a plan, and write the corrected constants into a graph.

In: a float graph, its plan for one target, and calibration rows. Out: a `LayerChange` per layer, which `apply_` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.core.arrays import arrays_in
from octobert.core.plan import OUTPUT, Quantizer, QuantPlan, Site
from octobert.data.encoded import Encoded
from octobert.graph import operators, qdq, sites
from octobert.quantization import observer
from octobert.quantization.corrections import (
    Correction,
    LayerChange,
    LinearLayer,
    MomentsCollector,
)

# Limit of the covariance matrices that are held at once. Each pass over the rows collects as many layers as fit: all of a
# BERT-base, which take 0.53 GB.
_PRODUCTS_BYTES = 3 << 28
# Tokens that moments are taken over: four times the width of the widest layer of a BERT-base.
MAX_TOKENS = 12_288

# The constants of a `LayerChange`, in its order.
_PARTS = ("weight", "bias", "scale")

# The values that one weight is multiplied with: one, or several where layers share their weights.
Inputs = tuple[str, ...]
# A linear layer of a plan: the site of its input, the input's quantizer (None in float), the weight's quantizer.
Linear = tuple[Site, Quantizer | None, Quantizer]


def correct_layers(
    model: ir.Model,
    rows: Sequence[Encoded],
    pad_id: int,
    plan: QuantPlan,
    corrections: Sequence[Correction],
    progress: Callable[[str, int, int], None],
) -> dict[str, LayerChange]:
    """Correct every linear layer whose weight the plan quantizes. Inputs without a static range count as float.

    Layers that share a weight are corrected as one, over the inputs of all of them.

    Args:
        model: the float graph, which stays as it is.
        rows: calibration rows; the first `MAX_TOKENS` tokens are used.
        pad_id: id of the padding token.
        plan: of one target.
        corrections: applied in order.
        progress: called with (what is done, layers done, layers in all).

    Returns:
        Module path → changed constants. Layers that share a weight appear under the path of the first.
    """
    graph = model.graph
    nodes = operators.nodes_of(graph)
    scales = qdq.shared_scales(nodes, plan)
    layers = _by_weight(nodes, plan)
    readers: dict[Inputs, list[list[Linear]]] = {}
    widths: dict[Inputs, int] = {}
    for name, group in layers.items():
        values = tuple(dict.fromkeys(site.value for site, _, _ in group))
        readers.setdefault(values, []).append(group)
        widths[values] = int(graph.initializers[name].shape[0])  # type: ignore[index,arg-type]
    quantizers = {
        site.value: quantizer for group in layers.values() for site, quantizer, _ in group
    }
    products = any(correction.needs_products for correction in corrections)
    sampled = observer.rows_holding(MAX_TOKENS, rows)
    changes: dict[str, LayerChange] = {}
    for chunk in _chunks(widths, products=products):
        chunk_widths = {values: widths[values] for values in chunk}
        collectors = _collected(model, sampled, pad_id, quantizers, chunk_widths, products=products)
        for values in chunk:
            moments = collectors.pop(values).moments()
            for (site, _, weight), *_others in readers[values]:
                before = layer = _constants(nodes, site, weight, scales)
                for correction in corrections:
                    layer = correction.correct(layer, moments)
                changes[site.module] = LayerChange.between(before, layer)
                progress("correcting weights", len(changes), len(layers))
    return changes


def same(model: ir.Model, first: QuantPlan, second: QuantPlan) -> bool:
    """Whether corrections of one graph are the same for two plans: they quantize linear layers and scale weights alike."""
    nodes = operators.nodes_of(model.graph)
    layers, others = (_by_weight(nodes, plan) for plan in (first, second))
    scales, others_scales = (qdq.shared_scales(nodes, plan) for plan in (first, second))
    return (
        layers == others
        and scales.keys() == others_scales.keys()
        and all(np.array_equal(scales[name], others_scales[name]) for name in scales)
    )


def apply_(
    model: ir.Model, changes: Mapping[str, LayerChange], plan: QuantPlan
) -> dict[str, np.ndarray]:
    """Write corrected constants into a float graph, for the layers that the plan quantizes.

    Returns:
        Name of a weight → the scale that was chosen for it.
    """
    graph = model.graph
    nodes = operators.nodes_of(graph)
    by_weight = {
        sites.linear_node(nodes, module).inputs[1].name: change  # type: ignore[union-attr]
        for module, change in changes.items()
    }
    scales: dict[str, np.ndarray] = {}
    for name, layers in _by_weight(nodes, plan).items():
        if name not in by_weight:
            continue
        change, modules = by_weight[name], [site.module for site, _, _ in layers]
        if change.weight is not None:
            weight = _weight(name, change, layers[0][2])
            _set_(graph, [sites.linear_node(nodes, module) for module in modules], weight)
        adds = [
            add
            for module in modules
            if (add := nodes.get(module)) is not None and add.op_type == "Add"
        ]
        if change.bias is not None and adds:
            _set_(graph, adds, change.bias)
        if change.scale is not None:
            scales[name] = change.scale
    return scales


def save(changes: Mapping[str, LayerChange], path: Path) -> None:
    """Write changed constants to an `.npz` file."""
    arrays = {
        f"{module}/{part}": array
        for module, change in changes.items()
        for part in _PARTS
        if (array := getattr(change, part)) is not None
    }
    np.savez(path, **arrays)


def load(path: Path) -> dict[str, LayerChange]:
    """Read what `save` has written."""
    arrays = arrays_in(path)
    modules = dict.fromkeys(key.rpartition("/")[0] for key in arrays)
    return {m: LayerChange(*(arrays.get(f"{m}/{part}") for part in _PARTS)) for m in modules}


def _by_weight(nodes: dict[str, ir.Node], plan: QuantPlan) -> dict[str, list[Linear]]:
    """Return name of a weight → the layers that use it, of those whose weight the plan quantizes."""
    groups: dict[str, list[Linear]] = {}
    weights = {site.node: quantizer for site, quantizer in plan.quantized if site.is_weight}
    outputs = {site.value: quantizer for site, quantizer in plan.quantized if site.input == OUTPUT}
    for decision in plan.decisions:
        site, quantizer = decision.site, decision.quantizer or outputs.get(decision.site.value)
        if site.role in ("linear.input", "head.input") and site.node in weights:
            name = str(operators.input_of(nodes[site.node], 1).name)
            groups.setdefault(name, []).append((site, quantizer, weights[site.node]))
    return groups


def _constants(
    nodes: dict[str, ir.Node], site: Site, quantizer: Quantizer, scales: qdq.Scales
) -> LinearLayer:
    weight = operators.const_array(nodes[site.node].inputs[1])
    add = nodes.get(site.module)
    bias = (
        operators.const_array(add.inputs[1]) if add is not None and add.op_type == "Add" else None
    )
    assert weight is not None
    scale = scales.get(str(nodes[site.node].inputs[1].name))  # type: ignore[union-attr]
    return LinearLayer.uncorrected(weight, bias, quantizer, scale)


def _chunks(widths: dict[Inputs, int], *, products: bool) -> Iterator[list[Inputs]]:
    """Yield groups of inputs whose covariance matrices fit into memory together."""
    chunk: list[Inputs] = []
    used = 0
    for values, width in widths.items():
        cost = 4 * width * width if products else 0
        if chunk and used + cost > _PRODUCTS_BYTES:
            yield chunk
            chunk, used = [], 0
        chunk.append(values)
        used += cost
    if chunk:
        yield chunk


def _collected(
    model: ir.Model,
    rows: Sequence[Encoded],
    pad_id: int,
    quantizers: dict[str, Quantizer | None],
    widths: dict[Inputs, int],
    *,
    products: bool,
) -> dict[Inputs, MomentsCollector]:
    collectors = {
        values: MomentsCollector(width, products=products) for values, width in widths.items()
    }

    def take(value: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        # A pooler reads one vector per row: [C] instead of [tokens, C].
        tokens = np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
        quantizer = quantizers[value]
        rounded = (
            tokens
            if quantizer is None or quantizer.dynamic
            else qdq.rounded_activation(tokens, quantizer)
        )
        for values, collector in collectors.items():
            if value in values:
                collector.add(tokens, rounded)

    observer.stream(
        model, rows, pad_id, sorted({value for values in widths for value in values}), take
    )
    return collectors


def _weight(name: str, change: LayerChange, quantizer: Quantizer) -> np.ndarray | ir.TensorProtocol:
    """The weight of a change; one in steps of its scale is made when it is read, so that no model is there twice."""
    numbers, scale = change.weight, change.scale
    assert numbers is not None
    if scale is None or numbers.dtype.kind == "f":
        return numbers

    def made() -> ir.TensorProtocol:
        return ir.tensor(numbers * qdq.spread(scale, numbers.shape, quantizer.axis), name=name)

    return ir.LazyTensor(made, ir.DataType.FLOAT, ir.Shape(numbers.shape), name=name)


def _set_(
    graph: ir.Graph, readers: Sequence[ir.Node], array: np.ndarray | ir.TensorProtocol
) -> None:
    """Change the constant that `readers` read as their second input."""
    operators.set_constant_(graph, operators.input_of(readers[0], 1), readers, array)
