"""Embeddings, evaluated in one of three ways by the columns of the data.

pairs with a gold score     items: cosine of each pair               metric: Spearman correlation
query and its document      items: rank of the right document        metrics: MRR@10, recall@1, recall@10
texts alone                 items: nothing to judge by itself; only fidelity to the float model is measured
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from octobert.core.errors import DataError, did_you_mean
from octobert.data.rows import Row
from octobert.data.tokenization import EncodedTexts, Text
from octobert.tasks._common import (
    WholeTexts,
    moved,
    need_columns,
    number_of,
    output_error,
    place_of,
    spearman,
    text_of,
    unit,
)
from octobert.tasks._task import Fidelity, Judged, Metric, Outputs

Form = Literal["pairs", "retrieval", "texts"]
# Index of a text, and its cosine.
Near = tuple[int, float]
MRR_DEPTH = 10
_CHUNK = 512
OUTPUT = "sentence_embedding"


def mrr(items: np.ndarray) -> float:
    """Mean reciprocal rank of the right document, 0 beyond rank 10."""
    return float(np.mean(np.where(items[:, 0] <= MRR_DEPTH, 1.0 / items[:, 0], 0.0)))


def recall_at_1(items: np.ndarray) -> float:
    """Share of queries whose document is first."""
    return float(np.mean(items[:, 0] <= 1))


def recall_at_10(items: np.ndarray) -> float:
    """Share of queries whose document is among the first ten."""
    return float(np.mean(items[:, 0] <= MRR_DEPTH))


METRICS: dict[Form, dict[str, Metric]] = {
    "pairs": {"spearman": spearman},
    "retrieval": {"mrr@10": mrr, "recall@1": recall_at_1, "recall@10": recall_at_10},
    "texts": {},
}


@dataclass(frozen=True)
class Embedding(WholeTexts):
    """Text columns, and how their embeddings are judged.

    Args:
        form: see the module.
        columns: one text column, or two: the pair, or query and document.
        score: the gold column of pairs.
        prompts: name → text that is put before a text.
        used: names of the prompts of the columns' texts, one for each; empty for none.
        prompt: name of the prompt of a text that names none; empty for none.
    """

    form: Form
    columns: tuple[str, ...]
    score: str | None
    max_length: int | None
    head: str = "embedding"
    labels: tuple[str, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    used: tuple[str, ...] = ()
    prompt: str = ""

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return METRICS[self.form]

    @property
    def primary(self) -> str | None:
        return next(iter(self.metrics), None)

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        """Column by column: all first texts, then all second texts."""
        need_columns(rows, self.columns, where=where)
        before = [self.prompts.get(name, "") for name in self.used or ("",) * len(self.columns)]
        return [
            (prompt + text_of(row, c, i, where=where),)
            for c, prompt in zip(self.columns, before, strict=True)
            for i, row in enumerate(rows)
        ]

    def parse(self, given: Any, *, where: str) -> Text:
        """A text or a pair of texts, or {"text": …, "prompt": …} with the name of a prompt of the model.

        Raises:
            DataError: it is neither, or is empty, or the model has no such prompt.
        """
        name = self.prompt
        if isinstance(given, Mapping):
            if set(given) != {"text", "prompt"}:
                got = repr(dict(given))[:100]
                raise DataError("the input is not a text with the name of its prompt", where=where, got=got)
            given, name = given["text"], str(given["prompt"])
            check_prompt(name, self.prompts, where=where)
        first, *second = super().parse(given, where=where)
        return (self.prompts.get(name, "") + first, *second)

    def gold(self, rows: Sequence[Row], *, where: str) -> list[float]:
        if self.form != "pairs":
            return [1.0] * len(rows) if self.form == "retrieval" else []
        assert self.score is not None
        need_columns(rows, [self.score], where=where)
        return [number_of(row[self.score], place_of(row, self.score, i, where=where)) for i, row in enumerate(rows)]

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        return ()

    def targets(self, encoded: EncodedTexts, gold: Sequence[float]) -> list[dict[str, Any]]:
        raise DataError(
            "embeddings are not fine-tuned here", where="finetune", fix="train them with sentence-transformers first"
        )

    def items(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[float]) -> np.ndarray:
        """[items, 2]: cosine and gold score of pairs; or rank of the right document and number of documents."""
        if self.form == "retrieval":
            ranks = self._ranks(outputs, encoded)
            documents = len({text[0] for text in encoded.texts[len(ranks) :]})
            return np.stack([ranks, np.full_like(ranks, documents)], axis=1)
        judged = self.judged(outputs, encoded, gold)
        return np.stack([judged.predictions, judged.references], axis=1)

    def judged(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[float]) -> Judged:
        """Cosines and gold scores of pairs.

        Raises:
            DataError: the data has no pairs with a score.
        """
        if self.form != "pairs":
            fix = "give pairs with a score, or leave out metric"
            raise DataError("only pairs with a score have predictions for such a metric", where="metric", fix=fix)
        return Judged(self.cosines(outputs), np.asarray(gold, dtype=np.float64))

    def cosines(self, outputs: Outputs) -> np.ndarray:
        """[pairs] the cosine of the two texts of each pair, or of each query and its document."""
        first, second = np.split(unit(outputs[OUTPUT]), 2)
        return np.asarray(np.sum(first * second, axis=-1))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Of documents in random order, and of scores that say nothing."""
        if self.form != "retrieval" or not len(items):
            return dict.fromkeys(self.metrics, 0.0)
        count = int(items[0, 1])
        ranks = np.arange(1, count + 1)[:, None]
        return {name: metric(ranks) for name, metric in self.metrics.items()}

    def expected(self, gold: float) -> str:
        return f"{gold:g}"

    def neighbours(self, outputs: Outputs, encoded: EncodedTexts, indices: Sequence[int], count: int) -> list[list[Near]]:
        """The nearest documents of some queries, or the nearest other texts of some texts, the nearest first.

        Args:
            indices: of the queries, or of the texts.
            count: the most of each.
        """
        first, distinct, firsts, own = self._searched(outputs, encoded)
        found: list[list[Near]] = []
        for start in range(0, len(indices), _CHUNK):
            part = np.asarray(indices[start : start + _CHUNK])
            block = first[part] @ distinct.T
            if self.form != "retrieval":
                block[np.arange(len(part)), own[part]] = -np.inf
            top = np.sort(np.argpartition(-block, min(count, block.shape[1]) - 1, axis=1)[:, :count], axis=1)
            for places, cosines in zip(top, block, strict=True):
                # By falling cosine, equal ones by their place.
                ordered = places[np.argsort(-cosines[places], kind="stable")]
                found.append([(int(firsts[i]), float(cosines[i])) for i in ordered if np.isfinite(cosines[i])])
        return found

    def _searched(self, outputs: Outputs, encoded: EncodedTexts) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(vectors that ask, distinct vectors that are found, text of each of those, which of those belongs to each that asks).

        Documents that several queries share are one document.
        """
        vectors = unit(outputs[OUTPUT])
        start = len(vectors) // 2 if self.form == "retrieval" else 0
        texts = [text[0] for text in encoded.texts[start:]]
        _, firsts, own = np.unique(texts, return_index=True, return_inverse=True)
        return vectors[: start or None], vectors[start:][firsts], start + firsts, own

    def _ranks(self, outputs: Outputs, encoded: EncodedTexts) -> np.ndarray:
        first, distinct, _, document = self._searched(outputs, encoded)
        ranks = []
        for start in range(0, len(first), _CHUNK):
            block = first[start : start + _CHUNK] @ distinct.T
            own = np.take_along_axis(block, document[start : start + len(block), None], axis=1)
            # Ties count against the model. Otherwise a model with the same vector for every text would be perfect.
            ranks.append(np.sum(block >= own, axis=1))
        return np.concatenate(ranks)

    def fidelity(self, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> Fidelity:
        """What changed: ranks that are among the first ten, before or after; clearly, cosines of pairs; nearest other texts."""
        cosine = np.sum(unit(ours[OUTPUT]) * unit(reference[OUTPUT]), axis=-1)
        # The cosine of texts that have nothing to do with each other: where it is near 1, a cosine near 1 says nothing.
        before = unit(reference[OUTPUT])
        chance = float(np.mean(np.sum(before * np.roll(before, 1, axis=0), axis=-1))) if len(before) > 1 else None
        changed = tuple(self._changed(ours, reference, encoded))
        return Fidelity("mean cosine", float(cosine.mean()), output_error(ours, reference), changed, chance)

    def _changed(self, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> Iterator[tuple[int, str, str]]:
        if self.form == "retrieval":
            after, before = self._ranks(ours, encoded), self._ranks(reference, encoded)
            for i in np.flatnonzero((after != before) & (np.minimum(after, before) <= MRR_DEPTH)):
                yield int(i), f"rank {before[i]}", f"rank {after[i]}"
        elif self.form == "pairs":
            after, before = self.cosines(ours), self.cosines(reference)
            yield from ((i, f"{before[i]:.4f}", f"{after[i]:.4f}") for i in moved(after, before))
        else:
            every = range(len(encoded.texts))
            nearest = zip(every, *(self.neighbours(each, encoded, every, 1) for each in (reference, ours)), strict=True)
            for i, old, new in nearest:
                if old and old[0][0] != new[0][0]:
                    yield i, encoded.texts[old[0][0]][0], encoded.texts[new[0][0]][0]

    def answer(self, outputs: Outputs, encoded: EncodedTexts, index: int, given: Any) -> dict[str, Any]:
        return {"embedding": outputs[OUTPUT][index].tolist()}


def check_prompt(name: str, prompts: Mapping[str, str], *, where: str) -> None:
    """Refuse the name of a prompt that the model does not have.

    Raises:
        DataError: with the names of its prompts.
    """
    if name and name not in prompts:
        expected = ", ".join(prompts) or "no name: the model has no prompts"
        raise DataError(f'the model has no prompt "{name}"', where=where, expected=expected, fix=did_you_mean(name, prompts))
