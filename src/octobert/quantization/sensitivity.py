"""Sensitivity: the expected error of a model's outputs when one value is quantized, for every quantized value of a plan.

Rounding errors of elements are small, and hardly depend on each other. So the squared error of an output is the sum over the
elements of (derivative of the output by the element)² · (rounding error of the element)². One backward pass has the derivatives
by all values at once: of the sum of all outputs with random signs, whose squares have the right mean (the trace estimator of
Hutchinson). Rounding errors are those of the elements, with clipping. What it costs does not depend on the number of values.

Each value also gets its own signal-to-noise ratio. Errors of single values add up, so that a search can rank them, and a layer
that would make most of the error can stay in float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from octobert.core import budget
from octobert.core.errors import ModelError, reason
from octobert.core.plan import LIMITS, OUTPUT, Quantizer, QuantPlan, Site
from octobert.core.ranges import TensorStatistics
from octobert.core.results import Sensitivity, SiteSensitivity
from octobert.core.session import GRAPH_METADATA, read_outputs
from octobert.data.encoded import Encoded, feeds_of
from octobert.graph import operators, qdq
from octobert.quantization import observer, search

if TYPE_CHECKING:
    from torch import Generator, Tensor

# Signal-to-noise ratio of a value without error, whose ratio would be infinite.
_EXACT_DB = 200.0
# Bytes of a pair of tokens in a head: float32 scores, what softmax makes of them, and the derivatives of both.
_PAIR = 16
# Numbers of outputs whose variance says little, and the part of their mean square that it is at least taken for.
_FEW, _HARDLY = 16, 1e-3
# A unit stays in float whose expected error is more than `ALONE` of the variance of the outputs (for vectors of length 1 a
# cosine of 0.999), and more than `TIMES` the mean of the units that are left.
ALONE, TIMES = 2e-3, 3.0


@dataclass(frozen=True)
class _Form:
    """A quantized value as its readers get it.

    Args:
        site: the first that reads it.
        value: what the quantized readers read; of an embedding table the rows that were read.
        rounding: errors of a weight, in bfloat16, whose own errors average out; None for activations and embedding tables.
        signal: sum of squares of a weight.
        noise: that of its rounding errors.
    """

    site: Site
    quantizer: Quantizer
    value: ir.Value
    rounding: Tensor | None = None
    signal: float = 0.0
    noise: float = 0.0


def estimate(
    model: ir.Model,
    plan: QuantPlan,
    rows: Sequence[Encoded],
    pad_id: int,
    progress: Callable[[int, int], None],
    scales: qdq.Scales | None = None,
    seed: int = 0,
) -> Sensitivity:
    """Estimate the sensitivity of every quantized value.

    Args:
        model: the float graph. It is edited.
        plan: of one target.
        rows: calibration rows.
        pad_id: id of the padding token.
        progress: called with (rows done, rows in all).
        scales: name of a weight → the scale that a correction or training chose for it.
        seed: of the signs.

    Returns:
        The sensitivity; without values, and with the reason, where PyTorch cannot run the graph.
    """
    import torch

    from octobert.graph import torch_graph

    # Derivatives need what softmax reads and makes in all layers.
    layers = len(operators.of_type(model.graph, "Softmax"))
    pair = _PAIR * layers * observer.heads_of(model)
    rows = [row for row in rows if budget.fits(pair * len(row) ** 2)]
    if not rows:
        return _unknown("there is not enough memory for the derivatives of such long texts")
    names = [str(value.name) for value in model.graph.outputs]
    inputs = [str(value.name) for value in model.graph.inputs]
    one, forms = _write_forms_(model.graph, plan, scales)
    read = [names.index(name) for name in read_outputs(names)]
    errors = np.zeros(len(forms))
    signal, noise = (np.array([getattr(f, part) for f in forms]) for part in ("signal", "noise"))
    count, total, squares = 0, 0.0, 0.0
    generator = torch.Generator().manual_seed(seed)
    try:
        behind = [index for index, form in enumerate(forms) if form.rounding is None]
        module = torch_graph.to_torch(model, also=[forms[index].value for index in behind])
        for buffer, source in module.meta["initializers"].items():
            of = [
                (index, form.rounding)
                for index, form in enumerate(forms)
                if form.rounding is not None and form.site.value == source
            ]
            # What is behind a form depends on it or on a weight, and nothing else needs derivatives.
            if of or source == one:
                leaf = module.get_buffer(buffer).requires_grad_()
                leaf.register_post_accumulate_grad_hook(_adder(errors, of))  # type: ignore[no-untyped-call]
        for done, row in enumerate(rows):
            feeds = feeds_of([row], pad_id)
            results = _derived(
                module, [feeds[name] for name in inputs], len(names), read, generator
            )
            for output in (results[index].detach().double() for index in read):
                count += output.numel()
                total += float(output.sum())
                squares += float(output.square().sum())
            for index, value in zip(behind, results[len(names) :], strict=True):
                floats, rounding = _rounded(forms[index], value.detach().numpy())
                signal[index] += np.vdot(floats, floats)
                noise[index] += np.vdot(rounding, rounding)
                if value.grad is not None:
                    products = value.grad * torch.from_numpy(rounding)
                    # Tokens alike are rounded alike.
                    errors[index] += _power(products.sum(-2) if products.ndim > 1 else products)
            progress(done + 1, len(rows))
    except ModelError as error:
        return _unknown(f"{error.what} ({error.got})")
    except Exception as error:
        # A graph of any kind computes what no encoder does, and needs no estimate.
        if GRAPH_METADATA not in model.metadata_props:
            raise
        return _unknown(f"PyTorch cannot run the graph ({reason(error)})")
    # Modules of torch.fx refer to themselves: their weights would stay until cycles are collected.
    for buffer in dict(module.named_buffers()):
        delattr(module, buffer)
    if not np.isfinite(errors).all():
        return _unknown("derivatives of the outputs are not finite")
    # About the mean, unless outputs hardly vary, or are too few to tell.
    energy = squares - total**2 / max(count, 1) if count >= _FEW else squares
    relative = errors / max(energy, _HARDLY * squares, 1e-30)
    measured = [
        SiteSensitivity(
            value=form.site.value,
            role=form.site.role,
            part=form.site.part,
            module=form.site.module,
            layer=form.site.layer,
            # Sums depend on the number of threads in their last digits.
            signal_to_noise_db=round(decibels(signal[index], noise[index]), 2),
            output_error=float(f"{relative[index]:.3g}"),
        )
        for index, form in enumerate(forms)
    ]
    return Sensitivity(
        rows=len(rows),
        together=float(f"{relative.sum():.3g}"),
        values=tuple(sorted(measured, key=lambda value: (-value.output_error, value.value))),
    )


def _derived(
    module: Any,
    inputs: Sequence[np.ndarray],
    outputs: int,
    read: Sequence[int],
    generator: Generator,
) -> tuple[Tensor, ...]:
    """Return all results of a module for one row; those behind the outputs have the derivatives of these, with random signs.

    Args:
        outputs: how many results are outputs of the graph.
        read: the places of those whose error counts.

    Raises:
        ModelError: PyTorch cannot run it.
    """
    import torch

    try:
        results: tuple[Tensor, ...] = module(*map(torch.from_numpy, inputs))
        signed = torch.zeros(())
        for output in (results[index] for index in read if results[index].is_floating_point()):
            signs = torch.randint(0, 2, output.shape, generator=generator) * 2 - 1
            signed = signed + (output * signs).sum()
        for value in results[outputs:]:
            value.retain_grad()
        signed.backward()  # type: ignore[no-untyped-call]
        return results
    except RuntimeError as error:
        raise ModelError("PyTorch cannot run the graph", got=reason(error, 0)) from error


def _adder(errors: np.ndarray, of: Sequence[tuple[int, Tensor]]) -> Callable[[Tensor], None]:
    """Return what adds up the errors of a weight when its derivative is there: those of all weights would take as much memory
    as the model.

    Args:
        of: the places of its forms, and their rounding errors.
    """

    def add(weight: Tensor) -> None:
        assert weight.grad is not None
        for index, rounding in of:
            errors[index] += _power(weight.grad * rounding)
        weight.grad = None

    return add


def _unknown(why: str) -> Sensitivity:
    return Sensitivity(rows=0, together=0.0, values=(), unknown=why)


def of_part(plan: QuantPlan, other: QuantPlan, known: Sensitivity) -> Sensitivity | None:
    """Return the sensitivity of a plan whose values another plan of the same graph quantizes for the same readers.

    What a value costs does not depend on the others.

    Args:
        known: of the other plan.

    Returns:
        None where the plan has a value that the other one does not quantize, or quantizes otherwise.
    """
    readers = _readers(plan)
    if not known.values or not readers.items() <= _readers(other).items():
        return None
    values = tuple(value for value in known.values if value.value in readers)
    together = sum(value.output_error for value in values)
    return Sensitivity(rows=known.rows, together=float(f"{together:.3g}"), values=values)


def _readers(plan: QuantPlan) -> dict[str, frozenset[tuple[str, int, Quantizer]]]:
    """The quantized readers of each value of a plan."""
    found: dict[str, set[tuple[str, int, Quantizer]]] = {}
    for site, quantizer in plan.quantized:
        found.setdefault(site.value, set()).add((site.node, site.input, quantizer))
    return {value: frozenset(readers) for value, readers in found.items()}


def in_float(plan: QuantPlan, expected: Sensitivity) -> tuple[QuantPlan, Sensitivity]:
    """Return a plan whose worst units stay in float (`ALONE`, `TIMES`), and the sensitivity that names them."""
    units = search.units_of(plan)
    errors = search.unit_errors(units, expected)
    chosen: list[search.Unit] = []
    left = sum(errors.values())
    for unit in sorted(units, key=lambda unit: -errors[unit.name]):
        error = errors[unit.name]
        if error < ALONE or error * (len(units) - len(chosen)) < TIMES * left:
            break
        chosen.append(unit)
        left -= error
    if not chosen:
        return plan, expected
    kept = search.with_fallback(plan, chosen, None, "for the error that is expected of 8 bits")
    names = tuple(unit.name for unit in chosen)
    return kept, expected.replaced(fallback=names, left=left)


def _write_forms_(
    graph: ir.Graph, plan: QuantPlan, scales: qdq.Scales | None
) -> tuple[str, list[_Form]]:
    """Write a product with 1 for every quantized activation of a float graph, in place, for its quantized readers alone.

    Returns:
        The name of the 1, and the products and the weights.
    """
    import torch

    nodes = operators.nodes_of(graph)
    scales = {**qdq.shared_scales(nodes, plan), **(scales or {})}
    one = operators.initializer(graph, "sensitivity.one", np.float32(1))
    forms: dict[tuple[str, Quantizer, str | None], _Form] = {}
    # Outputs last, as in `qdq.write`: until then all readers refer to the value by its own name.
    for site, quantizer in sorted(plan.quantized, key=lambda item: item[0].input == OUTPUT):
        node = nodes[site.node]
        # Of a table only the rows that are read: its derivatives would be as large as it is.
        table = site.role == "embedding.weight"
        behind = table or site.input == OUTPUT
        key = site.value, quantizer, site.node if behind else None
        if key in forms:
            node.replace_input_with(site.input, forms[key].value)
            continue
        value = node.outputs[0] if behind else operators.input_of(node, site.input)
        if site.is_weight and not table:
            array = operators.constant_of(value)
            rounding = qdq.dequantized_weight(array, quantizer, scales.get(site.value))
            rounding -= array
            signal, noise = (float(np.vdot(numbers, numbers)) for numbers in (array, rounding))
            stored = torch.from_numpy(rounding).bfloat16()
            forms[key] = _Form(site, quantizer, value, stored, signal, noise)
            continue
        readers = list(value.uses()) if behind else [(node, site.input)]
        chain = operators.Chain(graph, f"sensitivity.{len(forms)}")
        form = chain.Mul("form", value, one)
        (graph.insert_after if behind else graph.insert_before)(node, chain.nodes)
        for reader, index in readers:
            reader.replace_input_with(index, form)
        forms[key] = _Form(site, quantizer, form)
    return str(one.name), list(forms.values())


def _rounded(form: _Form, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of an activation or of rows of a table, and their rounding errors."""
    quantizer = form.quantizer
    if form.site.is_weight:
        rows = value.reshape(-1, value.shape[-1])
        return value, (qdq.dequantized_weight(rows, quantizer) - rows).reshape(value.shape)
    if quantizer.dynamic:
        return value, _rounded_at_run_time(value, quantizer.group) - value
    return value, qdq.rounded_activation(value, quantizer) - value


def _power(numbers: Tensor) -> float:
    return float(numbers.square().sum())


def _rounded_at_run_time(value: np.ndarray, group: int | None) -> np.ndarray:
    """Return values [..., channels] with scales of their own: int8 per token and group of channels, or one for all in uint8."""
    if group is None:
        low, high = float(min(value.min(), 0)), float(max(value.max(), 0))
        whole = Quantizer(dtype="uint8", symmetric=False, low=low, high=high)
        return qdq.rounded_activation(value, whole)
    parts = np.split(value, range(group, value.shape[-1], group), axis=-1)
    highest = LIMITS["int8"][1]
    steps = [
        np.maximum(np.abs(part).max(axis=-1, keepdims=True) / highest, qdq.MIN_SCALE)
        for part in parts
    ]
    rounded = [np.rint(part / step) * step for part, step in zip(parts, steps, strict=True)]
    return np.concatenate(rounded, axis=-1)


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
