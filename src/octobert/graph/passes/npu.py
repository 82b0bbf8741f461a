"""Bring a graph into the form that compilers for NPUs take (OpenVINO's, QNN's, Vitis AI's).

`make_static_`: one batch size, one sequence length, and nothing that is computed from a shape. In: a canonical graph with
dynamic axes, float or quantized. Out: the same function at one size, with the shape of every value. Values that depend on
shapes alone (positions, masks of windows, targets of Reshape and Expand) become constants. Quantized weights stay quantized:
nothing is folded through QuantizeLinear or DequantizeLinear.

`matmul_add_to_gemm_`, after `make_static_`: linear layers as Gemm. MatMul over [in, out] and the Add of a bias become Reshape,
Gemm, Reshape. In a quantized graph a Reshape stands between two Q/DQ pairs with the same scale: every operator still reads a
DequantizeLinear and is read by a QuantizeLinear, as such compilers require. The second rounding changes nothing.

`fuse_gelu_`: GELU as one operator. It is found in primitive operators, x · ½(1 + erf(x / √2)) with factors in any order
(Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).

`pairs_`: 16-bit Q/DQ in ONNX Runtime's domain, for opsets before 21.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from onnx_ir.passes import common

from octobert.core.errors import ModelError
from octobert.core.onnx_files import INPUTS
from octobert.graph import operators
from octobert.graph.capture import shapes
from octobert.graph.passes import Pass, opset

_SHAPES = ("Shape", "Size")
# The last opset without 16-bit Quantize/DequantizeLinear; the other operators are the same as in opset 21.
OPSET = 20
# The first opset with Gelu.
_GELU_OPSET = 20
# Relative. Constants in the graph are float32, and exporters write them with more or fewer digits.
_SAME = 1e-4
_QUANT_TYPES = {
    ir.DataType.INT8: "QInt8",
    ir.DataType.UINT8: "QUInt8",
    ir.DataType.INT16: "QInt16",
    ir.DataType.UINT16: "QUInt16",
}


def make_static_(model: ir.Model, *, batch: int, sequence: int) -> int:
    """Give a graph the static shape of `batch` rows of `sequence` tokens, in place.

    Returns:
        The number of operators that are left.

    Raises:
        ModelError: an input has another static shape, the graph does not run at that size, or a shape depends on data.
    """
    graph = model.graph
    _set_inputs_(graph, batch, sequence)
    for node in graph:
        for value in node.outputs:
            value.shape = None
    _fold_(model, batch, sequence)
    # The pass omits large weights, which shape inference does not need. `_require_shapes` checks the result.
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    _require_shapes(graph)
    for node in graph:
        # Targets of Reshape without 0 and -1, which not every compiler supports.
        if node.op_type == "Reshape":
            shape = node.outputs[0].shape
            node.replace_input_with(
                1, operators.reshape_target(graph, shape.numpy() if shape is not None else ())
            )
            node.attributes.pop("allowzero", None)
    operators.clean_(model)
    return len(graph)


def _set_inputs_(graph: ir.Graph, batch: int, sequence: int) -> None:
    static = (batch, sequence)
    if not {str(value.name) for value in graph.inputs} <= {*INPUTS}:
        free = [
            value for value in graph.inputs if value.shape is None or not value.shape.is_static()
        ]
        if free:
            raise ModelError(
                "the target takes files of one shape, and an input has free axes",
                where=str(free[0].name),
                got=str(free[0].shape),
                expected="sizes of all axes",
                fix="fix them: task: {graph: {axes: {NAME: SIZE}}}, or export the graph with them",
            )
        return
    for value in graph.inputs:
        shape = value.shape
        if (
            shape is None
            or len(shape) != 2
            or any(isinstance(a, int) and a != b for a, b in zip(shape, static, strict=True))
        ):
            raise ModelError(
                "an input cannot have this static shape",
                where=str(value.name),
                got=str(shape),
                expected=f"[{batch}, {sequence}], or dynamic axes",
                fix="start from the graph with dynamic batch and sequence",
            )
        value.shape = ir.Shape(static)


def _fold_(model: ir.Model, batch: int, sequence: int) -> None:
    """Replace all values that depend on shapes and constants alone by constants."""
    static: dict[ir.Value, None] = {}
    for node in model.graph:
        is_static = all(v is None or v in static or v.const_value is not None for v in node.inputs)
        if node.op_type in _SHAPES or (is_static and node.op_type not in operators.PAIR):
            static.update(dict.fromkeys(node.outputs))
    what = f"the graph does not run on {batch} rows of {sequence} tokens"
    with shapes.session_errors(what, fix="choose a length within the model's limit"):
        shapes.fold_(model, static, static, "fixed", (batch, sequence))


def _require_shapes(graph: ir.Graph) -> None:
    for node in graph:
        for value in node.outputs:
            is_static = value.shape is not None and value.shape.is_static()
            if not is_static and (value.uses() or value in graph.outputs):
                raise ModelError(
                    "the shape of a value depends on data",
                    where=str(value.name),
                    got=f"{node.op_type} → {value.shape if value.shape is not None else 'no shape'}",
                    expected="a shape that follows from batch and sequence",
                    fix="remove the operator, whose output size depends on data",
                )


def matmul_add_to_gemm_(model: ir.Model) -> int:
    """Write linear layers with a bias as Gemm, in place; those without a bias stay MatMul.

    Returns:
        The number of Gemms.

    Raises:
        ModelError: a linear layer has a dynamic shape.
    """
    graph = model.graph
    # Value → its two-dimensional form, written once for all linear layers that read it.
    flat: dict[ir.Value, ir.Value] = {}
    count = 0
    for matmul in operators.of_type(graph, "MatMul"):
        weight, x = operators.constant_behind(matmul.inputs[1]), operators.input_of(matmul, 0)
        add = operators.only_reader(matmul.outputs[0], "Add")
        if weight is None or weight.ndim != 2 or add is None:
            continue
        bias = operators.other_input(add, matmul.outputs[0])[1]
        vector = operators.constant_behind(bias)
        channels_in, channels_out = weight.shape
        if vector is None or vector.shape != (channels_out,):
            continue
        if x.shape is None or not x.shape.is_static():
            raise ModelError(
                "a linear layer with a dynamic shape cannot become a Gemm",
                where=str(matmul.name),
                got=str(x.shape),
                expected="static shapes",
                fix="set static shapes first",
            )
        outer, y = x.shape.numpy()[:-1], add.outputs[0]
        rows = math.prod(outer)
        if len(outer) > 1 and x not in flat:
            chain = operators.Chain(graph, str(x.name))
            flat[x] = _in_rows(chain, x, (rows, channels_in))
            graph.insert_before(matmul, chain.nodes)
        chain = operators.Chain(graph, str(y.name))
        inputs = [flat.get(x, x), matmul.inputs[1], bias]
        result = chain.Gemm("gemm", *inputs, dtype=y.dtype, shape=(rows, channels_out))
        if len(outer) > 1:
            result = _out_of_rows(chain, result, y, (*outer, channels_out))
        ir.convenience.replace_nodes_and_values(
            graph, add, [matmul, add], chain.nodes, [y], [result]
        )
        count += 1
    return count


def _in_rows(chain: operators.Chain, x: ir.Value, sizes: tuple[int, int]) -> ir.Value:
    """Reshape [B, S, D] to [B·S, D]; a quantized value gets a second pair after the Reshape."""
    rows = _reshape(chain, x, sizes, "rows")
    pair = operators.above(x, "DequantizeLinear", "QuantizeLinear")
    return _pair(chain, rows, "rows", pair[1]) if pair else rows


def _out_of_rows(
    chain: operators.Chain, rows: ir.Value, y: ir.Value, sizes: tuple[int, ...]
) -> ir.Value:
    """Reshape [B·S, D] to [B, S, D]; a value that is quantized next gets another pair before the Reshape."""
    readers = operators.readers(y)
    if len(readers) == 1 and readers[0].op_type == "QuantizeLinear":
        rows = _pair(chain, rows, "gemm", readers[0])
    return _reshape(chain, rows, sizes, "shaped")


def _reshape(chain: operators.Chain, x: ir.Value, sizes: tuple[int, ...], part: str) -> ir.Value:
    return chain.Reshape(
        part, x, operators.reshape_target(chain.graph, sizes), dtype=x.dtype, shape=sizes
    )


def _pair(chain: operators.Chain, x: ir.Value, part: str, like: ir.Node) -> ir.Value:
    """Write a pair with the scale and zero point of the QuantizeLinear `like`."""
    integer, constants = like.outputs[0].dtype, like.inputs[1:]
    quantized = chain.QuantizeLinear(
        f"{part}.quantized", x, *constants, dtype=integer, shape=x.shape
    )
    return chain.DequantizeLinear(
        f"{part}.dequantized", quantized, *constants, dtype=x.dtype, shape=x.shape
    )


def pairs_(model: ir.Model) -> int:
    """Move all Q/DQ nodes to ONNX Runtime's domain if one of them has 16 bits, in place; return the number of nodes."""
    graph = model.graph
    if graph.opset_imports[""] <= OPSET:
        return 0
    nodes = [node for node in graph if node.op_type in operators.PAIR]
    for node in nodes:
        node.domain = operators.MICROSOFT
    graph.opset_imports[""] = OPSET
    graph.opset_imports.setdefault(operators.MICROSOFT, 1)
    for node in graph:
        node.version = None
    return len(nodes)


def pair_types(model: ir.Model) -> dict[str, str]:
    """Return the integer types of a graph, as onnxruntime's quantizer names them, or "none".

    Returns:
        `activation_dtype` and `weight_dtype` → the type that is most frequent.
    """
    types: dict[str, list[str]] = {"activation_dtype": [], "weight_dtype": []}
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            integers = operators.input_of(node, 0)
            if integers.dtype in _QUANT_TYPES:
                key = (
                    "activation_dtype"
                    if operators.const_array(integers) is None
                    else "weight_dtype"
                )
                types[key].append(_QUANT_TYPES[integers.dtype])
    return {key: max(names, key=names.count, default="none") for key, names in types.items()}


def fuse_own_gelu_(model: ir.Model) -> int:
    """Replace primitive GELUs by ONNX's own operator, in place, in the first opset that has it; return how many."""
    if model.graph.opset_imports[""] < _GELU_OPSET:
        opset.convert_(model, _GELU_OPSET)
    return fuse_gelu_(model)


def fuse_gelu_(model: ir.Model) -> int:
    """Replace primitive GELUs by one operator, ONNX's own from opset 20 on, in place; return how many."""
    graph, count = model.graph, 0
    domain = "" if graph.opset_imports[""] >= _GELU_OPSET else operators.MICROSOFT
    for erf in operators.of_type(graph, "Erf"):
        scaled = operators.producer(erf.inputs[0], "Div", "Mul")
        if scaled is None or not _is_constant(
            scaled.inputs[1], 2.0**0.5 if scaled.op_type == "Div" else 0.5**0.5
        ):
            continue
        x, last = scaled.inputs[0], _last(scaled.inputs[0], erf)
        if last is None:
            continue
        end = last.outputs[0]
        name, last.name, end.name = str(end.name), f"{last.name}.product", f"{end.name}.product"
        node = operators.make_node("Gelu", [x], name, dtype=end.dtype, shape=end.shape)
        node.domain = domain
        graph.insert_before(last, [node])
        ir.convenience.replace_all_uses_with(end, node.outputs[0], replace_graph_outputs=True)
        count += 1
    if count and domain:
        graph.opset_imports.setdefault(domain, 1)
    operators.clean_(model)
    return count


def _last(x: ir.Value | None, erf: ir.Node) -> ir.Node | None:
    """Return the product (1 + output of `erf`) · x · ½, or None."""
    node, missing = operators.readers(erf.outputs[0])[0], {"x", "half"}
    if node.op_type != "Add" or not _is_constant(node.inputs[1], 1.0):
        return None
    while missing:
        product = operators.only_reader(node.outputs[0], "Mul")
        factors = (
            _factors(operators.other_input(product, node.outputs[0])[1], x)
            if product is not None
            else set()
        )
        if product is None or not factors or not factors <= missing:
            return None
        node, missing = product, missing - factors
    return node


def _factors(value: ir.Value | None, x: ir.Value | None) -> set[str]:
    """Return which of x and ½ a value is the product of; an empty set for any other value."""
    if _is_constant(value, 0.5):
        return {"half"}
    if value is x:
        return {"x"}
    half_x = operators.producer(value, "Mul")
    halved = half_x is not None and half_x.inputs[0] is x and _is_constant(half_x.inputs[1], 0.5)
    return {"x", "half"} if halved else set()


def _is_constant(value: ir.Value | None, number: float) -> bool:
    scalar = operators.const_scalar(value)
    return scalar is not None and abs(scalar - number) <= _SAME * number


STATIC = Pass(
    make_static_,
    lambda form: (
        form.shape.model_dump(include={"batch", "sequence"}) if form.shape is not None else None
    ),
)
GEMM = Pass(matmul_add_to_gemm_)
GELU = Pass(fuse_gelu_)
OWN_GELU = Pass(fuse_own_gelu_)
PAIRS = Pass(pairs_)
