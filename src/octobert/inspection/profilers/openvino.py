"""OpenVINO: the execution graph of its CPU plugin after transformations and fusion, with kernels, precisions and times."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from statistics import median
from typing import Any

from octobert.core.errors import TargetError, reason
from octobert.core.plan import middle_of
from octobert.core.profile import Kind, Operand, Operator, Product, Profile, split
from octobert.core.session import Feeds, SessionOptions
from octobert.inspection.profilers import Profiler, placed, reason_in_file
from octobert.targets.runtimes import openvino as _openvino
from octobert.targets.shared import ir_files, sessions

_IDLE = {"Input", "Const", "Output", "Result", "Parameter", "Constant"}
_PRODUCTS = {
    "FullyConnected",
    "MatMul",
    "ScaledDotProductAttention",
    "MHA",
    "QKVProjection",
    "LLMMLP",
    "BrgemmCPU",
}
_EIGHT = {"i8", "u8"}
_TYPES = {"f32": "f32", "bf16": "bf16", "f16": "f16", "i8": "int8", "u8": "int8"}
_INTEGERS = {"i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16"}
_FREE = Operand(dtype="8-bit", symmetric=True)
# Times above this multiple of their rounding error are taken as exact.
_ROUNDINGS = 10
# Operators that may be between a product and the integers that it reads.
_MOVES = {"Multiply", "Subtract", "Convert", "Reshape", "Transpose", "Squeeze", "Unsqueeze"}


class OpenvinoProfiler(Profiler):
    """The counters of OpenVINO's CPU plugin."""

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
        """Run a model and read its execution graph; see `Profiler.profile`."""
        try:
            core = _openvino.new_core()
            model = ir_files.model_at(core, path)
            settings = {
                **_openvino.settings_of(options, ir_files.group_of(model)),
                "PERF_COUNT": True,
            }
            compiled: Any = core.compile_model(model, "CPU", settings)
            inputs = sessions.Inputs(
                [ir_files.port_of(port) for port in model.inputs], path
            ).model_feeds(feeds)
            request = compiled.create_infer_request()
            whole, sums = [], []
            for number in range(warmup + runs):
                started = time.perf_counter()
                request.infer(dict(enumerate(inputs.values())))
                whole.append((time.perf_counter() - started) * 1000)
                sums.append({name: mean * (number + 1) for name, mean in _times(compiled).items()})
        except RuntimeError as error:
            raise TargetError(
                "openvino cannot compile and run the model", where=str(path), got=reason(error, -1)
            ) from error
        operators = placed(_ran(compiled, model, _least(sums, warmup)), family)
        # Milliseconds of whole runs, and the microseconds that their operators added to the sums.
        added = [
            sum(after.values()) - sum(before.values())
            for before, after in itertools.pairwise(sums[warmup - 1 :])
        ]
        between_ms = max(
            0.0, min(run - us / 1000 for run, us in zip(whole[warmup:], added, strict=True))
        )
        precision = _TYPES.get(
            compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(), "unknown"
        )
        return Profile(
            precision=precision, runs=runs, split=split(operators, between_ms), operators=operators
        )

    def products(self, path: Path) -> tuple[Product, ...]:
        """Return the matrix products of an IR or ONNX file that have an 8-bit or 16-bit input."""
        import openvino

        products = []
        for node in openvino.Core().read_model(str(path)).get_ordered_ops():
            if node.get_type_name() == "MatMul":
                left, right = (
                    _operand(port.get_source_output().get_node()) for port in node.inputs()
                )
                if left[0] or right[0]:
                    readers = tuple(
                        sorted(
                            port.get_node().get_friendly_name()
                            for port in node.output(0).get_target_inputs()
                        )
                    )
                    inputs = (left[0], right[0])
                    products.append(
                        Product(
                            name=node.get_friendly_name(),
                            readers=readers,
                            inputs=inputs,
                            weight=right[1],
                        )
                    )
        return tuple(products)

    def why(self, product: Product, features: frozenset[str]) -> str | None:
        """Return why OpenVINO computes a product in float, or None if the file does not show it."""
        left, right = product.inputs
        if left is None or right is None or reason_in_file(product) is not None:
            return reason_in_file(product)
        if not product.weight and not (left.symmetric and right.symmetric):
            return "they multiply two activations that are not symmetric, which OpenVINO's attention kernel computes in float"
        return None


def _facts(node: Any) -> dict[str, str]:
    return {
        key: str(held.value if hasattr(held, "value") else held)
        for key, held in node.get_rt_info().items()
    }


def _times(compiled: Any) -> dict[str, int]:
    """Return the microseconds of every operator that ran: the mean of all runs so far."""
    facts = {
        n.get_friendly_name(): _facts(n).get("execTimeMcs", "")
        for n in compiled.get_runtime_model().get_ordered_ops()
    }
    return {name: int(text) for name, text in facts.items() if text.isdigit()}


def _least(sums: list[dict[str, int]], warmup: int) -> dict[str, float]:
    """Return operator → its fastest run in microseconds, or the median for short operators.

    OpenVINO reports the mean of all runs so far in whole microseconds. Times of single runs are differences of the sums.
    Rounding makes a difference wrong by up to as many microseconds as there were runs, which cancels out in a median.
    """
    least = {}
    for name in sums[-1]:
        times = [
            after.get(name, 0) - before.get(name, 0)
            for before, after in itertools.pairwise(sums[warmup - 1 :])
        ]
        exact = min(times) > _ROUNDINGS * len(sums)
        least[name] = max(0.0, float(min(times) if exact else median(times)))
    return least


def _ran(
    compiled: Any, model: Any, times: dict[str, float]
) -> list[tuple[Operator, tuple[str, ...]]]:
    """Return every operator that ran, in order. Operators that only convert between 8 bits and float are conversions."""
    nodes = compiled.get_runtime_model().get_ordered_ops()
    matmuls = {
        node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "MatMul"
    }
    facts = {node.get_friendly_name(): _facts(node) for node in nodes}
    ran: dict[str, tuple[Operator, tuple[str, ...]]] = {}
    # An operator that took no whole microsecond has no time. What reads it reads what it reads.
    left_out: dict[str, tuple[str, ...]] = {}
    for node in sorted(
        nodes, key=lambda node: int(facts[node.get_friendly_name()].get("execOrder", 0))
    ):
        name = node.get_friendly_name()
        node_facts = facts[name]
        reads = tuple(
            port.get_source_output().get_node().get_friendly_name() for port in node.inputs()
        )
        through = tuple(source for read in reads for source in left_out.get(read, (read,)))
        if node_facts.get("layerType") in _IDLE or name not in times:
            left_out[name] = through
            continue
        covers = tuple(
            node for node in node_facts.get("originalLayersNames", "").split(",") if node
        ) or (name,)
        kind = _kind(node_facts, covers, matmuls, [ran[r][0] for r in reads if r in ran])
        runtime_precision, output_precisions = (
            node_facts.get("runtimePrecision", ""),
            node_facts.get("outputPrecisions", "").split(","),
        )
        inputs = {
            p
            for r in reads
            if facts[r].get("layerType") != "Const"
            for p in facts[r].get("outputPrecisions", "").split(",")
        }
        operator = Operator(
            name=name,
            type=node_facts.get("layerType", ""),
            kernel=node_facts.get("primitiveType", ""),
            kind=kind,
            precision=_precision(kind, runtime_precision, inputs, set(output_precisions)),
            integer=kind == "product" and runtime_precision in _EIGHT,
            ms=times[name] / 1000,
            layer=None,
            part="",
            covers=covers,
        )
        ran[name] = operator, through
    return list(ran.values())


def _kind(
    facts: dict[str, str], covers: tuple[str, ...], matmuls: set[str], sources: list[Operator]
) -> Kind:
    op_type, output_precision = facts.get("layerType", ""), facts.get("outputPrecisions", "")
    if op_type in _PRODUCTS or (op_type == "Subgraph" and not matmuls.isdisjoint(covers)):
        return "product"
    eight = (facts.get("runtimePrecision") in _EIGHT, output_precision in _EIGHT)
    if op_type == "FakeQuantize" or (op_type in ("Convert", "Reorder") and eight[0] != eight[1]):
        # Rows of an embedding table are dequantized by design. That is not a conversion between two operators.
        return "other" if any(".rows" in name for name in covers) else "conversion"
    # Zero point and scale after a Convert from 8 bits.
    behind = any(s.kind == "conversion" and s.type == "Convert" for s in sources)
    return (
        "conversion"
        if op_type == "Eltwise" and behind and output_precision not in _EIGHT
        else "other"
    )


def _precision(
    kind: Kind, runtime_precision: str, inputs: set[str], output_precisions: set[str]
) -> str:
    """Return the precision of a product's operands, or of all inputs and outputs of another operator."""
    seen = inputs if kind == "product" else inputs | output_precisions | {runtime_precision}
    precisions = {_TYPES[word] for word in seen if word in _TYPES}
    if kind == "product" and runtime_precision in _EIGHT:
        return "int8"
    return (
        precisions.pop() if len(precisions) == 1 else "mixed" if precisions else runtime_precision
    )


def _operand(node: Any) -> tuple[Operand | None, bool]:
    """Return (integer type behind an input or None, whether the integers are constants)."""
    zero: Any = None
    while True:
        dtype = _INTEGERS.get(node.get_output_element_type(0).get_type_name())
        constant = node.get_type_name() == "Constant"
        if dtype:
            return Operand(dtype=dtype, symmetric=_is_middle(zero, dtype)), constant
        if node.get_type_name() not in _MOVES:
            # IRs of other tools may have a FakeQuantize only. OpenVINO chooses the integer type then.
            return (_FREE if node.get_type_name() == "FakeQuantize" else None), constant
        if node.get_type_name() == "Subtract":
            zero = node.input_value(1).get_node()
        node = node.input_value(0).get_node()


def _is_middle(zero: Any, dtype: str) -> bool:
    """Return whether a zero point lies in the middle of its type."""
    middle = middle_of(dtype)
    while zero is not None and zero.get_type_name() != "Constant":
        zero = zero.input_value(0).get_node()
    return middle == 0 if zero is None else bool((zero.data == middle).all())
