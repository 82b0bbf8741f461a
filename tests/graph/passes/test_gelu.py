"""GELU in primitive operators becomes one operator, whatever the order of its factors; anything else stays as it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
import pytest

from octobert.graph import operators, parity
from octobert.graph.passes import npu

OPSETS = {operators.MICROSOFT: 18, "": 20}
# Float32 products in another order, and ONNX Runtime's own kernel.
REORDERED = 1e-6
Multiply = Callable[[str, ir.Value, ir.Value], ir.Value]
Form = Callable[[Multiply, ir.Value, ir.Value, ir.Value], ir.Value]
# x, ½ and 1 + erf(x / √2), multiplied in two steps.
FORMS: dict[str, Form] = {
    "half last": lambda mul, x, half, e: mul("gelu", mul("inner", x, e), half),
    "x last": lambda mul, x, half, e: mul("gelu", x, mul("inner", e, half)),
    "half of x": lambda mul, x, half, e: mul("gelu", mul("inner", x, half), e),
}


def graph_of(
    form: Form,
    opset: int,
    *,
    divided: bool = True,
    swapped: bool = False,
    half: float = 0.5,
    also: str = "",
) -> ir.Model:
    """A graph of one GELU and its Cast before it.

    Args:
        form: how the three factors are multiplied.
        divided: x is divided by √2, not multiplied by √½.
        swapped: the operands of the products of computed values change places.
        half: what stands for ½.
        also: a value that is an output as well.
    """
    ids = ir.val("input_ids", dtype=ir.DataType.INT64, shape=ir.Shape(["batch", "sequence"]))
    graph = ir.Graph([ids], [], nodes=[], opset_imports={"": opset}, name="gelu")
    chain = operators.Chain(graph, "block")

    def number(name: str, value: float) -> ir.Value:
        return operators.initializer(graph, name, value)

    def mul(part: str, a: ir.Value, b: ir.Value) -> ir.Value:
        # Constants are second in a canonical graph.
        turn = swapped and operators.const_array(b) is None
        return chain.Mul(part, *((b, a) if turn else (a, b)))

    floats = chain.Cast("floats", ids, to=ir.DataType.FLOAT)
    x = chain.Sub("x", chain.Div("small", floats, number("many", 50.0)), number("middle", 1.0))
    root = number("root", math.sqrt(2) if divided else math.sqrt(0.5))
    scaled = (chain.Div if divided else chain.Mul)("scaled", x, root)
    e = chain.Add("plus", chain.Erf("erf", scaled), number("one", 1.0))
    result = form(mul, x, number("half", half), e)
    graph.extend(chain.nodes)
    graph.outputs.append(result)
    if also:
        graph.outputs.append(chain.values[f"block.{also}"])
    return ir.Model(graph, ir_version=operators.LEAST_IR_VERSION)


@pytest.mark.parametrize("domain", OPSETS)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_one_operator(
    form: str, divided: bool, swapped: bool, domain: str
) -> None:
    model = graph_of(FORMS[form], OPSETS[domain], divided=divided, swapped=swapped)
    batches = parity.sample_batches(model)
    before = parity.onnx_outputs(model, batches)
    assert npu.fuse_gelu_(model) == 1
    assert [node.op_type for node in model.graph] == ["Cast", "Div", "Sub", "Gelu"]
    gelu = model.graph[-1]
    assert gelu.domain == domain
    assert gelu.name == gelu.outputs[0].name == model.graph.outputs[0].name == "block.gelu"
    assert gelu.outputs[0].dtype == ir.DataType.FLOAT
    assert set(model.graph.opset_imports) == {"", domain}
    assert parity.largest_difference(parity.onnx_outputs(model, batches), before) <= REORDERED


@pytest.mark.parametrize("options", [{"half": 0.6}, {"also": "inner"}, {"also": "plus"}], ids=str)
def test_what_is_no_gelu_stays(options: dict) -> None:
    model = graph_of(FORMS["half last"], 20, **options)
    kinds = [node.op_type for node in model.graph]
    assert npu.fuse_gelu_(model) == 0
    assert [node.op_type for node in model.graph] == kinds
