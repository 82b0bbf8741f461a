"""Folders in the form of the BEIR benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def write_beir(
    folder: Path,
    corpus: Iterable[tuple[str, str, str]],
    queries: Mapping[str, str],
    splits: Mapping[str, Sequence[str]],
) -> Path:
    """Write a corpus of (id, title, text), queries by their ids, and the lines of each split's judgements."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    documents = ({"_id": i, "title": title, "text": text} for i, title, text in corpus)
    asked = ({"_id": i, "text": text} for i, text in queries.items())
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)))
    for name, lines in splits.items():
        content = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
        (folder / "qrels" / f"{name}.tsv").write_text(content)
    return folder
