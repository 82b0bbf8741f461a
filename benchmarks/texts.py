"""Closeness to float of an embedding model on texts of several kinds, for several draws of its calibration rows.

    python benchmarks/texts.py --shared DATA --model FOLDER --out runs/texts [--seeds 0 1 2 3 4] [--targets ort-cpu …]
        [--set KEY=VALUE …] [--time]

The model is quantized with the defaults, calibrated on 256 pairs of sts-train, once per seed. Texts that nothing was fitted
to: sentences of sts-dev (like the calibration rows) and of MRPC, paragraphs of SQuAD's development set and film reviews of
IMDB, both cut at 90 words, German sentences of XNLI, and short chat texts and commands of this file. One text at a time,
unpadded, read by onnxruntime and openvino themselves, OpenVINO in f32. Cosine to the float graph in onnxruntime: mean / 1 %
quantile / least; of the draws the worst and the median of each. --time: of the first draw, interleaved with the same without
token scales.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
from transformers import AutoTokenizer

from octobert.config import loading
from octobert.core import environment
from octobert.pipeline import runner

Embed = Callable[[dict[str, np.ndarray]], np.ndarray]
WORDS, LONGEST = 90, 256
CHAT = """ok / thanks! / price? / hi / how are you / see you tomorrow / no / what time is it? / cancel my order / lol / brb
would buy again / reset password / 404 error / buy milk / good morning / who are you / is this in stock / call me / why / np
send invoice / yes please / refund / not working / help / where is my parcel / ??? / OMG / 2 + 2 = ? / nope / cool / cheers mate
def f(x): return x / SELECT * FROM t; / tbh idk / merci / www.example.org?a=b / danke schön / ¿qué hora es?"""
SHAPES = ((1, 16), (1, 64), (1, 128), (8, 64))


def table(path: Path, *places: int) -> list[list[str]]:
    """Columns of a tab-separated file without its first line, of the lines that have them."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [[row[place] for place in places] for row in rows[1:] if len(row) > max(places)]


def texts_of(data: Path) -> dict[str, list[str]]:
    """Kind → texts."""
    draw = np.random.default_rng(7)

    def some(texts: list[str], count: int) -> list[str]:
        return [" ".join(texts[i].split()[:WORDS]) for i in draw.permutation(len(texts))[:count]]

    squad = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    with (data / "imdb" / "test.jsonl").open(encoding="utf-8") as lines:
        reviews = [json.loads(line)["text"] for line in lines]
    return {
        "STS-B": some(list(chain(*table(data / "stsb" / "sts-dev.tsv", 5, 6))), 1000),
        "MRPC": some(list(chain(*table(data / "mrpc" / "validation.tsv", 3, 4))), 500),
        "SQuAD": some([p["context"] for article in squad for p in article["paragraphs"]], 200),
        "IMDB": some(reviews, 200),
        "German": some(list(chain(*table(data / "xnli" / "dev-de.tsv", 0, 1))), 300),
        "chat": CHAT.replace("\n", " / ").split(" / "),
    }


def opened(package: Path, target: str) -> Embed:
    """The 8-bit model of a package, or with the target `float` its float graph."""
    if target.startswith("openvino"):
        core = openvino.Core()
        model = core.compile_model(
            next(package.rglob("*.xml")), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        names = [each.any_name for each in model.inputs]
        return lambda feeds: model({n: feeds[n] for n in names})["sentence_embedding"]
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    file = package / "onnx" / ("model.onnx" if target == "float" else "model_quantized.onnx")
    session = onnxruntime.InferenceSession(str(file), settings, ["CPUExecutionProvider"])
    inputs = [each.name for each in session.get_inputs()]
    return lambda feeds: session.run(["sentence_embedding"], {n: feeds[n] for n in inputs})[0]


def cosines(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Mean, 1 % quantile and least, of [N, C] beside [N, C]."""
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    values = (ours * theirs).sum(axis=1) / norms
    return float(values.mean()), float(np.quantile(values, 0.01)), float(values.min())


def quantized(options: argparse.Namespace, seed: int, settings: list[str]) -> Path:
    """OUT of a run with these settings and the calibration rows of a seed."""
    for part in ("sts-train", "sts-dev"):
        rows = [
            {"sentence1": first, "sentence2": second, "score": float(score)}
            for score, first, second in table(options.shared / "stsb" / f"{part}.tsv", 4, 5, 6)
        ]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (options.out / f"{part}.jsonl").write_text(lines, encoding="utf-8")
    raw = {
        "model": options.model,
        "task": {"embedding": {"text": ["sentence1", "sentence2"]}},
        "data": {
            "train": str(options.out / "sts-train.jsonl"),
            "validation": str(options.out / "sts-dev.jsonl"),
            "calibrate": {"from": "train", "samples": 256, "drop_evaluated": True},
        },
        "targets": options.targets,
        "measure": False,
        "seed": seed,
    }
    out: Path = options.out / f"run-{seed}-{len(settings)}"
    runner.run(loading.parse(loading.changed(raw, settings)), out)
    return out


def figures(options: argparse.Namespace) -> dict[str, dict[str, np.ndarray]]:
    """Target → kind of texts → [seeds, 3] closeness."""
    kinds = texts_of(options.shared)
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = {
        name: {kind: [] for kind in kinds} for name in options.targets
    }
    expected: dict[str, np.ndarray] = {}
    for seed in options.seeds:
        out = quantized(options, seed, options.set)
        packages = {name: out / name for name in options.targets}
        tokenizer = AutoTokenizer.from_pretrained(next(iter(packages.values())))
        read = {
            kind: [
                {
                    name: array.astype(np.int64)
                    for name, array in tokenizer(
                        text, truncation=True, max_length=LONGEST, return_tensors="np"
                    ).items()
                }
                for text in texts
            ]
            for kind, texts in kinds.items()
        }
        if not expected:
            embed = opened(out / options.targets[-1], "float")
            expected = {
                kind: np.concatenate([embed(each) for each in feeds])
                for kind, feeds in read.items()
            }
        for name, package in packages.items():
            embed = opened(package, name)
            for kind, feeds in read.items():
                ours = np.concatenate([embed(each) for each in feeds])
                found[name][kind].append(cosines(ours, expected[kind]))
            print(seed, name, found[name]["STS-B"][-1], found[name]["chat"][-1], flush=True)
        shutil.rmtree(out)
    return {name: {k: np.array(v) for k, v in kinds.items()} for name, kinds in found.items()}


def times(options: argparse.Namespace) -> None:
    """Print the time of the default ÷ the same without token scales."""
    outs = [
        quantized(options, options.seeds[0], settings)
        for settings in ([], ["transforms=[outlier-neurons, smoothquant]"])
    ]
    draw = np.random.default_rng(0)
    for target in options.targets:
        both = [opened(out / target, target) for out in outs]
        for batch, length in SHAPES:
            ids = draw.integers(1000, 20000, (batch, length))
            feeds = {name: np.ones_like(ids) for name in ("attention_mask", "token_type_ids")}
            taken: list[list[float]] = [[], []]
            for turn in range(200):
                for which in (0, 1) if turn % 2 else (1, 0):
                    start = time.perf_counter()
                    both[which]({**feeds, "input_ids": ids})
                    taken[which].append(time.perf_counter() - start)
            ratios = np.array(taken[0]) / np.array(taken[1])
            low, high = np.quantile(
                [np.median(draw.choice(ratios, len(ratios))) for _ in range(999)], (0.025, 0.975)
            )
            print(f"{target} {batch} x {length}: {np.median(ratios):.3f} ({low:.3f} to {high:.3f})")


def main() -> None:
    """Run, print, write `texts.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True, help="folder with the data")
    parser.add_argument("--model", required=True, help="folder of an embedding model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--targets", nargs="+", default=["openvino-cpu", "ort-cpu"])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.time:
        times(options)
        return
    found = figures(options)
    for reduce, title in ((np.min, "worst"), (np.median, "median")):
        print(
            f"\n| {title} of {len(options.seeds)} | " + " | ".join(found[options.targets[0]]) + " |"
        )
        for name, kinds in found.items():
            shown = (
                "{:.5f} / {:.4f} / {:.4f}".format(*reduce(each, axis=0)) for each in kinds.values()
            )
            print(f"| {name} | {' | '.join(shown)} |")
    here = environment.current()
    plain = {name: {k: v.tolist() for k, v in kinds.items()} for name, kinds in found.items()}
    (options.out / "texts.json").write_text(
        json.dumps({"figures": plain, "settings": vars(options)}, default=str)
    )
    print(f"\n{here.cpu}, {here.cores} cores, {', '.join(here.features)}")


if __name__ == "__main__":
    main()
