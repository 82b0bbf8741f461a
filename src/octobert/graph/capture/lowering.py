"""Take fused operators apart: Gelu of opset 20, and those that ONNX Runtime's optimizer writes (`com.microsoft`).

Afterwards norms and linear layers have the same form, whichever tool wrote the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.operators import Chain


def lower_fused_(graph: ir.Graph) -> None:
    """Replace the fused operators in `FUSED` by plain ONNX, in place; others stay."""
    _lower_(
        graph,
        [node for node in graph if node.domain == operators.MICROSOFT and node.op_type != "Gelu"],
    )
    # After BiasGelu, which becomes one.
    _lower_(graph, [node for node in graph if node.op_type == "Gelu"])


def _lower_(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    for node in nodes:
        chain = Chain(graph, str(node.outputs[0].name))
        if node.op_type in FUSED:
            FUSED[node.op_type](node, chain)
        if chain.nodes:
            chain.replace_(node)


def order_gelu_(graph: ir.Graph) -> None:
    """Rewrite x * (0.5 * (1 + erf(…))), from torch's exporter, as (x * (1 + erf(…))) * 0.5, in place.

    ONNX Runtime fuses only the second form, together with the bias before it; the first stays six operators.
    """
    for erf in [node for node in graph if node.op_type == "Erf"]:
        readers = operators.below(erf.outputs[0], "Add", "Mul", "Mul")
        if not readers:
            continue
        plus, halved, outer = readers
        place, half = operators.other_input(halved, plus.outputs[0])
        other, x = operators.other_input(outer, halved.outputs[0])
        if operators.const_scalar(half) == 0.5:
            halved.replace_input_with(place, x)
            outer.replace_input_with(other, half)
            halved.outputs[0].shape = outer.outputs[0].shape


def _gelu(node: ir.Node, chain: Chain) -> None:
    """Write Gelu in a form that every runtime fuses.

    Exact: (x * (1 + erf(x / sqrt 2))) * 0.5. Approximate: 0.5 x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))).
    """
    x = node.inputs[0]

    def constant(key: str, number: float) -> ir.Value:
        return operators.shared_initializer(chain.graph, f"octobert.gelu.{key}", number)

    unit, half = constant("one", 1.0), constant("half", 0.5)
    if node.attributes.get_string("approximate", "none") == "tanh":
        cubic = chain.Mul(
            "cubic", chain.Pow("cube", x, constant("three", 3.0)), constant("cubic", 0.044715)
        )
        inner = chain.Mul(
            "scaled", chain.Add("inner", x, cubic), constant("root", (2.0 / np.pi) ** 0.5)
        )
        chain.Mul(
            "gelu", chain.Mul("half", x, half), chain.Add("add", chain.Tanh("tanh", inner), unit)
        )
    else:
        erf = chain.Erf("erf", chain.Div("div", x, constant("root_two", 2.0**0.5)))
        chain.Mul("gelu", chain.Mul("double", x, chain.Add("add", erf, unit)), half)


def _skip_norm(node: ir.Node, chain: Chain) -> None:
    """Outputs of the operator: norm(input + bias + skip), mean, inverse deviation, the sum."""
    x, skip, gamma, beta, bias = operators.inputs_of(node, 5)
    if bias is not None:
        x = chain.Add("biased", x, bias)
    total = chain.Add("sum", x, skip)
    chain.LayerNormalization(
        "norm", total, gamma, beta, axis=-1, epsilon=node.attributes.get_float("epsilon", 1e-12)
    )
    if len(node.outputs) > 3:
        ir.convenience.replace_all_uses_with(node.outputs[3], total)


def _bias_gelu(node: ir.Node, chain: Chain) -> None:
    chain.Gelu("plain", chain.Add("biased", *node.inputs))


def _fused_matmul(node: ir.Node, chain: Chain) -> None:
    """alpha · A B, where transA and transB swap the last two axes; operands that are not constant have rank four."""
    flags, operands = node.attributes, []
    if flags.get_int("transBatchA", 0) or flags.get_int("transBatchB", 0):
        return
    for value, flag in zip(node.inputs, ("transA", "transB"), strict=True):
        constant = operators.const_array(value)
        if not flags.get_int(flag, 0):
            operands.append(value)
        elif constant is not None:
            swapped = np.ascontiguousarray(constant.swapaxes(-1, -2))
            operands.append(operators.initializer(chain.graph, f"{chain.stem}.{flag}", swapped))
        else:
            operands.append(chain.Transpose(flag, value, perm=[0, 1, 3, 2]))
    product, alpha = chain.MatMul("product", *operands), flags.get_float("alpha", 1.0)
    if alpha != 1.0:
        chain.Mul(
            "scaled", product, operators.initializer(chain.graph, f"{chain.stem}.alpha", alpha)
        )


def _fused_gemm(node: ir.Node, chain: Chain) -> None:
    flags = node.attributes
    activation = flags.get_string("activation", "")
    if activation in ("Tanh", "Relu"):
        attributes: dict[str, Any] = {
            name: flags.get_float(name, 1.0) for name in ("alpha", "beta")
        }
        attributes |= {name: flags.get_int(name, 0) for name in ("transA", "transB")}
        getattr(chain, activation)("activation", chain.Gemm("gemm", *node.inputs, **attributes))


# Operator → what writes it in plain ONNX; nothing is written for a form that has none.
FUSED: dict[str, Callable[[ir.Node, Chain], None]] = {
    "SkipLayerNormalization": _skip_norm,
    "BiasGelu": _bias_gelu,
    "Gelu": _gelu,
    "FusedMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
}
