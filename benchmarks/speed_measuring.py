"""How `speed.py` measures: systems take turns, in an order that changes every round."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import speed_systems
from peers import attempt
from speed_results import RIVALS, Limit
from speed_systems import System

from octobert.core.session import Feeds
from octobert.evaluation import latency

# A system slower than the fastest by this factor is not timed on larger shapes, unless octobert is compared with it.
TOO_SLOW = 10
_KEPT = {
    name
    for target, rivals in RIVALS.items()
    for names in ((target,), *rivals.values())
    for name in names
}
# A way to take all texts that is slower than the fastest by this factor does so in the first round only.
SLOW = 4
# Short runs vary the most and take the least time; long ones take most of it.
_SHORT, _LONG = 64, 1024


class Running:
    """A system in its process."""

    def __init__(self, system: System) -> None:
        self.system, self.name = system, system.name
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        # A task of the pool, not its initializer: errors of an initializer are not reported.
        self.ask(speed_systems.begin, system.opener, system.arguments)
        self.precision: str = self.ask(speed_systems.precision)

    def ask(self, what: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(what, *arguments).result()

    def stop(self) -> None:
        self._pool.shutdown()


def opened(systems: Sequence[System], failures: dict[str, str]) -> list[Running]:
    """Open the systems. Those that fail are added to `failures`."""
    running_systems = []
    for system in systems:
        running, failure = attempt(partial(Running, system))
        if running is None:
            failures[system.name] = failure
        else:
            running_systems.append(running)
    return running_systems


def time_shapes(
    running: Sequence[Running],
    shapes: Sequence[tuple[int, int]],
    rounds: int,
    vocabulary: int,
    failures: dict[str, str],
) -> dict[str, dict[str, list[float]]]:
    """System → shape → milliseconds of every round. A system that fails has none for that shape and is not asked again."""
    results: dict[str, dict[str, list[float]]] = {system.name: {} for system in running}
    generator = random.Random(0)
    for shape in shapes:
        feeds, name = (
            latency.random_workload(*shape, vocabulary, seed=0).rounds[0],
            shape_name(shape),
        )
        times: dict[str, list[float]] = {system.name: [] for system in running}
        for _ in range(rounds_of(shape, rounds)):
            running = take_turns(
                running, partial(_on_feeds, feeds), generator, times, failures, f" at {name}"
            )
        medians = {system: statistics.median(own) for system, own in times.items()}
        for system_name, own in times.items():
            results[system_name][name] = own
        slow = {
            n
            for n, median in medians.items()
            if n not in _KEPT and median > TOO_SLOW * min(medians.values())
        }
        failures |= {f"{n} after {name}": f"more than {TOO_SLOW} times the fastest" for n in slow}
        running = [system for system in running if system.name not in slow]
        print(name, {k: round(v, 2) for k, v in medians.items()}, file=sys.stderr, flush=True)
    return {system: own for system, own in results.items() if own}


def take_turns(
    running: Sequence[Running],
    ask: Callable[[Running], float],
    generator: random.Random,
    times: dict[str, list[float]],
    failures: dict[str, str],
    where: str,
) -> list[Running]:
    """Ask each system once, in random order; one that fails is named and loses its times.

    Returns:
        Those that did not fail.
    """
    left = list(running)
    for system in generator.sample(left, len(left)):
        ms, failure = attempt(partial(ask, system))
        if ms is None:
            failures[f"{system.name}{where}"] = failure
            left = [each for each in left if each is not system]
            del times[system.name]
        else:
            times[system.name].append(ms)
    return left


def _on_feeds(feeds: Feeds, system: Running) -> Any:
    return system.ask(speed_systems.run_once, feeds)


def _on_text(text: tuple[str, ...], system: Running) -> Any:
    return system.ask(speed_systems.single, text, system.system.single)


def shape_name(shape: tuple[int, int]) -> str:
    return f"{shape[0]} × {shape[1]}"


def rounds_of(shape: tuple[int, int], rounds: int) -> int:
    """Three times as many rounds of short inferences, a third of long ones, and at least three."""
    tokens = shape[0] * shape[1]
    return max(
        3,
        round(
            rounds * (3.0 if tokens <= _SHORT else 1.0 if shape[0] == 1 or tokens <= _LONG else 0.3)
        ),
    )


def time_singles(
    running: Sequence[Running], texts: Sequence[tuple[str, ...]], failures: dict[str, str]
) -> dict[str, list[float]]:
    """System → milliseconds of each text; all systems answer a text before the next one."""
    asked = [system for system in running if system.system.single]
    times: dict[str, list[float]] = {system.name: [] for system in asked}
    generator = random.Random(0)
    for text in texts:
        asked = take_turns(
            asked, partial(_on_text, text), generator, times, failures, ", single texts"
        )
    print(
        {name: round(statistics.median(own), 2) for name, own in times.items()},
        file=sys.stderr,
        flush=True,
    )
    return times


def time_texts(
    running: Sequence[Running],
    texts: Sequence[tuple[str, ...]],
    rounds: int,
    failures: dict[str, str],
) -> tuple[dict[str, list[float]], dict[str, list[int | str]]]:
    """(`system: how` → rows per second of every round, `system: how` → the labels).

    In the first round all lengths are new to the runtimes. What is slower than the fastest by `SLOW` takes part in it only.
    """
    asked = [
        (f"{system.name}: {how}", system, how) for system in running for how in system.system.texts
    ]
    rates: dict[str, list[float]] = {}
    labels: dict[str, list[int | str]] = {}
    generator = random.Random(0)
    for _ in range(rounds):
        for name, system, how in generator.sample(asked, len(asked)):
            answered, failure = attempt(partial(system.ask, speed_systems.answer, texts, how))
            if answered is None:
                failures[name] = failure
                continue
            seconds, labels[name] = answered
            rates.setdefault(name, []).append(len(texts) / seconds)
            print(name, round(rates[name][-1], 2), file=sys.stderr, flush=True)
        best = max((own[0] for own in rates.values()), default=0.0)
        asked = [
            each for each in asked if each[0] not in failures and SLOW * rates[each[0]][0] > best
        ]
    return rates, labels


# ---- limits of the machine


def limits(out: Path) -> dict[str, float]:
    """Billions of multiply-adds per second of one product, 128 × 768 × 3072, with the fastest float32 and 8-bit kernels."""
    import onnx
    import onnxruntime as ort
    import openvino
    import torch
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    m, k, n = 128, 768, 3072
    x, w = generator.random((m, k), dtype=np.float32), generator.random((k, n), dtype=np.float32)
    w8 = numpy_helper.from_array(generator.integers(-63, 64, (k, n)).astype(np.int8), "w")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["e"]),
        helper.make_node("MatMul", ["d", "e"], ["y"]),
    ]
    scale = numpy_helper.from_array(np.array(0.01, np.float32), "s")
    zero = numpy_helper.from_array(np.array(0, np.uint8), "z")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [m, k]), ("y", [m, n]))
    ]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], [w8, scale, zero])
    path = out / "product.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)

    def rate(run: Callable[[], object]) -> float:
        times = []
        for _ in range(200):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return round(m * k * n / min(times) / 1e9, 1)

    return {
        "float32": rate(lambda: tx @ tw),
        "8-bit": max(
            rate(lambda: session.run(None, {"x": x})), rate(lambda: request.infer({"x": x}))
        ),
    }


def limit_of(
    config: Mapping[str, Any], shapes: Sequence[tuple[int, int]], rates: dict[str, float]
) -> Limit | None:
    """Milliseconds of a BERT's products at these rates: linear layers in 8 bits, attention in float32; else None."""
    if config.get("model_type") != "bert":
        return None
    milliseconds = {}
    for batch, length in shapes:
        tokens, hidden = config["num_hidden_layers"] * batch * length, config["hidden_size"]
        linear = tokens * (4 * hidden * hidden + 2 * hidden * config["intermediate_size"])
        attention = tokens * 2 * length * hidden
        milliseconds[shape_name((batch, length))] = round(
            (linear / rates["8-bit"] + attention / rates["float32"]) / 1e6, 3
        )
    return Limit(rates=rates, shapes=milliseconds)


def starts(package_folder: Path, text: tuple[str, ...]) -> dict[str, float]:
    """Seconds until a new process has imported octobert, and until it has answered a text (best of three, warm file cache)."""
    first = text[0] if len(text) == 1 else text
    load = f"octobert.load({str(package_folder)!r}, cache={str(package_folder / 'cache')!r})([{first!r}])"
    seconds = {}
    for name, code in (("import octobert", ""), (f"first answer, {package_folder.name}", load)):
        program = f"import time\nt = time.perf_counter()\nimport octobert\n{code}\nprint(time.perf_counter() - t)"
        runs = [
            subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=True
            )
            for _ in range(4)
        ]
        seconds[name] = min(float(run.stdout.splitlines()[-1]) for run in runs[1:])
    return seconds
