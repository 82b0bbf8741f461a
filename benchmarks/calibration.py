"""Cost of calibration for the shapes of BERT-base: time compared with a forward pass of the same rows, and peak memory.

    python benchmarks/calibration.py [--out DIR] [--rows 100] [--tokens 384] [--placement matmul|tensorrt] [--peers 16]

One pass observes the values that a placement quantizes (`tensorrt` is the placement of the reference workflow for SQuAD: all
products and residual adds). Entropy, percentile and mse ranges are computed from the statistics of that pass. The forward pass
opens the same float graph in ONNX Runtime and runs the same batches. Both run in turn, three times; the medians are printed.
Peak memory is measured in another process, which only calibrates. With --peers N, ONNX Runtime's quantize_static (percentile),
NNCF's quantize and octobert calibrate on the first N rows; the other tools keep them all in memory.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from foundation import VOCABULARY, make_model
from peers import ORT_COPIED, attempt, nncf_transformer

from octobert import targets
from octobert.core import environment, families
from octobert.core.capability import saturates
from octobert.core.environment import peak_memory_bytes
from octobert.core.plan import Placement
from octobert.core.ranges import Provenance, Ranges
from octobert.data.encoded import Encoded, batches, feeds_of
from octobert.graph import operators, qdq, sites
from octobert.graph.capture import capture
from octobert.models.source import resolve
from octobert.quantization import calibrators, observer, placements
from octobert.quantization.calibrators.percentile import Percentile
from octobert.quantization.methods.static import Static

CALIBRATORS = ("entropy", "percentile", "mse")
ROUNDS = 3


def seconds(work: Callable[[], object]) -> float:
    """The duration of a call, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Create the model, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/foundation"))
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--placement", default="matmul")
    parser.add_argument(
        "--peers", type=int, default=0, help="rows for the comparison with other tools"
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="calibrate once and print the peak memory of this process",
    )
    arguments = parser.parse_args()
    graph = arguments.out / "bert-base.onnx"
    if not graph.is_file():
        if not (arguments.out / "bert-base" / "model.safetensors").is_file():
            arguments.out.mkdir(parents=True, exist_ok=True)
            make_model(arguments.out / "bert-base")
        ids = np.ones((1, 8), dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids * 0}
        operators.save(
            capture.capture(
                resolve(arguments.out / "bert-base"), "sequence-classification", [feeds]
            ).model,
            graph,
        )
        print("captured; run again, so that the memory of the capture does not count")
        return
    generator = np.random.default_rng(0)
    types = np.zeros(arguments.tokens, dtype=np.int64)
    rows = [
        Encoded(generator.integers(4, VOCABULARY, arguments.tokens), types, False)
        for _ in range(arguments.rows)
    ]
    graph_sites = sites.find_sites(ir.load(graph).graph, families.load("bert"))
    placement = placements.load(arguments.placement)
    values = sorted(
        {site.value for site in graph_sites if placement.takes(site) and not site.is_weight}
    )

    def plain() -> None:
        session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
        for group in batches(rows, max_tokens=observer.TOKENS_PER_BATCH):
            session.run(None, feeds_of([rows[i] for i in group], 0))

    def calibrate() -> None:
        observed = observer.observe(graph, rows, 0, values)
        for name in CALIBRATORS:
            calibrator = calibrators.load(name)
            for value in values:
                calibrator.interval(observed[value])

    if arguments.memory:
        calibrate()
        print(f"peak memory of a process that only calibrates: {peak_memory_bytes() / 1e9:.2f} GB")
        return
    times = [(seconds(plain), seconds(calibrate)) for _ in range(ROUNDS)]
    forward, whole = (statistics.median(column) for column in zip(*times, strict=True))
    what = f"{len(values)} values of placement {arguments.placement}"
    print(f"{arguments.rows} rows of {arguments.tokens} tokens, {what}, {', '.join(CALIBRATORS)}")
    print(
        f"forward pass {forward:.1f} s, observation and all ranges {whole:.1f} s: {whole / forward:.2f} times"
    )
    subprocess.run([sys.executable, *sys.argv, "--memory"], check=True)
    if arguments.peers:
        compare_with_peers(arguments.out, graph, rows[: arguments.peers])


def compare_with_peers(out: Path, graph: Path, rows: list[Encoded]) -> None:
    """Print the seconds that each tool takes from a float graph and rows to a quantized file."""
    from onnxruntime.quantization import CalibrationMethod

    percentile = partial(
        ORT_COPIED, per_channel=True, calibrate_method=CalibrationMethod.Percentile
    )
    feeds = [feeds_of([row], 0) for row in rows]
    ways: dict[str, Callable[[Path], object]] = {
        "octobert, percentile": lambda folder: quantized(graph, rows, folder),
        "onnxruntime quantize_static, percentile": lambda folder: percentile(graph, feeds, folder),
        "nncf quantize": lambda folder: nncf_transformer(graph, feeds, folder),
    }
    for name, way in ways.items():
        folder = out / "peers" / name.replace(",", "").replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started = time.perf_counter()
        _, failure = attempt(partial(way, folder))
        print(
            f"{name}, {len(rows)} rows: {failure or f'{time.perf_counter() - started:.1f} s'}",
            flush=True,
        )


def quantized(graph: Path, rows: list[Encoded], folder: Path) -> None:
    """Quantize a float graph as a run does, in this process: observe, calibrate, plan, write."""
    model, table = ir.load(graph), targets.load("ort-cpu").capabilities
    graph_sites = sites.find_sites(model.graph, families.load("bert"))
    method = Static(reduce_range=saturates(table, environment.current().features))
    placement = Placement(description="", kinds=method.observed_kinds([table]))
    values = sorted(
        {site.value for site in graph_sites if placement.takes(site) and not site.is_weight}
    )
    observed = observer.observe(graph, rows, 0, values)
    intervals = {name: Percentile().interval(observed[name]) for name in values}
    provenance = Provenance(
        samples=len(rows), tokens=0, data_digest="", model_digest="", source="benchmark"
    )
    ranges = Ranges(calibrator="percentile", options={}, intervals=intervals, provenance=provenance)
    qdq.write(model, method.plan(graph_sites, ranges, table))
    operators.save(model, folder / "model.onnx")


if __name__ == "__main__":
    main()
