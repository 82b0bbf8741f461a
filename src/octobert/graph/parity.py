"""Compare a graph with its source: run both on the same inputs and take the largest difference.

Inputs are sentences of different lengths in padded batches, so that masks and dynamic axes are tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ParityError
from octobert.core.onnx_files import input_named, ports_of
from octobert.core.results import Parity
from octobert.core.session import Feeds
from octobert.graph import operators
from octobert.graph.capture import shapes

Batches = Sequence[Feeds]
# Relative. Two float32 implementations of an encoder round in another order; measured: 1e-6 on 6 to 24 layers.
TOLERANCE = 5e-5
# Of the noise of a graph: one rewriting rounds constants, and what it writes beside them, a few times. Answers that move by
# more than a hundredth are no measure of anything.
_ROUNDINGS, _LOOSEST = 4.0, 1e-2


def sample_batches(model: ir.Model) -> list[Feeds]:
    """Return batches of random token ids, in rows of several lengths with padding on the right, for use without texts.

    A graph of one static shape gets one batch of that shape.
    """
    names = [str(value.name) for value in model.graph.inputs]
    tables = [
        operators.constant_behind(n.inputs[0])
        for n in operators.of_type(model.graph, "Gather")
        if operators.input_of(n, 1).name == "input_ids"
    ]
    size = min((len(table) for table in tables if table is not None), default=100)
    generator, batches = np.random.default_rng(0), []
    shape = model.graph.inputs[0].shape
    fixed = shape.numpy() if shape is not None and shape.is_static() else None
    groups = ((12,), (9, 16, 3)) if fixed is None else (tuple(range(fixed[1], 0, -3))[: fixed[0]],)
    for lengths in groups:
        rows, width = fixed or (len(lengths), max(lengths))
        mask = np.arange(width) < np.resize(lengths, rows)[:, None]
        ids = np.where(mask, generator.integers(4, size, mask.shape), 0)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        batches.append({name: feeds[name].astype(np.int64) for name in names})
    return batches


def only(batch: Feeds, model: ir.Model) -> Feeds:
    """Return the feeds that are inputs of the graph."""
    return {str(v.name): batch[str(v.name)] for v in model.graph.inputs}


def onnx_outputs(
    model: ir.Model,
    batches: Batches,
    *,
    values: list[ir.Value] | None = None,
    optimized: bool = True,
) -> list[list[np.ndarray]]:
    """Return the outputs of an ONNX graph in onnxruntime, one list per batch; inputs are matched by name or usual alias.

    Args:
        values: that are outputs for it; None for those of the graph.
        optimized: let onnxruntime optimize the graph; otherwise it runs every node as written.

    Raises:
        ModelError: the graph does not run.
    """
    what = "the ONNX model does not run on batches of several lengths"
    fix = "export it with dynamic batch and sequence"
    with shapes.session_errors(what, fix=fix):
        session = shapes.open_session(model, values, optimized=optimized)
        ports = [
            (port, port.name if port.name in batches[0] else input_named(port.name))
            for port in ports_of(model).inputs
        ]
        return [
            session.run(
                None, {port.name: b[name].astype(port.dtype, copy=False) for port, name in ports}
            )
            for b in batches
        ]


def tolerance_of(model: ir.Model, compare: Callable[..., Parity]) -> float:
    """Return how far a rewritten graph may be apart: further than `TOLERANCE` where the graph itself loses more, as beside a
    channel whose values are so large that float32 has few digits for the others.

    Args:
        model: the graph. Of half of its constants the last digit is moved, in place: a rewriting rounds them.
        compare: `compare` with the outputs of the graph as reference.
    """
    generator = np.random.default_rng(0)
    for name, value in model.graph.initializers.items():
        array = operators.const_array(value)
        if array is not None and array.dtype == np.float32:
            # Towards zero, so that the lowest number of the type remains one.
            towards = np.where(generator.random(array.shape) < 0.5, array, np.float32(0))
            value.const_value = ir.tensor(np.nextafter(array, towards), name=name)
    noise = compare(model, tolerance=np.inf).largest_difference
    return float(np.clip(_ROUNDINGS * noise, TOLERANCE, _LOOSEST))


def compare(
    model: ir.Model,
    batches: Batches,
    reference: list[list[np.ndarray]],
    against: str,
    *,
    what: str = "the captured graph",
    fix: str = "please report this model",
    tolerance: float = TOLERANCE,
    optimized: bool = True,
    padded: bool = True,
) -> Parity:
    """Run a graph and compare its outputs with a reference; padding is left out.

    Args:
        batches: feeds, one dict per batch.
        reference: the expected outputs, one list per batch.
        against: what computed the reference, as the error names it.
        what: the graph, as the error names it.
        fix: what to do about a difference.
        tolerance: largest allowed difference, relative to the largest output or 1.
        optimized: as for `onnx_outputs`.
        padded: batches are padded as their `attention_mask` says.

    Raises:
        ParityError: the difference exceeds the tolerance, or the reference has numbers that are not finite.
    """
    results = onnx_outputs(model, batches, optimized=optimized)
    if padded:
        tokens = [feeds["attention_mask"].astype(bool) for feeds in batches]
        # Batches have several lengths: what is as long as each of them has an entry for each token.
        follows = [
            all(array.shape[:2] == mask.shape for array, mask in zip(arrays, tokens, strict=True))
            for arrays in zip(*results, strict=True)
        ]
        real = [[mask if each else ... for each in follows] for mask in tokens]
        results, reference = _picked(results, real), _picked(reference, real)
    worst = largest_difference(results, reference)
    sizes = tuple(next((a.shape[0], a.shape[1]) for a in f.values() if a.ndim > 1) for f in batches)
    if not worst <= tolerance:
        if not all(np.isfinite(array).all() for arrays in reference for array in arrays):
            raise ParityError(
                "the answers of the model are not finite numbers",
                where=against,
                got="NaN or infinity",
                fix="take a model whose sums do not overflow float32",
            )
        raise ParityError(
            f"{what} does not compute what {against} computes",
            got=f"a relative difference of {worst:.2e}",
            expected=f"at most {tolerance:g}",
            fix=fix,
        )
    return Parity(against=against, batches=sizes, largest_difference=worst, tolerance=tolerance)


def _picked(outputs: list[list[np.ndarray]], places: list[list[Any]]) -> list[list[np.ndarray]]:
    return [
        [a[place] for a, place in zip(*both, strict=True)]
        for both in zip(outputs, places, strict=True)
    ]


def largest_difference(results: list[list[np.ndarray]], reference: list[list[np.ndarray]]) -> float:
    """Return the largest difference of two runs, relative to the largest output or 1."""
    worst = 0.0
    for ours, theirs in zip(results, reference, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            apart = np.abs(np.subtract(a, b, dtype=np.float64)).max(initial=0.0)
            # np.maximum propagates NaN, which no tolerance accepts.
            worst = float(np.maximum(worst, apart / np.maximum(1.0, np.abs(b).max(initial=0.0))))
    return worst
