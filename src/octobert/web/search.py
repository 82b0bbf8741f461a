"""A query in a list of texts: which are nearest by either model's embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.web.models import Event, Models, Pair, Work

# Lists whose vectors are kept, and texts that are embedded in one step.
_KEPT, _STEP = 4, 32
_NEAREST = 10
_ROUNDS = 5


class Search(FrozenModel):
    """A search.

    Args:
        model: name of the package.
        texts: the list.
        query: what is looked for in it.
        prompts: names of the prompts of query and texts; empty for the model's default.
    """

    model: str
    texts: tuple[str, ...] = Field(min_length=1, max_length=20_000)
    query: str
    prompts: tuple[str, str] = ("", "")


def search(models: Models, asked: Search) -> Work:
    """Embed a list and a query with both models.

    Yields:
        what answers; {"done", "of"} while the list is embedded, which happens once; then {"nearest", "shared", "ms"}: by the
        name of the side the nearest texts, with the place that the other model gives them, and the times of the query.

    Raises:
        OctobertError: the model makes no embeddings, or a text is empty.
    """
    pair = models.pair(asked.model)
    if pair.facts.head != "embedding":
        fix = "search with a model for embeddings"
        raise DataError(
            "the model makes no embeddings", got=f"a model for {pair.facts.name}", fix=fix
        )
    yield pair.said()
    key = hashlib.sha256(repr((asked.texts, asked.prompts[1])).encode(errors="replace")).hexdigest()
    if key not in pair.lists:
        vectors: dict[str, list[np.ndarray]] = {side.name: [] for side in pair.sides}
        for start in range(0, len(asked.texts), _STEP):
            texts = [
                _prompted(text, asked.prompts[1]) for text in asked.texts[start : start + _STEP]
            ]
            results = pair.timed(0, lambda predictor: predictor(texts))  # noqa: B023  # called at once
            for name, (answers, _) in results.items():
                vectors[name].append(_vectors(answers))
            yield {"done": min(start + _STEP, len(asked.texts)), "of": len(asked.texts)}
        pair.lists[key] = {name: np.concatenate(parts) for name, parts in vectors.items()}
        while len(pair.lists) > _KEPT:
            pair.lists.popitem(last=False)
    yield _found(pair, pair.lists[key], asked)


def _found(pair: Pair, lists: dict[str, np.ndarray], asked: Search) -> Event:
    query = _prompted(asked.query, asked.prompts[0])
    results, times = pair.rounds(_ROUNDS, lambda predictor: predictor([query]))
    scores = {name: lists[name] @ _vectors(answers)[0] for name, answers in results.items()}
    order = {name: np.argsort(-own, kind="stable") for name, own in scores.items()}
    places = {name: np.argsort(own, kind="stable") + 1 for name, own in order.items()}
    nearest = {
        name: [
            {
                "text": asked.texts[i],
                "score": float(scores[name][i]),
                "other": next(
                    (int(own[i]) for other, own in places.items() if other != name), None
                ),
            }
            for i in own[:_NEAREST].tolist()
        ]
        for name, own in order.items()
    }
    shared = len(set.intersection(*(set(own[:_NEAREST].tolist()) for own in order.values())))
    return {
        "nearest": nearest,
        "shared": shared,
        "of": min(_NEAREST, len(asked.texts)),
        "ms": times,
    }


def _prompted(text: str, prompt: str) -> Any:
    return {"text": text, "prompt": prompt} if prompt else text


def _vectors(answers: Sequence[dict[str, Any]]) -> np.ndarray:
    """[texts, size] of length 1."""
    vectors = np.array([answer["embedding"] for answer in answers], dtype=np.float64)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
