"""What octobert writes and computes for eighteen recipes, so that two versions of its source can be compared.

    python benchmarks/net.py record FILE [--twice] [--case dynamic …] [--out runs/net]
    python benchmarks/net.py compare BEFORE AFTER

`record` runs each recipe on tiny models that it makes (about fifteen minutes on two cores) and writes a JSON file: of every
published file its SHA-256, and of `report.json` the plan's decisions and every figure that is no time. `--twice` runs each
twice and keeps what was equal: the plan of a search may follow from measured times. `compare`
prints what the first file has and the second has not, one line each, and exits with 1 where there is something. Both files must
come from one machine: the ranges of a calibration depend on the instruction set. To record an earlier version, run this file
with PYTHONPATH set to its `src`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soaking import REPORTS, ROOT, make_inputs, octobert, published

# Parts of a report that hold no times; the rest of the report is about times, the machine and the day.
FIGURES = (
    "task",
    "data",
    "ranges",
    "plans",
    "transforms",
    "sensitivities",
    "simulations",
    "scores",
    "comparisons",
)
_ALL = ["ort-cpu", "openvino-cpu"]
_OLIVE = {
    "input_model": {"type": "HfModel", "model_path": "classifier", "task": "text-classification"},
    "data_configs": [
        {
            "name": "rows",
            "type": "HuggingfaceContainer",
            "load_dataset_config": {
                "data_name": "csv",
                "data_files": "data/train.tsv",
                "split": "train",
            },
            "pre_process_data_config": {
                "input_cols": ["sentence1", "sentence2"],
                "label_col": "label",
                "max_length": 64,
            },
            "dataloader_config": {"batch_size": 1},
        }
    ],
    "systems": {"local": {"type": "LocalSystem", "accelerators": [{"device": "cpu"}]}},
    "passes": {
        "conversion": {"type": "OnnxConversion", "target_opset": 17},
        "quantization": {
            "type": "OnnxStaticQuantization",
            "data_config": "rows",
            "quant_preprocess": True,
            "per_channel": True,
        },
    },
    "target": "local",
}


def cases() -> dict[str, dict[str, Any]]:
    """Name → what a recipe has beside the tiny classifier and its data."""
    tune = {
        "data": {
            "source": "data",
            "calibrate": {"from": "train", "samples": 24},
            "tune": {"from": "train", "samples": 40},
        }
    }
    rows = {"calibrate": {"from": "train", "samples": 12}, "tune": {"from": "train", "samples": 20}}
    return {
        "static": {"targets": _ALL, "sensitivity": True},
        "dynamic": {"targets": ["ort-cpu"], "quantize": "dynamic"},
        "weight-only": {"targets": ["ort-cpu"], "quantize": "weight-only"},
        "smoothquant": {
            "targets": _ALL,
            "transforms": [{"smoothquant": {"alpha": 0.6}}],
            "corrections": [],
        },
        "float16": {
            "targets": ["ort-cpu"],
            "quantize": {"static": {"float_parts": "float16"}},
            "corrections": ["weight-rounding"],
        },
        "percentile": {
            "targets": _ALL,
            "calibrate": {"percentile": {"keep": 99.5}},
            "transforms": [],
            "opset": 19,
        },
        "entropy": {"targets": ["ort-cpu"], "calibrate": "entropy", "format": "qoperator"},
        "placement": {"targets": ["tensorrt", "qnn"], "baselines": []},
        "qordered": {
            "model": "wide",
            "targets": ["ort-cuda"],
            "baselines": [],
            "transforms": [],
            "quantize": {"static": {"placement": "qordered"}},
        },
        # Every layer is tried, whatever the time: the limit cannot be kept.
        "accuracy": {**tune, "accuracy": {"max_drop": 0.0, "minutes": 30}},
        "choose": {
            **tune,
            "choose": {
                "goal": "size",
                "limits": {"max_drop": 0.2},
                "minutes": 30,
                "vary": ["calibrate"],
            },
        },
        "qat": {"qat": {"epochs": 1, "batch": 8}, "targets": _ALL},
        "finetune": {"finetune": {"epochs": 1, "batch": 8}},
        "embedding": {
            "model": "encoder",
            "task": {"embedding": {"text": "sentence1"}},
            "targets": _ALL,
        },
        "questions": {
            "model": "answers",
            "task": "squad",
            "data": {"source": "squad", **rows},
            "targets": _ALL,
        },
        "tokens": {
            "model": "tagger",
            "task": "token-classification",
            "data": {"source": "tags", **rows},
            "targets": _ALL,
        },
        "masked": {
            "model": "roberta",
            "task": {"fill-mask": {"text": "sentence1"}},
            "targets": _ALL,
        },
    }


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--case", action="append", choices=[*cases(), "olive"])
    recording.add_argument("--twice", action="store_true")
    recording.add_argument("--out", type=Path, default=Path("runs/net"))
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(
            *(
                json.loads(file.read_text(encoding="utf-8"))
                for file in (options.before, options.after)
            )
        )
    out = options.out.resolve()
    inputs = make_more_inputs(make_inputs(out / "inputs"))
    results: dict[str, dict[str, Any]] = {}
    for name in options.case or [*cases(), "olive"]:
        started = time.monotonic()
        values = record(name, inputs, out / name)
        again = record(name, inputs, out / name) if options.twice else values
        results[name] = {key: value for key, value in values.items() if again.get(key) == value}
        varying = len(values) - len(results[name])
        print(
            f"{name}: {len(results[name])} values, {varying} vary, {time.monotonic() - started:.0f} s",
            flush=True,
        )
    options.file.write_text(json.dumps(results, indent=1, sort_keys=True), encoding="utf-8")
    return 0


def make_more_inputs(folder: Path) -> Path:
    """Write the checkpoints and rows of the other tasks, unless they are there."""
    if (folder / "more").is_file():
        return folder
    sys.path.insert(0, str(ROOT))
    from tests.support.checkpoints import make_checkpoint
    from tests.support.runs import squad_file

    tags = ("O", "B-PER", "I-PER", "B-LOC")
    names: dict[str, Any] = {
        "id2label": dict(enumerate(tags)),
        "label2id": {tag: number for number, tag in enumerate(tags)},
    }
    make_checkpoint(folder / "tagger", "bert", "token-classification", **names)
    # CUDA's fused attention takes heads of 16 channels or more.
    make_checkpoint(
        folder / "wide", "bert", "sequence-classification", hidden_size=64, intermediate_size=64
    )
    make_checkpoint(folder / "answers", "bert", "question-answering")
    make_checkpoint(folder / "roberta", "roberta", "masked-lm")
    (folder / "squad").mkdir(exist_ok=True)
    squad_file(folder / "squad" / "train-v1.1.json", 20, 0)
    squad_file(folder / "squad" / "dev-v1.1.json", 12, 100)
    (folder / "tags").mkdir(exist_ok=True)
    for split, numbers in (("train", range(40)), ("dev", range(100, 120))):
        sentences = [[f"time{n}", "is", "on", "it"][: 2 + n % 3] for n in numbers]
        tagged = [
            [f"{word} {tags[(len(word) + k) % 4]}" for k, word in enumerate(words)]
            for words in sentences
        ]
        text = "\n\n".join("\n".join(lines) for lines in tagged)
        (folder / "tags" / f"{split}.txt").write_text(text + "\n", encoding="utf-8")
    (folder / "olive.json").write_text(json.dumps(_OLIVE), encoding="utf-8")
    (folder / "more").touch()
    return folder


def record(name: str, inputs: Path, out: Path) -> dict[str, Any]:
    """Run one recipe and return its values: name → digest, figure or text."""
    recipe = out.with_suffix(".yaml")
    shutil.rmtree(out, ignore_errors=True)
    recipe.unlink(missing_ok=True)
    values: dict[str, Any] = {}
    if name == "olive":
        _run(inputs, "import", inputs / "olive.json", "--out", recipe)
        values = {
            f"recipe:{number}": line
            for number, line in enumerate(recipe.read_text(encoding="utf-8").splitlines())
        }
        _run(
            inputs,
            "run",
            recipe,
            "--out",
            out,
            "--set",
            "baselines=[ort-f32]",
            "--set",
            "benchmark.repeats=3",
        )
    else:
        usual = {
            "model": "classifier",
            "task": "text-classification",
            "data": {"source": "data", "calibrate": {"from": "train", "samples": 24}},
            "targets": ["ort-cpu"],
            "baselines": ["ort-f32"],
            "benchmark": {"batch": [1], "sequence": [16], "repeats": 3},
        }
        recipe.write_text(json.dumps({**usual, **cases()[name]}, indent=1), encoding="utf-8")
        (inputs / recipe.name).write_text(recipe.read_text(encoding="utf-8"), encoding="utf-8")
        _run(inputs, "run", inputs / recipe.name, "--out", out)
    values |= {
        f"file:{file}": digest
        for file, digest in published(out).items()
        if not file.endswith(REPORTS)
    }
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    # By kind of figure, as they were recorded before figures lay together for each model.
    report["scores"] = {each["model"]: each["scores"] for each in report["models"]}
    report["comparisons"] = [
        each["against_float"] for each in report["models"] if each["against_float"]
    ]
    footprints = [each["footprint"] for each in report["models"] if each["footprint"]]
    for part in FIGURES:
        values |= dict(_leaves(report.get(part), part))
    sizes = {f"size:{each['candidate']}": each["size_bytes"] for each in footprints}
    return values | sizes


def compare(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> int:
    """Print what differs; return 1 where something does."""
    count = 0
    for name, values in before.items():
        now = after.get(name, {})
        differing = [key for key, value in values.items() if now.get(key) != value]
        count += len(differing)
        for key in differing:
            print(f"{name}: {key}: {values[key]} → {now.get(key, 'nothing')}")
    total = sum(map(len, before.values()))
    print(f"{count:,} of {total:,} values of {len(before)} recipes differ")
    return int(count > 0)


def _run(folder: Path, *arguments: object) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        octobert(*arguments), capture_output=True, text=True, cwd=folder, env=environment
    )
    # A limit of accuracy that no tiny random model keeps is a result like any other.
    if done.returncode not in (0, 9):
        raise SystemExit(
            f"octobert {' '.join(map(str, arguments))}: exit code {done.returncode}: {done.stderr[-3000:]}"
        )


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The values in a document, each with its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{place}.{number}")
    else:
        yield place, re.sub(r"/\S*/", "", value) if isinstance(value, str) else value


if __name__ == "__main__":
    sys.exit(main())
