"""Cost of norms in ONNX Runtime on the CPU: fused LayerNormalization compared with `graph/passes/cpu.py`.

    python benchmarks/norms.py [--threads 1 2] [--rounds 30]

The graph repeats a bias, a residual add and a norm twelve times, as between two products of an encoder. ONNX Runtime fuses the
three into SkipLayerNormalization; the rewritten graph is not fused. Both run in turn. Printed are medians in µs per norm.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from octobert.graph import operators
from octobert.graph.passes import cpu

REPEATED = 12
SHAPES = ((1, 16, 384), (1, 128, 384), (1, 16, 768), (1, 128, 768), (32, 128, 768))


def make_graph(channels: int) -> ir.Model:
    """A graph that computes norm(x + bias + skip), repeated."""
    generator = np.random.default_rng(0)
    shape, dtype = ir.Shape(["batch", "sequence", channels]), ir.TensorType(ir.DataType.FLOAT)
    x, skip = (ir.Value(name=name, shape=shape, type=dtype) for name in ("x", "skip"))
    graph = ir.Graph([x, skip], [], nodes=[], opset_imports={"": 20}, name="norms")
    weight, bias, before = (
        operators.initializer(graph, name, generator.normal(size=channels).astype(np.float32))
        for name in ("weight", "bias", "before")
    )
    for index in range(REPEATED):
        for op_type, inputs in (
            ("Add", [before]),
            ("Add", [skip]),
            ("LayerNormalization", [weight, bias]),
        ):
            attributes = {"axis": -1, "epsilon": 1e-12} if op_type == "LayerNormalization" else {}
            node = operators.make_node(
                op_type, [x, *inputs], f"{op_type}.{inputs[0].name}.{index}", attributes
            )
            graph.append(node)
            x = node.outputs[0]
    x.shape = shape
    graph.outputs.append(x)
    return ir.Model(graph, ir_version=10)


def open_graph(model: ir.Model, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print(
        "| threads | rows × tokens × channels | LayerNormalization | InstanceNormalization | ratio | largest difference |"
    )
    print("|---|---|---|---|---|---|")
    for threads in options.threads:
        for *rows, channels in SHAPES:
            plain = make_graph(channels)
            rewritten = plain.clone()
            assert cpu.vectorize_norms_(rewritten) == REPEATED
            sessions = [open_graph(model, threads) for model in (plain, rewritten)]
            feeds = {
                name: np.random.default_rng(1).normal(size=(*rows, channels)).astype(np.float32)
                for name in ("x", "skip")
            }
            results = [session.run(None, feeds)[0] for session in sessions]
            times: list[list[float]] = [[], []]
            for _ in range(options.rounds):
                for session, samples in zip(sessions, times, strict=True):
                    started = time.perf_counter()
                    session.run(None, feeds)
                    samples.append(1e6 * (time.perf_counter() - started) / REPEATED)
            before, after = map(statistics.median, times)
            shape, difference = (
                " × ".join(map(str, (*rows, channels))),
                np.abs(results[0] - results[1]).max(),
            )
            print(
                f"| {threads} | {shape} | {before:.0f} | {after:.0f} | {after / before:.2f} | {difference:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
