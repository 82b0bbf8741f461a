"""What ONNX Runtime does with the time of an 8-bit model on the CPU, and what other forms of its graph gain.

    python benchmarks/operators.py QDQ.onnx FLOAT.onnx [--shapes 1x16 1x128] [--rounds 60] [--table]

QDQ.onnx is the file of an `ort-cpu` package made with `format: qdq`, FLOAT.onnx the float model of the package. The forms:

    dynamic      quantize_dynamic of ONNX Runtime, defaults
    float, qdq   the two files
    biases       products as integer operators with their biases (`graph/passes/cpu.py`)
    attention    biases, and MultiHeadAttention over the float outputs of Q, K and V
    QAttention   biases, and QAttention, which computes the products of Q, K and V as well; not where Q reads another token

They run in turn, in an order that changes every round, on one thread. Printed are medians of the time that the thread computed,
which other programs on the machine change little. `--table` adds the operators of dynamic, qdq and biases with their shares.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from peers import ORT_DYNAMIC

from octobert.graph import operators
from octobert.graph.passes import cpu

TABLE = ("dynamic", "qdq", "biases")


def maker(value: ir.Value | None) -> ir.Node:
    node = operators.producer(value)
    assert node is not None
    return node


def attention(graph: ir.Graph) -> list[tuple[ir.Node, list[ir.Value], int, float]]:
    """Return (last Reshape, Q, K and V as [B, S, D], heads, scale) of every attention whose only mask is that of padding."""
    found = []
    for softmax in [node for node in graph if node.op_type == "Softmax"]:
        masked = maker(softmax.inputs[0])
        scaled = maker(masked.inputs[0])
        if masked.op_type != "Add" or scaled.op_type != "Mul":
            continue
        scores, (context,) = maker(scaled.inputs[0]), operators.readers(softmax.outputs[0])
        (last,) = operators.readers(operators.readers(context.outputs[0])[0].outputs[0])
        splits = [maker(maker(value).inputs[0]) for value in (*scores.inputs, context.inputs[1])]
        heads = int(operators.constant_of(splits[0].inputs[1])[-2])
        scale = float(operators.constant_of(scaled.inputs[1]).item())
        found.append((last, [operators.input_of(split, 0) for split in splits], heads, scale))
    return found


def _replace_(
    graph: ir.Graph,
    last: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, Any],
) -> None:
    node = operators.make_node(op_type, inputs, f"{last.name}.fused", attributes)
    node.domain = operators.MICROSOFT
    graph.opset_imports.setdefault(operators.MICROSOFT, 1)
    graph.insert_before(last, [node])
    ir.convenience.replace_all_uses_with(
        last.outputs[0], node.outputs[0], replace_graph_outputs=True
    )


def _mask(graph: ir.Graph) -> ir.Value:
    mask = next(value for value in graph.inputs if value.name == "attention_mask")
    node = operators.make_node(
        "Cast", [mask], "attention_mask.int32", {"to": ir.DataType.INT32}, dtype=ir.DataType.INT32
    )
    graph.insert_before(graph[0], [node])
    return node.outputs[0]


def fuse_attention_(model: ir.Model) -> None:
    mask = _mask(model.graph)
    for last, qkv, heads, scale in attention(model.graph):
        _replace_(
            model.graph,
            last,
            "MultiHeadAttention",
            [*qkv, None, mask],
            {"num_heads": heads, "scale": scale},
        )
    operators.clean_(model)


def fuse_quantized_attention_(model: ir.Model) -> None:
    graph, mask = model.graph, _mask(model.graph)
    for last, qkv, heads, scale in attention(graph):
        adds = [maker(value) for value in qkv]
        products = [maker(add.inputs[0]) for add in adds]
        if len({product.inputs[0] for product in products}) > 1:
            continue
        integers, step, zero = maker(products[0].inputs[0]).inputs[:3]
        sides = [maker(product.inputs[1]) for product in products]
        arrays = {
            "weight": np.concatenate(
                [operators.constant_of(side.inputs[0]) for side in sides], axis=1
            ),
            "bias": np.concatenate([operators.constant_of(add.inputs[1]) for add in adds]),
            "scale": np.concatenate([operators.constant_of(side.inputs[1]) for side in sides]),
            "zero": np.zeros(1, dtype=np.int8),
        }
        made = {
            name: operators.initializer(graph, f"{last.name}.{name}", array)
            for name, array in arrays.items()
        }
        inputs = [
            integers,
            made["weight"],
            made["bias"],
            step,
            made["scale"],
            mask,
            zero,
            made["zero"],
        ]
        _replace_(graph, last, "QAttention", inputs, {"num_heads": heads, "scale": scale})
    operators.clean_(model)


def forms(qdq: Path, floating: Path, folder: Path) -> dict[str, Path]:
    """Write the forms."""
    passes: dict[str, list[Callable[[ir.Model], object]]] = {
        "biases": [cpu.rewrite_products_],
        "attention": [cpu.rewrite_products_, fuse_attention_],
        "QAttention": [fuse_quantized_attention_, cpu.rewrite_products_],
    }
    written = {
        "dynamic": ORT_DYNAMIC(floating, [], folder, per_channel=False),
        "float": floating,
        "qdq": qdq,
    }
    for name, edits in passes.items():
        model = ir.load(qdq)
        for edit in edits:
            edit(model)
        written[name] = folder / f"{name}.onnx"
        operators.save(model, written[name])
    return written


def opened(path: Path, profile: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds_of(session: ort.InferenceSession, batch: int, length: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(1000, 2000, (batch, length))
    every = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    return {each.name: every[each.name] for each in session.get_inputs()}


def compare(
    sessions: dict[str, ort.InferenceSession], batch: int, length: int, rounds: int
) -> None:
    """Print a row for every form."""
    feeds = {name: feeds_of(session, batch, length) for name, session in sessions.items()}
    results = {name: session.run(None, feeds[name])[0] for name, session in sessions.items()}
    times: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name in random.sample(list(sessions), len(sessions)):
            sessions[name].run(None, feeds[name])
            started = time.thread_time()
            sessions[name].run(None, feeds[name])
            times[name].append(1e3 * (time.thread_time() - started))
    for name in sessions:
        samples = times[name]
        ratios = [
            statistics.median(a / b for a, b in zip(samples, times[base], strict=True))
            for base in ("dynamic", "qdq")
        ]
        far = np.abs(results[name] - results["qdq"]).max()
        row = f"{statistics.median(samples):.2f} | {ratios[0]:.3f} | {ratios[1]:.3f} | {far:.1e}"
        print(f"| {batch} × {length} | {name} | {row} |", flush=True)


def operator_table(path: Path, name: str, batch: int, length: int, runs: int = 20) -> None:
    """Print the operators that take at least 1 % of the time."""
    with tempfile.TemporaryDirectory() as folder:
        session = opened(path, Path(folder, "profile"))
        for _ in range(runs):
            session.run(None, feeds_of(session, batch, length))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    fastest: dict[tuple[str, str], float] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = (event["args"]["op_name"], event["name"])
            fastest[key] = min(fastest.get(key, float("inf")), event["dur"] / 1e3)
    times: defaultdict[str, float] = defaultdict(float)
    counts = Counter(op_type for op_type, _ in fastest)
    for (op_type, _), ms in fastest.items():
        times[op_type] += ms
    total = sum(times.values())
    for op_type, ms in sorted(times.items(), key=lambda item: -item[1]):
        if ms >= 0.01 * total:
            print(
                f"| {batch} × {length} | {name} | {op_type} | {counts[op_type]} | {ms:.2f} | {ms / total:.1%} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("qdq", type=Path)
    parser.add_argument("floating", type=Path)
    parser.add_argument("--shapes", nargs="+", default=["1x16", "1x53", "1x128", "8x64"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes]
    with tempfile.TemporaryDirectory() as folder:
        written = forms(options.qdq, options.floating, Path(folder))
        if options.table:
            print(
                "| rows × tokens | form | operator | number | ms | share |\n|---|---|---|---|---|---|"
            )
            for batch, length in shapes:
                for name in TABLE:
                    operator_table(written[name], name, batch, length)
        print(
            "\n| rows × tokens | form | ms | × dynamic | × qdq | largest difference |\n|---|---|---|---|---|---|"
        )
        sessions = {name: opened(path) for name, path in written.items()}
        for batch, length in shapes:
            compare(sessions, batch, length, options.rounds)


if __name__ == "__main__":
    main()
