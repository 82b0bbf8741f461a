"""Queries and the documents that are ranked for them: the forms of their rows, and metrics of trec_eval.

    query, document[, relevance]    a document, or a list of them with a list of relevances; without relevances all are relevant
    query, document, negative       triples: the second document, or list, does not answer the query
    document                        without a query: a document that is searched too (`data.corpus`)

Rows of one query become one row before rows are counted, drawn or kept apart: see `Columns.grouped`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from octobert.core.errors import DataError
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.plain import beginning, preview
from octobert.data.beir import OWN_DOCUMENT, QUERY_ID
from octobert.data.sampling import ROW_NUMBER, Row
from octobert.data.tokenization import Text
from octobert.tasks._metrics import TOP
from octobert.tasks._rows import Table, number_of, text_of
from octobert.tasks._task import Change, Extremes, Metric, Pair, Result, Task, once

# Name → how ir_measures writes it.
_MEASURES = {
    "ndcg@10": "nDCG@10",
    "mrr@10": "RR@10",
    "map@100": "AP@100",
    "recall@1": "R@1",
    "recall@10": "R@10",
    "recall@100": "R@100",
}
# Documents of a query that metrics look at; and those that a reader looks at.
_DEPTH, _SHOWN = 100, 10
# Documents whose scores differ by less, relative to the score, are tied, whatever a matrix product made of equal ones.
_TIE = 1e-9
# Characters of a document that is shown.
_LONGEST = 200
# The relevance of a document that is left out of what a query finds.
LEFT_OUT = -1
# What is expected of a query: (place of a text, relevance) of each of its documents.
Judged = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Columns:
    """Names of the columns in the data. `relevance` and `negative` are read where rows have them."""

    query: str
    document: str
    relevance: str = "relevance"
    negative: str = "negative"

    def grouped(self, table: Table) -> list[Row]:
        """One row for each query, with lists of its documents and their relevances, and one for each document without a query.

        Rows that have this form already are returned as they are. A document that a query has twice has its highest relevance.

        Raises:
            ColumnError: columns are missing.
            DataError: a cell cannot be read, or a query has no documents.
        """
        table.need(self.query, self.document)
        rows: dict[Any, Row] = {}
        for index, row in enumerate(table.rows):
            asked = row.get(self.query)
            query = None if asked is None else text_of(asked, table.place(self.query, index))
            kept = rows.setdefault(
                index if query is None else (query, str(row.get(QUERY_ID))),
                {
                    **{key: row[key] for key in (QUERY_ID, OWN_DOCUMENT) if key in row},
                    self.query: query,
                    self.document: {},
                    ROW_NUMBER: row.get(ROW_NUMBER, index + 1),
                },
            )
            documents = kept[self.document]
            for text, relevance in self._judged(table, index):
                documents[text] = max(relevance, documents.get(text, relevance))
        return [
            {
                **row,
                self.document: list(row[self.document]),
                self.relevance: list(row[self.document].values()),
            }
            for row in rows.values()
        ]

    def _judged(self, table: Table, index: int) -> list[tuple[str, int]]:
        """(document, relevance) of a row."""
        row, place = table.rows[index], table.place(self.relevance, index)
        texts = _texts(row[self.document], table.place(self.document, index))
        stated = row.get(self.relevance)
        levels = stated if isinstance(stated, (list, tuple)) else [stated]
        if stated is None:
            levels = [1] * len(texts)
        if not texts:
            raise DataError(
                "the query has no documents",
                where=table.place(self.document, index),
                fix="remove the row or fill it in",
            )
        if len(levels) != len(texts):
            raise DataError(
                "the row has another number of relevances than of documents",
                where=place,
                got=str(len(levels)),
                expected=str(len(texts)),
                fix="give one for each document",
            )
        negative = row.get(self.negative)
        others = _texts(negative, table.place(self.negative, index)) if negative else []
        judged = [(text, _level(each, place)) for text, each in zip(texts, levels, strict=True)]
        return judged + [(text, 0) for text in others]

    def need_relevant(self, rows: Sequence[Row], where: str) -> None:
        """Refuse grouped rows with a query that has no right answer.

        Raises:
            DataError: with the query.
        """
        for row in rows:
            if row[self.query] is not None and not any(row[self.relevance]):
                raise DataError(
                    "the query has no relevant document",
                    where=f"{where}, row {row[ROW_NUMBER]}",
                    got=preview(row[self.query]),
                    fix="leave its rows out, or give a document that answers it",
                )


def _texts(cell: Any, place: str) -> list[str]:
    cells = list(cell) if isinstance(cell, (list, tuple)) else [cell]
    return [text_of(each, place) for each in cells]


def _level(value: Any, place: str) -> int:
    number = number_of(value, place)
    if number != int(number):
        raise DataError(
            "the relevance is not a whole number",
            where=place,
            got=preview(value),
            expected="0 for a document that does not answer the query; higher for better answers",
            fix="round it",
        )
    return max(0, int(number))


def values(gold: Sequence[Judged], ranked: Sequence[Sequence[int]]) -> np.ndarray:
    """The metrics of each query.

    Args:
        gold: what is expected of each query.
        ranked: of each query, places of texts, the best first.

    Returns:
        [queries, metrics] from 0 to 1, in the order of `METRICS`.
    """
    import ir_measures

    measures = {ir_measures.parse_measure(name): i for i, name in enumerate(_MEASURES.values())}
    qrels = {
        str(i): {str(place): level for place, level in judged if level >= 0}
        for i, judged in enumerate(gold)
    }
    run = {
        # trec_eval sorts by score.
        str(i): {str(place): -float(rank) for rank, place in enumerate(places)}
        for i, places in enumerate(ranked)
    }
    result = np.zeros((len(gold), len(measures)))
    for value in ir_measures.iter_calc(list(measures), qrels, run):
        result[int(value.query_id), measures[value.measure]] = value.value
    return result


def _mean(column: int, items: np.ndarray) -> float:
    return float(items[:, column].mean())


METRICS: Mapping[str, Metric] = {
    name: partial(_mean, column) for column, name in enumerate(_MEASURES)
}


def cost_metrics(names: Sequence[str]) -> dict[str, Metric]:
    """The means of what a search costs, whose columns stand behind those of `Ranked.items`."""
    return {name: partial(_mean, 2 * len(METRICS) + i) for i, name in enumerate(names)}


def top(scores: np.ndarray, count: int) -> np.ndarray:
    """[count] places of the highest scores, the highest first; equal ones in their order.

    Of those that equal the last one, any may be among them.

    Args:
        scores: [documents].
    """
    count = min(count, len(scores))
    best = np.sort(np.argpartition(-scores, count - 1)[:count])
    return best[np.argsort(-scores[best], kind="stable")]


@dataclass(frozen=True)
class Found:
    """What a model finds for a query.

    Args:
        start: place of the first of the query's documents among the texts.
        count: the number of its documents.
        best: places of the first documents, the best first.
        scores: of these.
        rank: of the first relevant document.
        right: place of that one.
        score: of that one.
    """

    start: int
    count: int
    best: list[int]
    scores: list[float]
    rank: int
    right: int
    score: float


@dataclass(frozen=True, kw_only=True)
class Ranked(Task):
    """Documents are ranked for queries. Gold of a query are the places of its documents among the texts, and their relevances.

    Args:
        names: of the columns.
    """

    together: ClassVar[bool] = True
    judges: ClassVar[bool] = False
    names: Columns
    primary: str | None = "ndcg@10"
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)

    @abstractmethod
    def scored(self, result: Result) -> Iterator[tuple[int, np.ndarray]]:
        """Of each query: the place of the first of its documents, which stand one after another, and their scores."""

    @abstractmethod
    def document(self, text: Text) -> str:
        """The document of a text, for people."""

    @abstractmethod
    def query(self, result: Result, index: int) -> str:
        """A query, for people."""

    def grouped(self, table: Table) -> list[Row]:
        return self.names.grouped(table)

    def row_texts(self, table: Table) -> list[Text]:
        return [
            (row[self.names.query] or "", *row[self.names.document]) for row in self.grouped(table)
        ]

    @once
    def found(self, result: Result) -> list[Found]:
        """What is found for each query.

        Ties count against the model. Otherwise one with the same vector for every text would be perfect.
        """
        found = []
        for (start, scores), judged in zip(self.scored(result), result.gold, strict=True):
            relevant = [place - start for place, level in judged if level > 0]
            scores = scores.astype(np.float64)
            scores[relevant] -= _TIE * np.maximum(1.0, np.abs(scores[relevant]))
            best, right = top(scores, _DEPTH), relevant[int(scores[relevant].argmax())]
            found.append(
                Found(
                    start=start,
                    count=len(scores),
                    best=(start + best).tolist(),
                    scores=scores[best].tolist(),
                    rank=1 + int(np.sum(scores > scores[right])),
                    right=start + right,
                    score=float(scores[right]),
                )
            )
        return found

    def items(self, result: Result) -> np.ndarray:
        """[queries, 2 · metrics]: the metrics of each query, and those of its documents in random order."""
        generator, found = np.random.default_rng(0), self.found(result)
        shuffled = []
        for query in found:
            count = query.count
            random = generator.choice(count, min(count, _DEPTH), replace=False)
            shuffled.append((query.start + random).tolist())
        ranked = [query.best for query in found]
        return np.hstack([values(result.gold, ranked), values(result.gold, shuffled)])

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """The metrics of documents in random order."""
        random = items[:, len(METRICS) :]
        return {
            name: metric(random) for name, metric in self.metrics.items() if name not in self.costs
        }

    def extremes(self, items: np.ndarray) -> Extremes:
        """All documents in the wrong order, and in the right one."""
        return np.zeros((1, items.shape[1])), np.ones((1, items.shape[1]))

    def quality(self, items: np.ndarray) -> np.ndarray:
        """The main metric."""
        return items[:, 0]

    def expected(self, gold: Judged) -> str:
        count = sum(level > 0 for _, level in gold)
        return f"{count} relevant document{'s' * (count > 1)}"

    def changes(self, ours: Result, reference: Result) -> Iterator[Change]:
        """Yield other ranks of the first relevant document, before or after among the first ten."""
        sides = zip(self.found(reference), self.found(ours), strict=True)
        for i, (before, after) in enumerate(sides):
            if before.rank != after.rank and min(before.rank, after.rank) <= _SHOWN:
                yield i, f"rank {before.rank}", f"rank {after.rank}"

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """With the first documents, and the score of the first relevant one."""
        texts = pair[0].texts
        before, after = (self.found(result)[index] for result in pair)
        shown = [
            Answer(text=answer, score=side.score, neighbours=self._neighbours(side, texts))
            for answer, side in zip(answers, (before, after), strict=True)
        ]
        return self.row_of(
            pair,
            index,
            shown,
            texts=(self.query(pair[0], index),),
            expected=self._shown(texts[before.right]),
            transitions=[(_depth(before.rank), _depth(after.rank))],
            change=before.score - after.score,
        )

    def _neighbours(self, found: Found, texts: Sequence[Text]) -> tuple[tuple[str, float], ...]:
        """The first documents with their scores."""
        first = zip(found.best[:TOP], found.scores, strict=False)
        return tuple((self._shown(texts[place]), score) for place, score in first)

    def _shown(self, text: Text) -> str:
        return beginning(self.document(text), _LONGEST)


def _depth(rank: int) -> str:
    """Where a rank lies."""
    if rank == 1:
        return "rank 1"
    return f"rank 2–{_SHOWN}" if rank <= _SHOWN else f"beyond rank {_SHOWN}"
