"""ONNX Runtime's fused operators (`com.microsoft`) in a graph, written by onnxscript's rewriter and verified.

A canonical graph, float or with Q/DQ, gets MultiHeadAttention, SkipLayerNormalization, BiasGelu and Gelu where the rewriter
recognizes them; ONNX Runtime itself does not fuse the attention of current exporters when it opens a file. Q/DQ pairs stay
where they are: attention whose products are quantized is not fused. `docs/evidence/runtimes.md` compares rewriters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octobert.core.results import Parity
from octobert.graph import operators, parity

# Allowed relative difference where a float sum in another order rounds some values to the next integer. Measured: 2e-2 on
# twelve layers of random weights, 3e-7 on two. Graphs without their Q/DQ pairs are compared within `parity.TOLERANCE`.
ROUNDED = 5e-2


@dataclass(frozen=True)
class Fused:
    """A fused graph, how many of each fused operator it has, and the comparison with the original."""

    model: ir.Model
    counts: dict[str, int]
    parity: Parity


def fuse(model: ir.Model, batches: parity.Batches | None = None) -> Fused:
    """Return a copy of a graph with ONNX Runtime's fused operators.

    Args:
        model: a canonical graph, float or as `qdq.write` left it, with float32 where it is float.
        batches: feeds for the comparison; by default random token ids.

    Raises:
        ParityError: the fused graph computes something else.
        ModelError: the original or the fused graph does not run.
    """
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    fused, _ = optimize_for_ort(model.clone())
    counts = Counter(node.op_type for node in fused.graph if node.domain == operators.MICROSOFT)
    return Fused(
        fused,
        dict(sorted(counts.items())),
        check(fused, model, batches or parity.sample_batches(model)),
    )


def check(fused: ir.Model, unfused: ir.Model, batches: parity.Batches) -> Parity:
    """Verify that a fused graph computes what the original computes, with padding on the right and on the left.

    A float32 sum in another order can round an 8-bit value to the next integer, which changes what follows by whole scales.
    A graph with Q/DQ is therefore compared twice: as it is, within `ROUNDED`, and without its pairs, as a float graph.

    Args:
        batches: token ids and masks; each batch is run as it is and with its tokens in reverse order.

    Returns:
        The comparison without pairs, which has the tight tolerance.

    Raises:
        ParityError: the outputs differ by more than rounding.
        ModelError: a graph does not run.
    """
    mirrored = [
        {name: np.flip(array, axis=1).copy() for name, array in batch.items()} for batch in batches
    ]
    feeds = [*batches, *mirrored]
    if operators.quantizes_activations(unfused.graph):
        _compare(fused, unfused, feeds, ROUNDED)
        fused, unfused = _without_pairs(fused), _without_pairs(unfused)
    return _compare(
        fused,
        unfused,
        feeds,
        ROUNDED if operators.quantizes_activations(unfused.graph) else parity.TOLERANCE,
    )


def _compare(fused: ir.Model, unfused: ir.Model, feeds: parity.Batches, tolerance: float) -> Parity:
    # Without ONNX Runtime's own optimizations: its fused 8-bit products saturate on some CPUs.
    reference = parity.onnx_outputs(unfused, feeds, optimized=False)
    return parity.compare(
        fused,
        feeds,
        reference,
        "the graph it was made from",
        what="the fused graph",
        tolerance=tolerance,
        optimized=False,
    )


def _without_pairs(model: ir.Model) -> ir.Model:
    """Return a copy whose nodes read the input of each Q/DQ pair instead of its output."""
    copy = model.clone()
    for node in operators.of_type(copy.graph, "DequantizeLinear"):
        quantize = operators.producer(node.inputs[0], "QuantizeLinear")
        if quantize is not None:
            ir.convenience.replace_all_uses_with(
                node.outputs[0], operators.input_of(quantize, 0), replace_graph_outputs=True
            )
    operators.clean_(copy)
    return copy
