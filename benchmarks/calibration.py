"""What calibration costs on the shapes of BERT-base: time against the plain forward pass of the same rows, and peak memory.

    python benchmarks/calibration.py [--out runs/foundation] [--rows 100] [--tokens 384] [--placement matmul|tensorrt]

One pass observes what a placement quantizes (`tensorrt` is that of the reference workflows for SQuAD: all products and residual
adds); entropy, percentile and mse ranges are then all taken from what was seen. The
plain pass opens the same float graph in ONNX Runtime and runs the same batches. Both are run in turn, three times; medians are
printed. Memory is that of another process, which only calibrates.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from foundation import VOCABULARY, make_model

from octobert import observe, plugins
from octobert.environment import peak_memory_bytes
from octobert.graph import capture, ops, sites
from octobert.texts import Encoded, batches, feeds_of

CALIBRATORS = ("entropy", "percentile", "mse")
ROUNDS = 3


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Make, run, print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("runs/foundation"))
    arguments.add_argument("--rows", type=int, default=100)
    arguments.add_argument("--tokens", type=int, default=384)
    arguments.add_argument("--placement", default="matmul")
    arguments.add_argument("--memory", action="store_true", help="calibrate once and print the peak memory of this process")
    given = arguments.parse_args()
    graph = given.out / "bert-base.onnx"
    if not graph.is_file():
        if not (given.out / "bert-base" / "model.safetensors").is_file():
            given.out.mkdir(parents=True, exist_ok=True)
            make_model(given.out / "bert-base")
        ids = np.ones((1, 8), dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids * 0}
        ops.save(capture.capture(given.out / "bert-base", "sequence-classification", [feeds]).model, graph)
        print("captured; run again, so that the capture's memory does not count")
        return
    generator = np.random.default_rng(0)
    types = np.zeros(given.tokens, dtype=np.int64)
    rows = [Encoded(generator.integers(4, VOCABULARY, given.tokens), types, False) for _ in range(given.rows)]
    found = sites.find_sites(ir.load(graph).graph, plugins.load("encoders", "bert").ENCODER)
    placement = plugins.load("placements", given.placement).PLACEMENT
    values = sorted({site.value for site in found if placement.takes(site) and not site.is_weight})

    def plain() -> None:
        session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
        for group in batches(rows, max_tokens=observe.TOKENS_PER_BATCH):
            session.run(None, feeds_of([rows[i] for i in group], 0))

    def calibrate() -> None:
        seen = observe.observe(graph, rows, 0, values)
        for name in CALIBRATORS:
            calibrator = plugins.load("calibrators", name)
            for value in values:
                calibrator.interval(seen[value], calibrator.Options())

    if given.memory:
        calibrate()
        print(f"peak memory of a process that only calibrates: {peak_memory_bytes() / 1e9:.2f} GB")
        return
    times = [(seconds(plain), seconds(calibrate)) for _ in range(ROUNDS)]
    forward, whole = (statistics.median(column) for column in zip(*times, strict=True))
    what = f"{len(values)} values of placement {given.placement}"
    print(f"{given.rows} rows of {given.tokens} tokens, {what}, {', '.join(CALIBRATORS)}")
    print(f"plain forward pass {forward:.1f} s, observation and all ranges {whole:.1f} s: {whole / forward:.2f} times")
    subprocess.run([sys.executable, *sys.argv, "--memory"], check=True)


if __name__ == "__main__":
    main()
