"""Queries with the documents that answer them, and recipes for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octobert.config.loading import parse
from octobert.config.recipe import Recipe

OPTIONS = {"query": "query", "document": "document"}


def recipe_of(model: Path, task: str, data: Any, **keys: Any) -> Recipe:
    """A recipe for a model of retrieval: for ONNX Runtime, unless `keys` say something else.

    Args:
        task: its name.
        data: a folder of `rows_in`, or what a recipe says of data.
        keys: of the recipe.
    """
    stated = str(data) if isinstance(data, Path) else data
    return parse(
        {
            "model": str(model),
            "task": {task: OPTIONS},
            "data": stated,
            "targets": ["ort-cpu"],
            **keys,
        }
    )


def rows_in(folder: Path) -> Path:
    """Queries that ask for a word of their document."""
    folder.mkdir()
    words = ("the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for")
    for name, start in (("train", 0), ("validation", 40)):
        rows = [
            {
                "query": f"{words[i % 12]} {words[(i * 5 + 1) % 12]}",
                "document": f"{words[i % 12]} {words[(i * 5 + 1) % 12]}, {words[(i * 7) % 12]} {i}.",
            }
            for i in range(start, start + 40)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
