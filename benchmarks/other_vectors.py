"""Sparse and late-interaction models in sentence-transformers: in PyTorch, and in its own int8 exports.

    python benchmarks/other_vectors.py rows SQUAD FOLDER [--queries 2000]
    PYTHON benchmarks/other_vectors.py peers MODEL FOLDER [--out runs/other-vectors]

The first form writes questions with their paragraphs: all of train-v1.1 as FOLDER/train.jsonl, and as many of dev-v1.1, drawn
with a fixed seed, as FOLDER/dev.jsonl. octobert is run on them with the task of the model, `data: FOLDER`.

The second form embeds the questions and the paragraphs of FOLDER/dev.jsonl with MODEL in PyTorch, and with what PYTHON's
sentence-transformers exports: dynamic int8 for ONNX Runtime (release 5.7), static int8 by NNCF for OpenVINO (release 6, 300
paragraphs of training). It prints nDCG@10, its difference from PyTorch with a paired 95 % bootstrap interval, entries or
vectors of a paragraph, and the seconds for all texts.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_CALIBRATION, _RESAMPLES = 300, 2000
# What makes arrays of vectors, by class.
DENSE = {"SparseEncoder": {"convert_to_sparse_tensor": False}, "MultiVectorEncoder": {}}


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("form", choices=("rows", "peers"))
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("runs/other-vectors"))
    given = parser.parse_args()
    if given.form == "rows":
        write_rows(given.source, given.folder, given.queries)
    else:
        compare(given.source, given.folder, given.out)


def write_rows(squad: Path, folder: Path, count: int) -> None:
    """Questions and their paragraphs, each question once."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, name in (("train-v1.1.json", "train"), ("dev-v1.1.json", "dev")):
        pairs: dict[str, str] = {}
        for article in json.loads((squad / file).read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    pairs.setdefault(asked["question"].strip(), paragraph["context"])
        rows = [{"query": query, "document": document} for query, document in pairs.items()]
        rows = random.Random(1).sample(rows, count if name == "dev" else len(rows))
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)


def read(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a file."""
    with (folder / f"{name}.jsonl").open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def compare(model: Path, folder: Path, out: Path) -> None:
    """Print a line for PyTorch and for each export."""
    rows = read(folder, "dev")
    queries = [row["query"] for row in rows]
    documents = list(dict.fromkeys(row["document"] for row in rows))
    right = np.array([documents.index(row["document"]) for row in rows])
    before: np.ndarray | None = None
    for name, encoder in opened(model, folder, out):
        started = time.perf_counter()
        asking, found = (
            [np.asarray(each) for each in encode(texts, **DENSE[type(encoder).__name__])]
            for encode, texts in (
                (encoder.encode_query, queries),
                (encoder.encode_document, documents),
            )
        )
        seconds = time.perf_counter() - started
        together = np.stack(found) if found[0].ndim == 1 else None
        scores = np.stack([scored(query, found, together) for query in asking])
        sizes = [int((each > 0).sum()) if each.ndim == 1 else len(each) for each in found]
        rank = (scores > np.take_along_axis(scores, right[:, None], axis=1)).sum(axis=1)
        ndcg = np.where(rank < 10, 1 / np.log2(rank + 2), 0.0)
        line = f"{name}: nDCG@10 {100 * ndcg.mean():.2f}"
        if before is not None:
            generator = np.random.default_rng(0)
            drawn = generator.integers(0, len(rows), (_RESAMPLES, len(rows)))
            differences = 100 * (ndcg - before)[drawn].mean(axis=1)
            low, high = np.percentile(differences, [2.5, 97.5])
            line += f", {100 * (ndcg - before).mean():+.2f} ({low:+.2f} to {high:+.2f})"
        before = ndcg if before is None else before
        print(f"{line}; {np.mean(sizes):.1f} entries or vectors; {seconds:.1f} s", flush=True)


def scored(
    query: np.ndarray, documents: list[np.ndarray], together: np.ndarray | None
) -> np.ndarray:
    """Of a sparse query the products with documents; of a query's tokens the best ones, added up."""
    if together is not None:
        return np.asarray(together @ query)
    return np.array([(query @ document.T).max(axis=1).sum() for document in documents])


def opened(model: Path, folder: Path, out: Path) -> Iterator[tuple[str, Any]]:
    """(name, model) of PyTorch and of the exports that this environment makes."""
    import sentence_transformers as library

    late = any((model / name).is_file() for name in ("artifact.metadata", "1_Dense/config.json"))
    kind = library.MultiVectorEncoder if late else library.SparseEncoder
    yield "PyTorch", kind(str(model), device="cpu")
    exported = out / model.name
    if int(library.__version__.partition(".")[0]) < 6:
        preset, file = "avx512_vnni", "onnx/model_qint8_avx512_vnni.onnx"
        encoder = kind(str(model), backend="onnx")
        encoder.save_pretrained(str(exported))
        library.export_dynamic_quantized_onnx_model(encoder, preset, str(exported))
        yield (
            "its dynamic int8, ONNX",
            kind(str(exported), backend="onnx", model_kwargs={"file_name": file}),
        )
        return
    texts = out / "calibration"
    texts.mkdir(parents=True, exist_ok=True)
    paragraphs = list(dict.fromkeys(row["document"] for row in read(folder, "train")))
    with (texts / "train.jsonl").open("w", encoding="utf-8") as stream:
        drawn = random.Random(1).sample(paragraphs, min(_CALIBRATION, len(paragraphs)))
        stream.writelines(json.dumps({"text": text}) + "\n" for text in drawn)
    encoder = kind(str(model), backend="openvino")
    encoder.save_pretrained(str(exported))
    described: dict[str, Any] = {"dataset_name": str(texts), "dataset_config_name": "default"}
    library.export_static_quantized_openvino_model(
        encoder, None, str(exported), dataset_split="train", column_name="text", **described
    )
    yield (
        "its static int8, OpenVINO",
        kind(
            str(exported),
            backend="openvino",
            model_kwargs={"file_name": "openvino/openvino_model_qint8_quantized.xml"},
        ),
    )


if __name__ == "__main__":
    main()
