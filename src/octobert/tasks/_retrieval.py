"""Retrieval: the documents that a query's vector finds among all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from octobert.data.beir import OWN_DOCUMENT
from octobert.data.sampling import Row
from octobert.data.tokenization import Text
from octobert.tasks._ranking import LEFT_OUT, Judged, Ranked, top
from octobert.tasks._rows import Table
from octobert.tasks._task import Extremes, Result
from octobert.tasks._vectors import Embedding

# Documents of a query that a search by bits finds: four for each one that metrics look at, as is usual.
_SHORTLIST = 400
_LAST = np.finfo(np.float32).min


@dataclass(frozen=True, kw_only=True)
class Retrieval(Ranked, Embedding):
    """Queries, and all distinct documents of the rows. Texts are the queries in order, then the documents.

    Args:
        dimensions: of vectors that are cut, see `evaluation.stored`.
        coarse: a search by the signs of vectors chooses the documents that are ranked.
    """

    searches: ClassVar[bool] = True
    # That of `Embedding`, not of `Ranked`.
    head: str = "embedding"
    dimensions: tuple[int, ...] = ()
    coarse: bool = False

    def searched(self, rows: Sequence[Row]) -> list[Row]:
        return [{**row, self.names.query: None} for row in rows]

    def read_inputs(self, table: Table) -> list[Text]:
        queries, documents = self._read(table)
        return [
            *self.prompted(0, [row[self.names.query] for row in queries]),
            *self.prompted(1, list(documents)),
        ]

    def read_gold(self, table: Table) -> list[Judged]:
        queries, documents = self._read(table)
        self.names.need_relevant(queries, table.where)
        gold: list[Judged] = []
        for row in queries:
            levels = dict(zip(row[self.names.document], row[self.names.relevance], strict=True))
            if (own := row.get(OWN_DOCUMENT)) in documents:
                levels.setdefault(own, LEFT_OUT)
            gold.append([(len(queries) + documents[text], level) for text, level in levels.items()])
        return gold

    def _read(self, table: Table) -> tuple[list[Row], dict[str, int]]:
        """(rows with a query, each document and its number)."""
        rows = self.grouped(table)
        documents = dict.fromkeys(text for row in rows for text in row[self.names.document])
        numbers = {text: number for number, text in enumerate(documents)}
        return [row for row in rows if row[self.names.query] is not None], numbers

    def scored(self, result: Result) -> Iterator[tuple[int, np.ndarray]]:
        """Every document, for each query."""
        vectors, start = self.vectors(result), len(result.gold)
        signs = np.where(vectors > 0, np.float32(1), np.float32(-1)) if self.coarse else vectors
        for part, scores in self.chunks(vectors[:start], vectors[start:]):
            for query, row in zip(part, scores, strict=True):
                if self.coarse and len(row) > _SHORTLIST:
                    row[top(-(signs[start:] @ signs[query]), len(row) - _SHORTLIST)] = -np.inf
                row[[p - start for p, level in result.gold[query] if level == LEFT_OUT]] = _LAST
                yield start, row

    def items(self, result: Result) -> np.ndarray:
        """With what the search of each query costs."""
        if not self.costs:
            return super().items(result)
        vectors, start = self.vectors(result), len(result.gold)
        relevant = [
            np.array([place - start for place, level in judged if level > 0], dtype=np.intp)
            for judged in result.gold
        ]
        cost = self.form.cost(vectors[:start], vectors[start:], relevant)
        return np.hstack([super().items(result), cost])

    def extremes(self, items: np.ndarray) -> Extremes:
        """All documents in the wrong order at the greatest cost, and in the right one at the least."""
        if not self.costs:
            return super().extremes(items)
        metrics, costs = np.hsplit(items, [items.shape[1] - len(self.costs)])
        ends = zip(super().extremes(metrics), (costs.max(axis=0), costs.min(axis=0)), strict=True)
        worst, best = (np.hstack([ranked, cost[None]]) for ranked, cost in ends)
        return worst, best

    def document(self, text: Text) -> str:
        return self.without_prompt(text, 1)

    def query(self, result: Result, index: int) -> str:
        return self.without_prompt(result.texts[index], 0)
