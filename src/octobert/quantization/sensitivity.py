"""Sensitivity: the output error of a model when a single value is quantized, for every quantized value of a plan.

All measurements run in one session, whose quantizers are switched on one at a time: each quantized value passes through an
`If`, its quantized form if the switch is on, the float value if it is off. A branch that is off costs no time. Each value also
gets its own signal-to-noise ratio. The errors of single values approximately add up, so that a search can rank them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.plan import OUTPUT, Quantizer, QuantPlan, Site
from octobert.core.ranges import TensorStatistics
from octobert.core.results import Sensitivity, SiteSensitivity
from octobert.core.session import read_outputs
from octobert.data.tokenization import Encoded, batches, feeds_of
from octobert.graph import operators, qdq
from octobert.graph.capture import shapes

_TOKENS_PER_BATCH = 1024
# Numbers of the last axis of an output that are compared; up to twice as many.
_LAST_AXIS = 2048
# Signal-to-noise ratio of a value without error, whose ratio would be infinite.
_EXACT_DB = 200.0
SWITCHES = "switches"
_Key = tuple[str, Quantizer]


def measure(
    model: ir.Model,
    plan: QuantPlan,
    rows: Sequence[Encoded],
    pad_id: int,
    statistics: Mapping[str, TensorStatistics],
    progress: Callable[[int, int], None],
    scales: qdq.Scales | None = None,
) -> Sensitivity:
    """Measure the sensitivity of every quantized value.

    Args:
        model: the float graph. It is edited.
        plan: of one target.
        rows: calibration rows.
        pad_id: id of the padding token.
        statistics: name of an activation → its statistics, for the signal-to-noise ratio.
        progress: called with (values done, values in all).
        scales: name of a weight → the scale that a correction or training chose for it.
    """
    quantizers = dict(plan.quantized)
    nodes = operators.nodes_of(model.graph)
    weights = {
        site.value: operators.const_array(nodes[site.node].inputs[site.input])
        for site in quantizers
        if site.is_weight
    }
    outputs = read_outputs([str(v.name) for v in model.graph.outputs])
    sites = write_switches_(model, plan, scales)
    session = shapes.open_session(model)
    names = {value.name for value in session.get_inputs()}
    feeds = []
    for group in batches(rows, max_tokens=_TOKENS_PER_BATCH):
        batch = feeds_of([rows[i] for i in group], pad_id)
        feeds.append({name: batch[name] for name in names if name != SWITCHES})
    off = np.zeros(len(sites), dtype=bool)
    reference = _run(session, outputs, feeds, off)
    together = _error(_run(session, outputs, feeds, ~off), reference)
    measured = []
    for number, (site, *_others) in enumerate(sites):
        on = off.copy()
        on[number] = True
        error = _error(_run(session, outputs, feeds, on), reference)
        noise = _signal_to_noise(site, quantizers[site], statistics, weights)
        measured.append(
            SiteSensitivity(
                value=site.value,
                role=site.role,
                part=site.part,
                module=site.module,
                layer=site.layer,
                signal_to_noise_db=noise,
                output_error=error,
            )
        )
        progress(number + 1, len(sites))
    return Sensitivity(
        rows=len(rows),
        together=together,
        values=tuple(sorted(measured, key=lambda value: -value.output_error)),
    )


def write_switches_(
    model: ir.Model, plan: QuantPlan, scales: qdq.Scales | None = None
) -> list[list[Site]]:
    """Write a switch for every quantized value of a float graph, in place.

    Returns:
        The sites of each switch, in the order of the new graph input `switches` [N] bool.
    """
    graph = model.graph
    nodes = operators.nodes_of(graph)
    scales = {**qdq.shared_scales(nodes, plan), **(scales or {})}
    switches = ir.Value(name=SWITCHES, shape=ir.Shape([None]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(switches)
    sites: dict[_Key, list[Site]] = {}
    forms: dict[_Key, ir.Value] = {}
    # Outputs last, as in `qdq.write`: until then all readers refer to the value by its own name.
    for site, quantizer in sorted(plan.quantized, key=lambda item: item[0].input == OUTPUT):
        node, key, is_output = nodes[site.node], (site.value, quantizer), site.input == OUTPUT
        if key in forms:
            node.replace_input_with(site.input, forms[key])
            sites[key].append(site)
            continue
        if quantizer.dynamic and quantizer.group is not None:
            # The runtime rounds these values, not the file.
            continue
        value = node.outputs[0] if is_output else operators.input_of(node, site.input)
        readers = list(value.uses()) if is_output else [(node, site.input)]
        scale = scales.get(site.value)
        added = _switch(
            graph, switches, len(sites), value, quantizer, scale, is_weight=site.is_weight
        )
        sites[key] = [site]
        (graph.insert_after if is_output else graph.insert_before)(node, added)
        if not is_output:
            forms[key] = added[-1].outputs[0]
        for reader, index in readers:
            reader.replace_input_with(index, added[-1].outputs[0])
    qdq.set_opset_(model, plan)
    return list(sites.values())


def _switch(
    graph: ir.Graph,
    switches: ir.Value,
    number: int,
    value: ir.Value,
    quantizer: Quantizer,
    scale: np.ndarray | None,
    *,
    is_weight: bool,
) -> list[ir.Node]:
    """Make the nodes switches[number] → If → the quantized form of a value, or the value."""
    chain = operators.Chain(graph, f"switch.{number}")
    index = operators.initializer(graph, f"{chain.stem}.index", number)
    on = chain.Gather("on", switches, index, dtype=ir.DataType.BOOL, axis=0)
    same = operators.make_node("Identity", [value], f"{chain.stem}.same")
    if is_weight:
        rounded = qdq.dequantized_weight(operators.constant_of(value), quantizer, scale).astype(
            np.float32
        )
        weight = operators.initializer(graph, f"{chain.stem}.weight", rounded)
        nodes = [operators.make_node("Identity", [weight], f"{chain.stem}.rounded")]
    elif quantizer.dynamic:
        first = qdq.make_dynamic(value, chain.stem)
        nodes = [
            first,
            operators.make_node("DequantizeLinear", first.outputs, f"{chain.stem}.dequantized"),
        ]
    else:
        nodes = qdq.make_pair(graph, chain.stem, value, quantizer)
    branches: dict[str, Any] = {
        "then_branch": ir.Graph([], [nodes[-1].outputs[0]], nodes=nodes, name=f"{chain.stem}.then"),
        "else_branch": ir.Graph([], [same.outputs[0]], nodes=[same], name=f"{chain.stem}.else"),
    }
    chain.If("value", on, **branches)
    return chain.nodes


def _run(
    session: Any, outputs: Sequence[str], feeds: list[dict[str, np.ndarray]], switches: np.ndarray
) -> np.ndarray:
    """Return the outputs of all rows as one vector. Per-token outputs of padding are left out."""
    results = []
    for batch in feeds:
        mask = batch["attention_mask"].astype(bool)
        for output in session.run(outputs, {**batch, SWITCHES: switches}):
            per_token = output.ndim >= 2 and output.shape[:2] == mask.shape
            numbers = output[mask] if per_token else output
            # A part of the logits over a vocabulary has the same mean error.
            results.append(numbers[..., :: max(1, numbers.shape[-1] // _LAST_AXIS)].reshape(-1))
    return np.concatenate(results).astype(np.float64)


def _error(outputs: np.ndarray, reference: np.ndarray) -> float:
    """Return the mean squared error relative to the variance of the reference."""
    return float(np.mean((outputs - reference) ** 2) / max(float(reference.var()), 1e-30))


def _signal_to_noise(
    site: Site,
    quantizer: Quantizer,
    statistics: Mapping[str, TensorStatistics],
    weights: Mapping[str, np.ndarray | None],
) -> float | None:
    """Return the signal-to-noise ratio of a value in dB; None for activations that are quantized dynamically."""
    weight = weights.get(site.value)
    if weight is not None:
        noise = float(np.mean((qdq.dequantized_weight(weight, quantizer) - weight) ** 2))
        return decibels(float(np.mean(weight.astype(np.float64) ** 2)), noise)
    if quantizer.dynamic or site.value not in statistics:
        return None
    return activation_snr(statistics[site.value], quantizer)


def activation_snr(statistics: TensorStatistics, quantizer: Quantizer) -> float:
    """Return the signal-to-noise ratio of a quantized activation in dB, computed from its histogram."""
    values, counts = statistics.points()
    noise = float(np.dot((values - qdq.rounded_activation(values, quantizer)) ** 2, counts))
    return decibels(float(np.dot(values**2, counts)), noise)


def decibels(signal: float, noise: float) -> float:
    """Return a ratio of powers in dB, at most 200.

    Example:
        >>> decibels(1.0, 0.001)
        30.0
    """
    if signal <= 0 or noise <= signal * 1e-20:
        return _EXACT_DB
    return float(10 * np.log10(signal / noise))
