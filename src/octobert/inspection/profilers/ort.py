"""ONNX Runtime: its optimized graph, and the time of every node by its own profiler.

The profile has names, times and types of nodes. Their connections are read from the optimized graph, which the session writes.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octobert.core.errors import ModelError, TargetError, reason
from octobert.core.plan import middle_of
from octobert.core.profile import Kind, Operand, Product, Profile, split
from octobert.core.session import Feeds, SessionOptions
from octobert.inspection import places
from octobert.inspection.profilers import reason_in_file
from octobert.targets.runtimes import ort as _ort
from octobert.targets.shared import running

# Kernels that compute in integers (contrib_ops and core operators of the CPU provider).
_INTEGER_PRODUCTS = frozenset(
    ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul", "MatMulInteger", "QGemm", "QAttention")
)
# Integer operators in a file → indices of the second operand, and of the zero points of both.
_OPERANDS = {"QLinearMatMul": (3, 2, 5), "MatMulIntegerToFloat": (1, 4, 5)}
# An operand whose type a file does not say.
_ASYMMETRIC = Operand(dtype="uint8", symmetric=False)
_FLOAT_PRODUCTS = frozenset(("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "Attention", "MultiHeadAttention", "MatMulNBits"))
_CONVERSIONS = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
# `accuracy_level` of MatMulNBits at which activations are rounded to int8 for the product.
_INT8_LEVEL = 4
_KERNEL_TIME = "_kernel_time"
# Fusions put this around the name of the first node that they fuse.
_FUSED = re.compile(r"^fused |/\w*Fusion\w*/?$")
_TYPES = {"float": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}
# Operators between a value and its dequantization that move numbers without changing them.
_MOVES = frozenset(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Gather", "Slice", "Split"))


def profile(path: Path, feeds: Feeds, options: SessionOptions, *, warmup: int, runs: int, family: str | None) -> Profile:
    """Run a model under the profiler; see `Profiler.profile`."""
    import onnx
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        settings.intra_op_num_threads = options.threads
        _ort.set_entries_(settings, options.entries)
        settings.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        settings.enable_profiling, settings.profile_file_prefix = True, str(Path(folder, "profile"))
        try:
            session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
            inputs = running.Inputs([_ort.port_of(each) for each in session.get_inputs()], path).of(feeds)
            for _ in range(warmup + runs):
                session.run(None, inputs)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        except ModelError:
            raise
        except Exception as error:  # onnxruntime has no public base class for its errors
            raise TargetError("onnxruntime cannot open and run the model", where=str(path), got=reason(error, -1)) from error
        graph = onnx.load(settings.optimized_model_filepath, load_external_data=False).graph
    whole = [e for e in events if e["name"] == "model_run"][warmup:]
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_KERNEL_TIME) and e["ts"] >= whole[0]["ts"]]
    operators = places.operators(_ran(graph, nodes), family)
    between = [e["dur"] - sum(n["dur"] for n in nodes if 0 <= n["ts"] - e["ts"] <= e["dur"]) for e in whole]
    return Profile(precision="f32", runs=runs, split=split(operators, max(0.0, min(between) / 1000)), operators=operators)


def _ran(graph: Any, events: list[dict[str, Any]]) -> list[places.Ran]:
    """Return every node once, in the order of the first run."""
    nodes = {node.name: node for node in graph.node}
    makers = {output: node.name for node in graph.node for output in node.output}
    times: defaultdict[str, list[float]] = defaultdict(list)
    first: dict[str, dict[str, Any]] = {}
    for event in events:
        name = event["name"].removesuffix(_KERNEL_TIME)
        times[name].append(event["dur"])
        first.setdefault(name, event["args"])
    ran = []
    for name, facts in first.items():
        node, op_type = nodes.get(name), facts["op_name"]
        integer = op_type in _INTEGER_PRODUCTS or op_type.startswith(("QLinear", "QOrdered"))
        # Activations of this product are rounded to int8 too, if its attribute says so.
        levels = [a.i for a in node.attribute if a.name == "accuracy_level"] if op_type == "MatMulNBits" and node else []
        integer |= levels == [_INT8_LEVEL]
        ran.append(
            places.Ran(
                name=name,
                type=op_type,
                kernel="",
                kind=_kind(op_type),
                precision="int8" if integer else _precision(facts),
                integer=integer,
                ms=min(times[name]) / 1000,
                covers=(_FUSED.sub("", name), *(node.output if node is not None else ())),
                reads=tuple(makers[i] for i in (node.input if node is not None else ()) if i in makers),
            )
        )
    return ran


def _kind(op_type: str) -> Kind:
    if op_type in _INTEGER_PRODUCTS or op_type in _FLOAT_PRODUCTS:
        return "product"
    return "conversion" if op_type in _CONVERSIONS else "other"


def _precision(facts: Mapping[str, Any]) -> str:
    """Return the precision of an operator's inputs and outputs; indices and shapes do not count."""
    types = [t for key in ("input_type_shape", "output_type_shape") for value in facts.get(key, ()) for t in value]
    precisions = {_TYPES[t] for t in types if t in _TYPES}
    return precisions.pop() if len(precisions) == 1 else "mixed" if precisions else (types or ["none"])[-1]


def products(path: Path) -> tuple[Product, ...]:
    """Return the matrix products of an ONNX file that have an 8-bit or 16-bit input."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for node in graph.node:
        for value in node.input:
            readers[value].append(node.name)
    products_: list[Product] = []
    # Product → the 8-bit value of its first input.
    sources: dict[str, str] = {}
    for node in graph.node:
        names = {"name": node.name, "readers": tuple(readers[node.output[0]])}
        if node.op_type == "MatMulInteger":
            maker = makers.get(node.input[0])
            dynamic = maker is not None and maker.op_type == "DynamicQuantizeLinear"
            second = constants.get(node.input[1])
            weight = Operand(dtype=_dtype(second.data_type) if second is not None else "int8", symmetric=True)
            products_.append(Product(**names, inputs=(_ASYMMETRIC, weight), dynamic=dynamic, weight=second is not None))
        elif node.op_type in _OPERANDS:
            second, *zeros = _OPERANDS[node.op_type]
            left, right = (_by_zero_point(node, zero, constants, _ASYMMETRIC) for zero in zeros)
            products_.append(Product(**names, inputs=(left, right), weight=node.input[second] in constants))
        elif node.op_type in ("MatMul", "Gemm"):
            pair = (_operand(node.input[0], makers, constants), _operand(node.input[1], makers, constants))
            dequantize = makers.get(node.input[0])
            if dequantize is not None and dequantize.op_type == "DequantizeLinear":
                sources[node.name] = dequantize.input[0]
            if any(pair):
                products_.append(Product(**names, inputs=pair, weight=_is_constant(node.input[1], makers, constants)))
    counts = Counter(sources.values())
    # Other products that read the same integers.
    siblings = {name: counts[source] - 1 for name, source in sources.items()}
    return tuple(product.model_copy(update={"siblings": siblings.get(product.name, 0)}) for product in products_)


def _operand(value: str, makers: Mapping[str, Any], constants: Mapping[str, Any]) -> Operand | None:
    """Return the integer type behind an input, or None if no DequantizeLinear produces it."""
    node = makers.get(value)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    if node is None or node.op_type != "DequantizeLinear":
        return None
    # Without a zero point it is 0; the type is that of the integers.
    integers = constants.get(node.input[0])
    default = Operand(dtype="uint8" if integers is None else _dtype(integers.data_type), symmetric=integers is not None)
    return _by_zero_point(node, 2, constants, default)


def _by_zero_point(node: Any, index: int, constants: Mapping[str, Any], default: Operand) -> Operand:
    """Return the integer type of an input by its zero point, which is an input of the operator; `default` where it has none."""
    from onnx import numpy_helper

    zero = constants.get(node.input[index]) if len(node.input) > index else None
    if zero is None:
        return default
    array = numpy_helper.to_array(zero)
    return Operand(dtype=str(array.dtype), symmetric=bool((array == middle_of(str(array.dtype))).all()))


def _is_constant(value: str, makers: Mapping[str, Any], constants: Mapping[str, Any]) -> bool:
    """Whether a value depends on constants only."""
    if value in constants or not value:
        return True
    node = makers.get(value)
    return node is not None and all(_is_constant(name, makers, constants) for name in node.input)


def _dtype(number: int) -> str:
    import onnx

    return str(onnx.helper.tensor_dtype_to_np_dtype(number))


def why(product: Product, features: frozenset[str]) -> str | None:
    """Return why ONNX Runtime computes a product in float, or None if the file does not show it."""
    left, right = product.inputs
    if left is None or right is None or reason_in_file(product) is not None:
        return reason_in_file(product)
    if left.dtype == "int8" and "avx2" in features:
        takes = "ONNX Runtime on x86 computes only uint8 activations in integers"
        if product.siblings:
            return f"several of them read one int8 activation; {takes}, and converts int8 to uint8 for a single reader only"
        return f"their activations are int8, and {takes}"
    return None
