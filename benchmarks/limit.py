"""How near a package is to the limit of its runtime's 8-bit products: its time beside that of a chain of products alone.

    python benchmarks/limit.py PACKAGE … [--tokens 16 53 128] [--rounds 61]

The chain has as many multiplications as the linear layers of the model's encoder layers, as products of hidden × feed-forward
and back, with static scales and nothing between them but one pair of Q and DQ. All models run one text in turn, in one process,
after a pause of 10 ms. Printed are medians in milliseconds, and the median over rounds of (package ÷ chain) with its quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import octobert
from octobert import targets
from octobert.core.session import SessionOptions

_PAUSE_S = 0.01
_WARM = 5


def chain(hidden: int, inner: int, products: int) -> onnx.ModelProto:
    """A model x [1, S, hidden] → y of so many products of 8-bit activations and weights."""
    generator = np.random.default_rng(0)
    nodes, constants, value = [], [], "x"

    def constant(name: str, array: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    scale = constant("scale", np.array(0.02, np.float32))
    zero = constant("zero", np.array(128, np.uint8))
    for number in range(products):
        sizes = (hidden, inner) if number % 2 == 0 else (inner, hidden)
        weight = constant(f"w{number}", generator.integers(-127, 128, sizes).astype(np.int8))
        # Outputs stay about as large as inputs.
        step = constant(f"s{number}", np.full(sizes[1], 1 / (74 * sizes[0] ** 0.5), np.float32))
        flat = constant(f"z{number}", np.zeros(sizes[1], np.int8))
        nodes += [
            helper.make_node("QuantizeLinear", [value, scale, zero], [f"q{number}"]),
            helper.make_node("DequantizeLinear", [f"q{number}", scale, zero], [f"d{number}"]),
            helper.make_node("DequantizeLinear", [weight, step, flat], [f"dw{number}"], axis=1),
            helper.make_node("MatMul", [f"d{number}", f"dw{number}"], [f"y{number}"]),
        ]
        value = f"y{number}"
    shape: list[str | int | None] = [1, "S", hidden if products % 2 == 0 else inner]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "S", hidden])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def opened_chain(target: str, path: Path) -> Callable[[Any], Any]:
    """The chain on the runtime of a target, with float32 where it computes in floats."""
    if target.startswith("openvino"):
        import openvino

        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
        return lambda x: request.infer({"x": x})
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = octobert.doctor()[0].cores
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})


def compared(package: Path, tokens: list[int], rounds: int) -> None:
    """Print the figures of one package."""
    facts = octobert.manifest(package)
    target = targets.load(facts.target)
    session = target.open_session(target.model_file(package), SessionOptions())
    config = json.loads((package / "config.json").read_text(encoding="utf-8"))
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    products = round(
        config["num_hidden_layers"] * (4 * hidden**2 + 2 * hidden * inner) / (hidden * inner)
    )
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.onnx"
        onnx.save(chain(hidden, inner, products), path)
        limit = opened_chain(facts.target, path)
        for length in tokens:
            ids = generator.integers(1000, config["vocab_size"], (1, length))
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            x = generator.normal(size=(1, length, hidden)).astype(np.float32)
            runs: dict[str, Callable[[], Any]] = {
                "package": lambda feeds=feeds: session.run(feeds),  # type: ignore[misc]
                "chain": lambda x=x: limit(x),  # type: ignore[misc]
            }
            times: dict[str, list[float]] = {name: [] for name in runs}
            for turn in range(rounds + _WARM):
                for name in sorted(runs, reverse=bool(turn % 2)):
                    time.sleep(_PAUSE_S)
                    runs[name]()
                    start = time.perf_counter()
                    runs[name]()
                    times[name].append((time.perf_counter() - start) * 1e3)
            ours, least = (np.array(times[name][_WARM:]) for name in ("package", "chain"))
            low, middle, high = statistics.quantiles((ours / least).tolist(), n=4)
            print(
                f"| {package.name} | {length} | {np.median(ours):.2f} | {np.median(least):.2f} "
                f"| {middle:.2f} [{low:.2f}, {high:.2f}] |",
                flush=True,
            )


def main() -> None:
    """Compare each package with its chain."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 53, 128])
    parser.add_argument("--rounds", type=int, default=61)
    given = parser.parse_args()
    here, _ = octobert.doctor()
    print(f"{here.cpu}, {here.cores} cores, {', '.join(here.features)}")
    print("| package | tokens | ms | chain ms | package ÷ chain |\n| --- | --- | --- | --- | --- |")
    for package in given.packages:
        compared(package, given.tokens, given.rounds)


if __name__ == "__main__":
    main()
