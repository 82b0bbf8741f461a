"""A package and its float model in MTEB's own evaluation of retrieval, on a folder of the BEIR form.

    pip install mteb
    python benchmarks/in_mteb.py PACKAGE FOLDER [--split test] [--queries 2000]

PACKAGE is a package of a run on embeddings, with its float model. Prompts are those of the package: `query` for queries, and
the first of `document`, `passage` and `corpus` for documents.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.types import PromptType

import octobert
from octobert.data import beir, readers


class OctobertEncoder(AbsEncoder):  # type: ignore[misc]  # mteb is not installed where types are checked
    """A package as a model of mteb.

    Args:
        model: that octobert has loaded.
        name: under which mteb stores results, OWNER/NAME.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.model, prompts = model, model.task.prompts
        documents = next((key for key in ("document", "passage", "corpus") if key in prompts), "")
        self.prompts = {
            PromptType.query: "query" if "query" in prompts else "",
            PromptType.document: documents,
        }
        self.mteb_model_meta = ModelMeta.create_empty({"name": name, "revision": "1"})

    def encode(self, inputs: Any, *, prompt_type: PromptType | None = None, **_: Any) -> np.ndarray:
        """Embed batches of texts."""
        prompt = self.prompts.get(prompt_type, "")
        texts = [text for batch in inputs for text in batch["text"]]
        answers = self.model.stream({"text": text, "prompt": prompt} for text in texts)
        return np.array([answer["embedding"] for answer in answers], dtype=np.float32)


class LocalRetrieval(AbsTaskRetrieval):  # type: ignore[misc]
    """A folder of the BEIR form as a task of mteb."""

    metadata = TaskMetadata(
        name="LocalRetrieval",
        description="A folder on this machine.",
        reference=None,
        dataset={"path": "local", "revision": "1"},
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def __init__(self, folder: Path, split: str, queries: int) -> None:
        super().__init__()
        self.folder, self.split, self.queries = folder, split, queries

    def load_data(self, *_: Any, **__: Any) -> None:
        """Read the folder."""
        judged = readers.read_file(self.folder / "qrels" / f"{self.split}.tsv")[: self.queries]
        rows = judged + readers.read_file(self.folder / "corpus.jsonl")
        ids = {text: f"d{i}" for i, text in enumerate(dict.fromkeys(beir_texts(rows)))}
        relevant = {
            row["id"]: {
                ids[text]: int(level)
                for text, level in zip(row["document"], row["relevance"], strict=True)
            }
            for row in judged
        }
        corpus = [{"id": i, "title": "", "text": text} for text, i in ids.items()]
        self.dataset = {
            "default": {
                "test": {
                    "corpus": Dataset.from_list(corpus),
                    "queries": Dataset.from_list(
                        [{"id": row["id"], "text": row["query"]} for row in judged]
                    ),
                    "relevant_docs": relevant,
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True


def beir_texts(rows: list[Any]) -> list[str]:
    """All documents of rows."""
    cells = (row["document"] for row in rows)
    return [text for cell in cells for text in ([cell] if isinstance(cell, str) else cell)]


def main() -> None:
    """Evaluate both, and print their scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=2000)
    options = parser.parse_args()
    assert beir.splits_of(options.folder), "the folder has not the form of BEIR"
    described = json.loads((options.package / "octobert.json").read_text(encoding="utf-8"))
    task = {described["task"]["name"]: described["task"]["options"]}
    models = {
        "float": octobert.load(options.package / "onnx" / "model.onnx", task=task),
        "INT8": octobert.load(options.package),
    }
    for name, model in models.items():
        local = LocalRetrieval(options.folder, options.split, options.queries)
        started = time.perf_counter()
        encoder = OctobertEncoder(model, f"octobert/{name}")
        result = mteb.evaluate(
            encoder, local, cache=None, overwrite_strategy="always", show_progress_bar=False
        )
        seconds = time.perf_counter() - started
        scores = result.task_results[0].scores["test"][0]
        names = ("ndcg_at_10", "mrr_at_10", "map_at_100", "recall_at_100")
        figures = "  ".join(f"{key} {scores[key]:.5f}" for key in names)
        print(f"{name:6} {figures}  {seconds:.1f} s")


if __name__ == "__main__":
    main()
