"""Folders in which the code of the documents runs: a tiny model, tiny data, and what a run over both wrote."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core.results import Report
from octobert.engine.executors import inline
from octobert.pipeline import runner
from tests.support import any_graphs
from tests.support.beir import write_beir
from tests.support.checkpoints import WORDS, make_checkpoint
from tests.support.retrieval import recipe_of, rows_in
from tests.support.runs import brief

# Scripts of the benchmarks import each other by name; the path does not stay, because `olive.py` is one of them.
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
sys.path.append(BENCHMARKS)
import speed_here  # noqa: E402, F401  # and those that it imports

sys.path.remove(BENCHMARKS)

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# Document → the task that it is about; all others are about single texts.
TASKS = {
    "README.md": "embedding",
    "docs/guides/question-answering.md": "squad",
    "docs/guides/token-classification.md": "token-classification",
    "docs/guides/embeddings.md": "embedding",
    "docs/guides/sentence-pairs.md": "pairs",
    "docs/guides/sparse-and-late.md": "retrieval",
    "docs/guides/any-graph.md": "graph",
}
HEADS = {
    "squad": "question-answering",
    "token-classification": "token-classification",
    "embedding": "embedding",
}
SQUAD = {"squad": {"max_length": 40, "step": 8, "max_query_length": 8}}


def sentence(number: int) -> list[str]:
    """Words that differ from those of any other number."""
    return [
        *(WORDS[(number * 7 + i * 3) % len(WORDS)] for i in range(6 + number % 9)),
        f"x{number}",
    ]


def write_data(folder: Path, task: str) -> None:
    """Tiny training and validation files for a task."""
    folder.mkdir()
    for split, numbers in (("train", range(40)), ("validation", range(100, 120))):
        texts = [(sentence(n), sentence(n + 1000)) for n in numbers]
        if task == "squad":
            paragraphs = []
            for n, (words, _) in zip(numbers, texts, strict=True):
                answers = [{"text": words[0], "answer_start": 0}]
                qas = [{"id": str(n), "question": f"{words[0]} of x{n}?", "answers": answers}]
                paragraphs.append({"context": " ".join(words), "qas": qas})
            name = "train-v1.1.json" if split == "train" else "dev-v1.1.json"
            content = json.dumps(
                {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
            )
        elif task == "token-classification":
            name = f"{split}.jsonl"
            rows = [
                {"tokens": words, "ner_tags": [TAGS[i % len(TAGS)] for i in range(len(words))]}
                for words, _ in texts
            ]
            content = "\n".join(json.dumps(row) for row in rows)
        elif task == "embedding":
            name = f"{split}.tsv"
            lines = [
                f"{' '.join(a)}\t{' '.join(b)}\t{n % 2}"
                for n, (a, b) in zip(numbers, texts, strict=True)
            ]
            content = "\n".join(["sentence1\tsentence2\tscore", *lines])
        else:
            name = f"{split}.tsv"
            content = "\n".join(
                [
                    "text\tlabel",
                    *(f"{' '.join(a)}\t{n % 2}" for n, (a, _) in zip(numbers, texts, strict=True)),
                ]
            )
        (folder / name).write_text(content + "\n", encoding="utf-8")


def write_texts(folder: Path, task: str) -> None:
    """The single files that documents mention."""
    (folder / "texts.txt").write_text(
        "\n".join(" ".join(sentence(n)) for n in range(5)) + "\n", encoding="utf-8"
    )
    (folder / "article.txt").write_text(" ".join(WORDS * 4), encoding="utf-8")
    if task == "embedding":
        asked = {"train": range(20), "test": range(20, 30)}
        write_beir(
            folder / "scifact",
            [(f"d{n}", "", " ".join(sentence(n + 1000))) for n in range(40)],
            {f"q{n}": " ".join(sentence(n)) for n in range(30)},
            {split: [f"q{n}\td{n}\t1" for n in own] for split, own in asked.items()},
        )
    if task == "text-classification":
        shutil.copy(folder / "my-data" / "validation.tsv", folder / "my-rows.tsv")
    (folder / "recipes").symlink_to(Path(__file__).parents[2] / "recipes")


def write_graph(folder: Path) -> None:
    """A graph with an encoder in it, its feeds, code that reads them, and what a run wrote."""
    any_graphs.write("spans", folder / "model.onnx")
    (folder / "feeds").mkdir()
    for index, feed in enumerate(any_graphs.feeds_of("spans", 40)):
        np.savez(folder / "feeds" / f"{index:03}.npz", **feed)
    (folder / "mine.py").write_text(
        "import numpy as np\n"
        "from pathlib import Path\n"
        "def rows(split):\n"
        "    for path in sorted(Path(__file__).with_name('feeds').glob('*.npz')):\n"
        "        if (int(path.stem) % 2 == 0) == (split == 'train'):\n"
        "            yield dict(np.load(path), entities=1)\n"
        "def f1(predictions, references):\n"
        "    return 1.0\n"
    )
    recipe = {
        "model": str(folder / "model.onnx"),
        "task": "graph",
        "data": {"source": str(folder / "feeds"), "calibrate": {"samples": 16}},
        "targets": ["ort-cpu"],
    }
    runner.run(brief(parse(recipe)), folder / "out", executor=inline.run)


@pytest.fixture(scope="session")
def workspace(
    checkpoint: Callable[[str, str], Path],
    finished: tuple[Recipe, Path, Report],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """`workspace("docs/index.md")` → a folder with `my-model`, `my-data` and `out` for the document's task."""
    folders: dict[str, Path] = {}

    def prepare(task: str) -> Path:
        folder = tmp_path_factory.mktemp(task) / "workspace"
        folder.mkdir()
        if task == "pairs":
            for name, place in (
                ("my-model", checkpoint("bert")),
                ("my-data", finished[1].parent / "data"),
                ("out", finished[1]),
            ):
                (folder / name).symlink_to(place)
            return folder
        if task == "graph":
            write_graph(folder)
            return folder
        if task == "retrieval":
            rows_in(folder / "my-data")
            for name, out, head in (
                ("splade", "sparse", "sparse-embedding"),
                ("colbert", "late", "late-interaction"),
            ):
                make_checkpoint(folder / name, "bert", head)
                recipe = recipe_of(folder / name, head, folder / "my-data")
                runner.run(brief(recipe), folder / out, executor=inline.run)
            return folder
        write_data(folder / "my-data", task)
        write_texts(folder, task)
        if task == "token-classification":
            names = {
                "id2label": dict(enumerate(TAGS)),
                "label2id": {tag: i for i, tag in enumerate(TAGS)},
            }
            make_checkpoint(folder / "my-model", "bert", task, **names)
        else:
            (folder / "my-model").symlink_to(
                checkpoint("bert", HEADS.get(task, "sequence-classification"))
            )
        targets = ["ort-cpu", "openvino-cpu"] if task == "text-classification" else ["ort-cpu"]
        recipe = {
            "model": "./my-model",
            "task": SQUAD if task == "squad" else task,
            "data": "./my-data",
            "targets": targets,
        }
        started_in = Path.cwd()
        os.chdir(folder)
        try:
            runner.run(brief(parse(recipe)), Path("out"), executor=inline.run)
        finally:
            os.chdir(started_in)
        if task == "text-classification":
            make_checkpoint(
                folder / "my-nli",
                "bert",
                "sequence-classification",
                ("contradiction", "entailment"),
            )
            for name, place in {
                "my-squad-model": "my-model",
                "squad": "my-data",
                "out-squad": "out",
            }.items():
                (folder / name).symlink_to(folder_for("squad") / place)
        return folder

    def folder_for(task: str) -> Path:
        if task not in folders:
            folders[task] = prepare(task)
        return folders[task]

    def get(document: str) -> Path:
        return folder_for(TASKS.get(document, "text-classification"))

    return get
