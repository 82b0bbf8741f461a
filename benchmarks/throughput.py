"""Throughput of one IR: `octobert benchmark --goal throughput` compared with OpenVINO's own benchmark_app.

    python benchmarks/throughput.py runs/demo/openvino-cpu [--sequence 128] [--rounds 12] [--seconds 5]

All systems open the same file with the same precision (float32 where it is not 8-bit), on random tokens of one shape, without
padding. They take turns of some seconds, in the order A B C, C B A, …. Printed are rows per second and the ratio to
benchmark_app in the same round, with a 95 % confidence interval. benchmark_app opens the model anew in each turn; it measures
after its first inference.

- benchmark_app: `-hint throughput`, its default mode for a dynamic shape: inputs are filled for each inference, outputs are not
  read. It takes the number of streams that the runtime recommends.
- octobert, streams auto: as many requests as the runtime recommends, in OpenVINO's AsyncInferQueue; inputs are filled, outputs
  are read.
- octobert, one stream per core: the same with other streams, those of `octobert.load(goal="throughput")`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino

from octobert.core import environment
from octobert.core.estimate import geometric_mean
from octobert.core.session import Feeds
from octobert.core.wording import estimate_text
from octobert.evaluation import latency
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.interleaving import interleave
from octobert.evaluation.worker import Worker
from octobert.inference.package_files import read_manifest
from octobert.targets import openvino_cpu

Turn = Callable[[float], float]


def benchmark_app(model: Path, sequence: int, config: Path) -> Turn:
    """Rows per second by benchmark_app."""
    names = [port.get_any_name() for port in openvino.Core().read_model(str(model)).inputs]
    shape = ",".join(f"{name}[1,{sequence}]" for name in names)
    program = str(Path(sys.executable).parent / "benchmark_app")
    command = [
        program,
        "-m",
        str(model),
        "-d",
        "CPU",
        "-hint",
        "throughput",
        "-infer_precision",
        "f32",
    ]
    command += ["-load_config", str(config), "-data_shape", shape]

    def turn(seconds: float) -> float:
        done = subprocess.run(
            [*command, "-t", str(max(1, round(seconds)))],
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"Throughput:\s+([\d.]+) FPS", done.stdout)
        assert found, done.stdout
        return float(found.group(1))

    return turn


def octobert_turns(worker: Worker, feeds: Feeds) -> Turn:
    """Rows per second by a process of `octobert benchmark`."""
    requests = worker.opened().streams
    worker.ask("warm", ([feeds], 1, requests))

    def turn(seconds: float) -> float:
        done = worker.ask("saturate", ([feeds], seconds, requests))
        return float(done.runs[0]) / float(done.seconds)

    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    model, manifest = openvino_cpu.model_file(options.package), read_manifest(options.package)
    feeds = latency.random_workload(1, options.sequence, 1000, seed=0).rounds[0]
    candidate = Candidate(name="openvino-cpu", path=str(model), head=manifest.task.head)
    workers = [Worker(candidate, streams=0), Worker(candidate, streams=environment.cores())]
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        config = Path(folder) / "config.json"
        config.write_text(
            json.dumps({"CPU": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}}), encoding="utf-8"
        )
        systems = {
            "benchmark_app": benchmark_app(model, options.sequence, config),
            "octobert, streams auto": octobert_turns(workers[0], feeds),
            "octobert, one stream per core": octobert_turns(workers[1], feeds),
        }
        turns = list(systems.values())
        samples = interleave(turns, lambda turn, _: turn(options.seconds), options.rounds)
        rates = dict(zip(systems, samples, strict=True))
    for worker in workers:
        worker.stop()
    here = environment.current()
    print(
        f"{here.cpu}, {here.cores} cores, {', '.join(here.features)}, openvino {here.versions.get('openvino')}\n"
    )
    print(f"| 1 × {options.sequence} | rows/s | × benchmark_app |\n|---|---|---|")
    for name, own in rates.items():
        ratios = np.array(own) / np.array(rates["benchmark_app"])
        ratio = geometric_mean(ratios.tolist())
        against = "1" if name == "benchmark_app" else estimate_text(ratio, ".3f")
        print(f"| {name} | {np.mean(own):.0f} | {against} |")


if __name__ == "__main__":
    main()
