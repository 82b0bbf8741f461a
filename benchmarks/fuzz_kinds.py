"""The kinds of files that `fuzz` mutates: how a valid one is made, how it is changed, and what a user would do with it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import mutations

WORDS = tuple(
    re.split(
        " ",
        "the of and a to in is you that it he was for on are as with his they at be this have one",
    )
)
TEXTS = (
    "the one that was for you",
    "A naïve text: 漢字, \U0001f600 and “quotes”.",
    "is",
    "of " * 60,
)
TARGETS = ("ort-cpu", "openvino-cpu")
_CLASSES, _ANSWERS, _TAGS, _PAIRS = (
    "text-classification",
    "question-answering",
    "token-classification",
    "embedding",
)
LABELS: dict[str, tuple[str, ...]] = {
    _CLASSES: ("no", "yes"),
    _TAGS: ("O", "B-PER", "I-PER"),
    _ANSWERS: (),
    _PAIRS: (),
}


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Args:
        name: on the command line.
        label: in the table.
        file: the file that is changed, relative to the folder of a case.
        make: fill a folder with the valid file and what it needs.
        use: what a user would do with the folder.
        mutate: content and a generator to changed content.
        in_stage: in the product only stages read such files, so that a crash ends a stage's process.
    """

    name: str
    label: str
    file: str
    make: Callable[[Path], None]
    use: Callable[[Path], object]
    mutate: Callable[[bytes, Random], bytes]
    in_stage: bool = False


def make_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *WORDS,
        *"bcdfgjklmnprsxz",
        *(f"##{c}" for c in "abcdefghijklmnop"),
    ]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    stated = {"model_max_length": 32, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))


def make_checkpoint(folder: Path, *, shards: bool = False) -> None:
    """A BERT classifier of a few kilobytes with its tokenizer."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.utils import logging

    torch.manual_seed(0)
    sizes: Any = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = BertForSequenceClassification(
        BertConfig(vocab_size=64, max_position_embeddings=40, **sizes)
    )
    quiet: Any = logging
    quiet.disable_progress_bar()
    model.save_pretrained(folder, max_shard_size="8KB" if shards else "1GB")
    make_tokenizer(folder)


def make_modules(folder: Path) -> None:
    """The files with which sentence-transformers describes the pooling of a model."""
    make_checkpoint(folder)
    names = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(names.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    stated = {
        "word_embedding_dimension": 8,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))


def read_pooling(folder: Path) -> None:
    """What `octobert quantize --task embedding` reads first."""
    from octobert.core.heads import HEADS
    from octobert.models.pooling import pooling_of

    pooling_of(folder, HEADS["embedding"])


def make_onnx(folder: Path, *, external: bool = False) -> None:
    """The same classifier as an ONNX file, as a user would have exported it."""
    import onnx_ir as ir

    from octobert.graph.capture.capture import export
    from octobert.models import checkpoint

    make_checkpoint(folder)
    model = export(
        checkpoint.load_torch(folder, "sequence-classification"), "sequence-classification"
    )
    for node in model.graph:
        node.metadata_props.clear()
    ir.save(
        model,
        folder / "model.onnx",
        external_data="model.onnx.data" if external else None,
        size_threshold_bytes=0,
    )
    (folder / "model.safetensors").unlink()


def _onnx_message() -> Any:
    import onnx

    return onnx.ModelProto()


def check_onnx(folder: Path) -> None:
    """`octobert check`."""
    import octobert

    octobert.check(folder / "model.onnx", TARGETS)


def capture(name: str, folder: Path) -> None:
    """What `octobert quantize` does with a model: resolve it, check it, capture it."""
    from octobert.data.tokenization import Tokenizer, save_tokenizer
    from octobert.graph.capture import capture as capturing
    from octobert.models.heads import check_head
    from octobert.models.source import resolve
    from octobert.pipeline.stages.capture import parity_batches

    source = resolve(folder / name)
    if source.is_checkpoint:
        _ = source.family
        check_head(source, "sequence-classification")
    scratch = folder / "captured"
    scratch.mkdir(exist_ok=True)
    save_tokenizer(source.tokenizer_folder, scratch)
    captured = capturing.capture(
        source, "sequence-classification", parity_batches(Tokenizer(folder))
    )
    assert captured.sizes.layers


def load_checkpoint(folder: Path) -> None:
    """What `octobert quantize` does with a checkpoint, up to the model in PyTorch."""
    from octobert.models.checkpoint import load_torch
    from octobert.models.heads import check_head
    from octobert.models.source import resolve

    source = resolve(folder)
    _ = source.family, source.labels
    check_head(source, "sequence-classification")
    load_torch(source.path, "sequence-classification")


def make_run(work: Path, **more: Any) -> None:
    """A whole run of the classifier, in `work/out`."""
    import octobert

    for part in ("model", "rows"):
        (work / part).mkdir(parents=True)
    make_checkpoint(work / "model")
    for split in ("train", "validation"):
        lines = [f"{split} the {word}\tof it\t{i % 2}" for i, word in enumerate(WORDS)]
        (work / "rows" / f"{split}.tsv").write_text(
            "\n".join(["sentence1\tsentence2\tlabel", *lines]) + "\n", encoding="utf-8"
        )
    recipe = {
        "model": str(work / "model"),
        "task": _CLASSES,
        "data": str(work / "rows"),
        "targets": TARGETS[:1],
        **more,
    }
    octobert.run(octobert.parse_recipe(recipe), work / "out")


def make_report(folder: Path) -> None:
    """The files of a report."""
    make_run(
        folder / "work", sensitivity=True, benchmark={"batch": [1], "sequence": [16], "repeats": 3}
    )
    for name in ("report.json", "evidence.json"):
        shutil.copy(folder / "work" / "out" / name, folder)
    shutil.rmtree(folder / "work")


def use_report(folder: Path) -> None:
    """`octobert report`."""
    import octobert

    page = folder / "report.html"
    page.unlink(missing_ok=True)
    octobert.page(folder, out=page)


def make_package(folder: Path) -> None:
    """A package for ONNX Runtime, tuned on this machine."""
    from octobert.core.estimate import Estimate
    from octobert.core.session import Setting, Tuned
    from octobert.inference import package_files

    work = folder / "work"
    make_run(work, measure=False)
    shutil.copytree(work / "out" / TARGETS[0], folder, dirs_exist_ok=True)
    shutil.rmtree(work)
    setting = Setting(threads=1, runtime_options={"session.intra_op.allow_spinning": False})
    ratio = Estimate(value=0.9, low=0.8, high=0.95)
    result = Tuned(goal="latency", setting=setting, ratio=ratio, default_ms=1.0, rows=8, tried=())
    package_files.write_tuned(folder, result)


def use_package(folder: Path) -> None:
    """What `octobert predict` and `octobert verify` do with a package."""
    import octobert

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", octobert.IgnoredFileWarning)
        with octobert.load(folder) as model:
            answers = model([(text, text) for text in TEXTS])
    assert len(answers) == len(TEXTS)
    json.dumps(answers)
    with contextlib.suppress(octobert.ModelError):
        octobert.verify(folder)


def tokenize(folder: Path) -> None:
    """What every run and every prediction does with a tokenizer."""
    from octobert.data.tokenization import Tokenizer

    tokenizer = Tokenizer(folder)
    tokenizer.encode([(text,) for text in TEXTS] + [(TEXTS[0], TEXTS[1])])
    tokenizer.offsets(TEXTS)
    for texts in (1, 2):
        assert tokenizer.frame(texts).size >= 0


def read_rows(name: str, task: str, folder: Path) -> None:
    """What `octobert quantize` and `octobert evaluate` do with rows."""
    from octobert import tasks
    from octobert.core.results import ModelMetadata
    from octobert.data import readers, sampling

    where, rows = readers.read(str(folder / name), hub=None, revision=None, columns=())
    built = tasks.load(task).build(ModelMetadata(labels=LABELS[task]))
    inputs = built.inputs(rows, where=where)
    gold = built.gold(rows, where=where)
    json.dumps([inputs, gold])
    for texts in built.row_texts(tasks.Table(rows, where)):
        sampling.row_digest(texts)


ROWS = [
    {"sentence1": f"the {word}", "sentence2": "of it", "label": i % 2, "score": i / 8}
    for i, word in enumerate(WORDS)
]


def make_delimited(name: str, delimiter: str, folder: Path) -> None:
    """Rows with a header, some of them quoted."""
    import csv

    # Tab-separated files quote nothing, as the official ones do.
    text = 'of "it",\nand more' if delimiter == "," else 'of "it"'
    quoting: Any = {} if delimiter == "," else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    with (folder / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter=delimiter, **quoting)
        writer.writeheader()
        writer.writerows(
            [{**row, "sentence2": text} if i % 3 == 0 else row for i, row in enumerate(ROWS)]
        )


def make_jsonl(folder: Path) -> None:
    """Rows as JSON Lines."""
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8"
    )


def mutate_jsonl(data: bytes, generator: Random) -> bytes:
    """One changed line, or changed bytes."""
    if generator.random() < 1 / 3:
        return mutations.of_bytes(data, generator)
    lines = data.splitlines(keepends=True)
    at = generator.randrange(len(lines))
    new = [
        b"null\n",
        b"[]\n",
        b"1\n",
        b"NaN\n",
        b"{}\n",
        b"\n",
        mutations.of_json(lines[at], generator) + b"\n",
    ]
    lines[at] = generator.choice([*new[:-1], *[new[-1]] * 12])
    return b"".join(lines)


def make_parquet(folder: Path) -> None:
    """Rows as Parquet, in two row groups, with a class label."""
    import datasets

    features = datasets.Features(
        {
            "sentence1": datasets.Value("string"),
            "sentence2": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "score": datasets.Value("float64"),
        }
    )
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS, features=features).to_parquet(
        str(folder / "rows.parquet"), batch_size=16
    )


def make_squad(folder: Path) -> None:
    """Questions in the official nesting."""
    answers = [{"text": "one", "answer_start": 4}]
    questions = [
        {"id": str(i), "question": f"who {word}?", "answers": answers}
        for i, word in enumerate(WORDS[:4])
    ]
    context = "the one that was for you"
    data = [
        {"title": "Some", "paragraphs": [{"context": context, "qas": [each]} for each in questions]}
    ]
    (folder / "rows.json").write_text(
        json.dumps({"version": "1.1", "data": data}), encoding="utf-8"
    )


def make_conll(folder: Path) -> None:
    """Words and tags."""
    sentence = "The\tO\nAda\tB-PER\nLovelace\tI-PER\nwas\tO\n\n"
    (folder / "rows.conll").write_text(sentence * 4, encoding="utf-8")


RECIPE = """\
model: checkpoint
task: {text-classification: {text: [sentence1, sentence2]}}
data:
  source: rows.csv
  calibrate: {from: train, samples: 24}
quantize: {static: {activations: uint8, per_channel: true}}
targets: [ort-cpu, openvino-cpu]
calibrate: {percentile: {keep: 99.9}}
benchmark: {batch: [1, 8], sequence: [16], repeats: 3}
"""


def make_recipe(folder: Path) -> None:
    """A recipe with options of most kinds."""
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")


def load_recipe(folder: Path) -> None:
    """What every command does with a recipe first."""
    import octobert

    octobert.load_recipe(folder / "recipe.yaml")


def mutate_recipe(data: bytes, generator: Random) -> bytes:
    """Changed bytes, or changed values of the document, as JSON, which is YAML."""
    import yaml

    if generator.random() < 1 / 2:
        return mutations.of_bytes(data, generator)
    return mutations.of_json(json.dumps(yaml.safe_load(data)).encode(), generator)


_SHARDED = partial(make_checkpoint, shards=True)
_EXTERNAL = partial(make_onnx, external=True)
_MODEL = mutations.of_message(_onnx_message)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("onnx", "ONNX, `check`", "model.onnx", make_onnx, check_onnx, _MODEL),
        Kind(
            "onnx-data",
            "ONNX with external data, `check`",
            "model.onnx",
            _EXTERNAL,
            check_onnx,
            _MODEL,
        ),
        Kind(
            "capture",
            "ONNX, captured",
            "model.onnx",
            make_onnx,
            partial(capture, "model.onnx"),
            _MODEL,
            in_stage=True,
        ),
        Kind(
            "safetensors",
            "safetensors",
            "model.safetensors",
            make_checkpoint,
            load_checkpoint,
            mutations.of_bytes,
        ),
        Kind(
            "index",
            "index of shards",
            "model.safetensors.index.json",
            _SHARDED,
            load_checkpoint,
            mutations.of_json,
        ),
        Kind(
            "config",
            "`config.json` of a checkpoint",
            "config.json",
            make_checkpoint,
            load_checkpoint,
            mutations.of_json,
        ),
        Kind(
            "modules",
            "`modules.json`",
            "modules.json",
            make_modules,
            read_pooling,
            mutations.of_json,
        ),
        Kind(
            "pooling",
            "`1_Pooling/config.json`",
            "1_Pooling/config.json",
            make_modules,
            read_pooling,
            mutations.of_json,
        ),
        Kind(
            "tokenizer",
            "`tokenizer.json`",
            "tokenizer.json",
            make_checkpoint,
            tokenize,
            mutations.of_json,
        ),
        Kind(
            "settings",
            "`tokenizer_config.json`",
            "tokenizer_config.json",
            make_checkpoint,
            tokenize,
            mutations.of_json,
        ),
        Kind(
            "parquet",
            "Parquet",
            "rows.parquet",
            make_parquet,
            partial(read_rows, "rows.parquet", _CLASSES),
            mutations.of_bytes,
        ),
        *(
            Kind(
                name,
                name.upper(),
                f"rows.{name}",
                partial(make_delimited, f"rows.{name}", separator),
                partial(read_rows, f"rows.{name}", _CLASSES),
                mutations.of_bytes,
            )
            for name, separator in (("csv", ","), ("tsv", "\t"))
        ),
        Kind(
            "jsonl",
            "JSON Lines",
            "rows.jsonl",
            make_jsonl,
            partial(read_rows, "rows.jsonl", _CLASSES),
            mutate_jsonl,
        ),
        Kind(
            "squad",
            "SQuAD",
            "rows.json",
            make_squad,
            partial(read_rows, "rows.json", _ANSWERS),
            mutations.of_json,
        ),
        Kind(
            "conll",
            "CoNLL",
            "rows.conll",
            make_conll,
            partial(read_rows, "rows.conll", _TAGS),
            mutations.of_bytes,
        ),
        *(
            Kind(
                f"package-{name}",
                f"`{file}` of a package",
                file,
                make_package,
                use_package,
                mutations.of_json,
            )
            for name, file in (
                ("manifest", "octobert.json"),
                ("config", "config.json"),
                ("tokenizer", "tokenizer.json"),
                ("settings", "tokenizer_config.json"),
                ("tuned", "tuned.json"),
            )
        ),
        *(
            Kind(
                name,
                f"`{name}.json` of a run",
                f"{name}.json",
                make_report,
                use_report,
                mutations.of_json,
            )
            for name in ("report", "evidence")
        ),
        Kind(
            "package-model",
            "ONNX of a package",
            "onnx/model_quantized.onnx",
            make_package,
            use_package,
            mutations.of_bytes,
        ),
        Kind("recipe", "recipe", "recipe.yaml", make_recipe, load_recipe, mutate_recipe),
    )
}
