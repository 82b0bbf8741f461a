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

import onnx_ir as ir

from octobert.core import environment
from octobert.core.errors import ModelError, TargetError, reason
from octobert.core.onnx_files import read_onnx
from octobert.core.plan import middle_of
from octobert.core.profile import Kind, Operand, Operator, Product, Profile, split
from octobert.core.session import Feeds, SessionOptions
from octobert.graph import operators
from octobert.inspection.profilers import Profiler, placed, reason_in_file
from octobert.targets.runtimes import ort as _ort
from octobert.targets.shared import sessions

# Kernels that compute in integers (contrib_ops and core operators of the CPU provider).
_INTEGER_PRODUCTS = {
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QLinearMatMul",
    "MatMulInteger",
    "QGemm",
    "QAttention",
}
# Integer operators in a file → indices of the second operand, and of the zero points of both.
_OPERANDS = {"QLinearMatMul": (3, 2, 5), "MatMulIntegerToFloat": (1, 4, 5)}
# An operand whose type a file does not say.
_ASYMMETRIC = Operand(dtype="uint8", symmetric=False)
_FLOAT_PRODUCTS = {
    "MatMul",
    "FusedMatMul",
    "Gemm",
    "FusedGemm",
    "Attention",
    "MultiHeadAttention",
    "MatMulNBits",
}
_CONVERSIONS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
# `accuracy_level` of MatMulNBits at which activations are rounded to int8 for the product.
_INT8_LEVEL = 4
_KERNEL_TIME = "_kernel_time"
# Fusions put this around the name of the first node that they fuse.
_FUSED = re.compile(r"^fused |/\w*Fusion\w*/?$")
_TYPES = {"float": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}
# Operators between a value and its dequantization that move numbers without changing them.
_MOVES = {
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Identity",
    "Gather",
    "Slice",
    "Split",
}


class OrtProfiler(Profiler):
    """ONNX Runtime's own profiler, on the CPU."""

    def profile(
        self,
        path: Path,
        feeds: Feeds,
        options: SessionOptions,
        *,
        warmup: int,
        runs: int,
        family: str | None,
    ) -> Profile:
        """Run a model under the profiler; see `Profiler.profile`."""
        import onnxruntime as ort

        with tempfile.TemporaryDirectory() as folder:
            settings = ort.SessionOptions()
            settings.log_severity_level = 3
            settings.intra_op_num_threads = options.threads or environment.thread_limit()
            _ort.set_options_(settings, options.entries.options)
            settings.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
            settings.enable_profiling, settings.profile_file_prefix = (
                True,
                str(Path(folder, "profile")),
            )
            try:
                session = ort.InferenceSession(
                    str(path), settings, providers=["CPUExecutionProvider"]
                )
                inputs = sessions.Inputs(
                    [_ort.port_of(entry) for entry in session.get_inputs()], path
                ).model_feeds(feeds)
                for _ in range(warmup + runs):
                    session.run(None, inputs)
                events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
            except ModelError:
                raise
            except Exception as error:  # onnxruntime has no public base class for its errors
                raise TargetError(
                    "onnxruntime cannot open and run the model",
                    where=str(path),
                    got=reason(error, -1),
                ) from error
            nodes = {
                node.name: node
                for node in ir.load(settings.optimized_model_filepath).graph.all_nodes()
            }
        whole = [e for e in events if e["name"] == "model_run"][warmup:]
        times = [
            e
            for e in events
            if e.get("cat") == "Node"
            and e["name"].endswith(_KERNEL_TIME)
            and e["ts"] >= whole[0]["ts"]
            # Its time is that of the operators in its branch.
            and e["args"].get("op_name") != "If"
        ]
        ran = placed(_ran(nodes, times), family)
        between = [
            e["dur"] - sum(n["dur"] for n in times if 0 <= n["ts"] - e["ts"] <= e["dur"])
            for e in whole
        ]
        return Profile(
            precision="f32",
            runs=runs,
            split=split(ran, max(0.0, min(between) / 1000)),
            operators=ran,
        )

    def products(self, path: Path) -> tuple[Product, ...]:
        """Return the matrix products of an ONNX file that have an 8-bit or 16-bit input."""
        products: list[Product] = []
        # Product → the 8-bit value of its first input.
        sources: dict[str, ir.Value | None] = {}
        for node in read_onnx(path).graph:
            facts: dict[str, Any] = {}
            if node.op_type == "MatMulInteger":
                weight = node.inputs[1]
                constant = weight is not None and weight.is_initializer()
                integers = Operand(dtype=_dtype(weight) if constant else "int8", symmetric=True)
                dynamic = operators.producer(node.inputs[0], "DynamicQuantizeLinear") is not None
                facts = {"inputs": (_ASYMMETRIC, integers), "dynamic": dynamic, "weight": constant}
            elif node.op_type in _OPERANDS:
                second, *zeros = _OPERANDS[node.op_type]
                weight = node.inputs[second]
                pair: tuple[Operand | None, ...] = tuple(
                    _by_zero_point(node, zero, _ASYMMETRIC) for zero in zeros
                )
                facts = {"inputs": pair, "weight": weight is not None and weight.is_initializer()}
            elif node.op_type in ("MatMul", "Gemm"):
                pair = tuple(_operand(value) for value in node.inputs[:2])
                dequantize = operators.producer(node.inputs[0], "DequantizeLinear")
                if dequantize is not None:
                    sources[node.name or ""] = dequantize.inputs[0]
                if any(pair):
                    facts = {"inputs": pair, "weight": _is_constant(node.inputs[1])}
            if facts:
                readers = tuple(
                    reader.name or "" for reader in operators.consumers(node.outputs[0])
                )
                products.append(Product(name=node.name or "", readers=readers, **facts))
        counts = Counter(sources.values())
        # Other products that read the same integers.
        siblings = {name: counts[source] - 1 for name, source in sources.items()}
        return tuple(
            product.replaced(siblings=siblings.get(product.name, 0)) for product in products
        )

    def why(self, product: Product, features: frozenset[str]) -> str | None:
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


def _ran(
    nodes: Mapping[str | None, ir.Node], events: list[dict[str, Any]]
) -> list[tuple[Operator, tuple[str, ...]]]:
    """Return every node once, in the order of the first run, with the names of the nodes that it reads."""
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
        integer |= (
            op_type == "MatMulNBits"
            and node is not None
            and node.attributes.get_int("accuracy_level", 0) == _INT8_LEVEL
        )
        operator = Operator(
            name=name,
            type=op_type,
            kind=_kind(op_type),
            precision="int8" if integer else _precision(facts),
            integer=integer,
            ms=min(times[name]) / 1000,
            layer=None,
            part="",
            covers=(
                _FUSED.sub("", name),
                *(str(value.name) for value in (node.outputs if node is not None else ())),
            ),
        )
        ran.append(
            (
                operator,
                tuple(
                    maker.name or "" for maker in (node.predecessors() if node is not None else ())
                ),
            )
        )
    return ran


def _kind(op_type: str) -> Kind:
    if op_type in _INTEGER_PRODUCTS or op_type in _FLOAT_PRODUCTS:
        return "product"
    return "conversion" if op_type in _CONVERSIONS else "other"


def _precision(facts: Mapping[str, Any]) -> str:
    """Return the precision of an operator's inputs and outputs; indices and shapes do not count."""
    types = [
        t
        for key in ("input_type_shape", "output_type_shape")
        for value in facts.get(key, ())
        for t in value
    ]
    precisions = {_TYPES[t] for t in types if t in _TYPES}
    return (
        precisions.pop()
        if len(precisions) == 1
        else "mixed"
        if precisions
        else (types or ["none"])[-1]
    )


def _operand(value: ir.Value | None) -> Operand | None:
    """Return the integer type behind an input, or None if no DequantizeLinear produces it."""
    node = operators.producer(value)
    while node is not None and node.op_type in _MOVES:
        node = operators.producer(node.inputs[0])
    if node is None or node.op_type != "DequantizeLinear":
        return None
    # Without a zero point it is 0; the type is that of the integers.
    integers = node.inputs[0]
    constant = integers is not None and integers.is_initializer()
    return _by_zero_point(
        node, 2, Operand(dtype=_dtype(integers) if constant else "uint8", symmetric=constant)
    )


def _by_zero_point(node: ir.Node, index: int, default: Operand) -> Operand:
    """Return the integer type of an input by its zero point, which is an input of the operator; `default` where it has none."""
    zero = operators.const_array(node.inputs[index]) if len(node.inputs) > index else None
    if zero is None:
        return default
    return Operand(
        dtype=str(zero.dtype), symmetric=bool((zero == middle_of(str(zero.dtype))).all())
    )


def _is_constant(value: ir.Value | None) -> bool:
    """Return whether a value depends on constants only."""
    if value is None or value.is_initializer():
        return True
    node = value.producer()
    return node is not None and all(map(_is_constant, node.inputs))


def _dtype(value: ir.Value | None) -> str:
    assert value is not None
    assert value.dtype is not None
    return str(value.dtype.numpy())
