"""OpenVINO: the execution graph of its CPU plugin, with kernels, precisions and times, after transformations and fusion."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from statistics import median
from typing import Any

from octobert.core.errors import TargetError
from octobert.core.plan import middle_of
from octobert.core.profile import Kind, Operand, Product, Profile, split
from octobert.core.session import Feeds, SessionOptions
from octobert.inspection import places
from octobert.inspection.profilers import reason_in_file
from octobert.inspection.profilers.ort import fitting
from octobert.targets.runtimes import openvino as _openvino

_IDLE = frozenset(("Input", "Const", "Output", "Result", "Parameter", "Constant"))
_PRODUCTS = frozenset(("FullyConnected", "MatMul", "ScaledDotProductAttention", "MHA", "QKVProjection", "LLMMLP", "BrgemmCPU"))
_EIGHT = frozenset(("i8", "u8"))
_TYPES = {"f32": "f32", "bf16": "bf16", "f16": "f16", "i8": "int8", "u8": "int8"}
_INTEGERS = {"i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16"}
_FREE = Operand(dtype="8-bit", symmetric=True)
# A time is long beside its rounding from so many times that on.
_ROUNDINGS = 10
# What may stand between a product and the integers that it reads.
_MOVES = frozenset(("Multiply", "Subtract", "Convert", "Reshape", "Transpose", "Squeeze", "Unsqueeze"))


def profile(path: Path, feeds: Feeds, *, threads: int, warmup: int, runs: int, family: str | None) -> Profile:
    """Run a model and take its execution graph.

    Raises:
        TargetError: the runtime cannot open or run it.
        ModelError: the model reads what an encoder has no input for.
    """
    import openvino

    settings = {**_openvino.settings_of(SessionOptions(threads=threads)), "PERF_COUNT": True}
    try:
        model = openvino.Core().read_model(str(path))
        compiled: Any = openvino.Core().compile_model(model, "CPU", settings)
        known = fitting(feeds, [port.get_any_name() for port in compiled.inputs], path)
        request = compiled.create_infer_request()
        whole, sums = [], []
        for number in range(warmup + runs):
            begun = time.perf_counter()
            request.infer(known)
            whole.append((time.perf_counter() - begun) * 1000)
            sums.append({name: mean * (number + 1) for name, mean in _times(compiled).items()})
    except RuntimeError as error:
        got = str(error).strip().splitlines()[-1][:300]
        raise TargetError("openvino cannot compile and run the model", where=str(path), got=got) from error
    found = places.operators(_ran(compiled, model, _least(sums, warmup)), family)
    # Milliseconds of whole runs, and the microseconds that their operators added to the sums.
    added = [sum(after.values()) - sum(before.values()) for before, after in itertools.pairwise(sums[warmup - 1 :])]
    between_ms = max(0.0, min(run - us / 1000 for run, us in zip(whole[warmup:], added, strict=True)))
    precision = _TYPES.get(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(), "unknown")
    return Profile(precision=precision, runs=runs, split=split(found, between_ms), operators=found)


def _facts(node: Any) -> dict[str, str]:
    return {key: str(held.value if hasattr(held, "value") else held) for key, held in node.get_rt_info().items()}


def _times(compiled: Any) -> dict[str, int]:
    """Microseconds of every operator that ran, the mean of all runs so far."""
    facts = {n.get_friendly_name(): _facts(n).get("execTimeMcs", "") for n in compiled.get_runtime_model().get_ordered_ops()}
    return {name: int(text) for name, text in facts.items() if text.isdigit()}


def _least(sums: list[dict[str, int]], warmup: int) -> dict[str, float]:
    """Operator → the least of its microseconds; for short ones the median.

    OpenVINO tells the mean of all runs so far, in whole microseconds; times of single runs are differences of its sums.
    Roundings make one of them wrong by up to as many microseconds as there were runs, which cancels out in a median.
    """
    found = {}
    for name in sums[-1]:
        times = [after.get(name, 0) - before.get(name, 0) for before, after in itertools.pairwise(sums[warmup - 1 :])]
        exact = min(times) > _ROUNDINGS * len(sums)
        found[name] = max(0.0, float(min(times) if exact else median(times)))
    return found


def _ran(compiled: Any, model: Any, times: dict[str, float]) -> list[places.Ran]:
    """Every operator that ran, in order. Those that only pass 8 bits on to float, or back, are conversions."""
    nodes = compiled.get_runtime_model().get_ordered_ops()
    matmuls = {node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "MatMul"}
    facts = {node.get_friendly_name(): _facts(node) for node in nodes}
    ran: dict[str, places.Ran] = {}
    for node in sorted(nodes, key=lambda one: int(facts[one.get_friendly_name()].get("execOrder", 0))):
        name = node.get_friendly_name()
        own = facts[name]
        if own.get("layerType") in _IDLE or name not in times:
            continue
        reads = tuple(port.get_source_output().get_node().get_friendly_name() for port in node.inputs())
        covers = tuple(one for one in own.get("originalLayersNames", "").split(",") if one) or (name,)
        kind = _kind(own, covers, matmuls, [ran[r] for r in reads if r in ran])
        taken, given = own.get("runtimePrecision", ""), own.get("outputPrecisions", "").split(",")
        inputs = {
            p for r in reads if facts[r].get("layerType") != "Const" for p in facts[r].get("outputPrecisions", "").split(",")
        }
        ran[name] = places.Ran(
            name=name,
            type=own.get("layerType", ""),
            kernel=own.get("primitiveType", ""),
            kind=kind,
            precision=_precision(kind, taken, inputs, set(given)),
            integer=kind == "product" and taken in _EIGHT,
            ms=times[name] / 1000,
            covers=covers,
            reads=reads,
        )
    return list(ran.values())


def _kind(facts: dict[str, str], covers: tuple[str, ...], matmuls: set[str], sources: list[places.Ran]) -> Kind:
    op_type, given = facts.get("layerType", ""), facts.get("outputPrecisions", "")
    if op_type in _PRODUCTS or (op_type == "Subgraph" and not matmuls.isdisjoint(covers)):
        return "product"
    eight = (facts.get("runtimePrecision") in _EIGHT, given in _EIGHT)
    if op_type == "FakeQuantize" or (op_type in ("Convert", "Reorder") and eight[0] != eight[1]):
        # Rows of an embedding table are dequantized by design; that is no boundary between two operators.
        return "other" if any(".rows" in one for one in covers) else "conversion"
    # Zero point and scale behind a Convert from 8 bits.
    behind = any(s.kind == "conversion" and s.type == "Convert" for s in sources)
    return "conversion" if op_type == "Eltwise" and behind and given not in _EIGHT else "other"


def _precision(kind: Kind, taken: str, inputs: set[str], given: set[str]) -> str:
    """A product's precision is that of its operands; another operator's, that of all it takes and gives."""
    seen = inputs if kind == "product" else inputs | given | {taken}
    known = {_TYPES[one] for one in seen if one in _TYPES}
    if kind == "product" and taken in _EIGHT:
        return "int8"
    return known.pop() if len(known) == 1 else "mixed" if known else taken


def products(path: Path) -> tuple[Product, ...]:
    """The matrix products of a model that have an 8-bit or 16-bit input, as OpenVINO reads them from an IR or an ONNX file."""
    import openvino

    found = []
    for node in openvino.Core().read_model(str(path)).get_ordered_ops():
        if node.get_type_name() == "MatMul":
            left, right = (_operand(port.get_source_output().get_node()) for port in node.inputs())
            if left[0] or right[0]:
                readers = tuple(port.get_node().get_friendly_name() for port in node.output(0).get_target_inputs())
                inputs = (left[0], right[0])
                found.append(Product(name=node.get_friendly_name(), readers=readers, inputs=inputs, weight=right[1]))
    return tuple(found)


def _operand(node: Any) -> tuple[Operand | None, bool]:
    """(type of the integers that an input comes from, whether they are constants)."""
    zero: Any = None
    while True:
        held = _INTEGERS.get(node.get_output_element_type(0).get_type_name())
        constant = node.get_type_name() == "Constant"
        if held:
            return Operand(dtype=held, symmetric=_is_middle(zero, held)), constant
        if node.get_type_name() not in _MOVES:
            # In IRs of other tools a FakeQuantize alone may stand for the integers, whose type OpenVINO then chooses.
            return (_FREE if node.get_type_name() == "FakeQuantize" else None), constant
        if node.get_type_name() == "Subtract":
            zero = node.input_value(1).get_node()
        node = node.input_value(0).get_node()


def _is_middle(zero: Any, dtype: str) -> bool:
    """Whether a zero point lies in the middle of its type."""
    middle = middle_of(dtype)
    while zero is not None and zero.get_type_name() != "Constant":
        zero = zero.input_value(0).get_node()
    return middle == 0 if zero is None else bool((zero.data == middle).all())


def why(product: Product, features: frozenset[str]) -> str | None:
    """Why OpenVINO computes a product in float, as far as the file shows it."""
    left, right = product.inputs
    if left is None or right is None or reason_in_file(product) is not None:
        return reason_in_file(product)
    if not product.weight and not (left.symmetric and right.symmetric):
        return "they multiply two activations that are not symmetric, which OpenVINO's attention kernel computes in float"
    return None
