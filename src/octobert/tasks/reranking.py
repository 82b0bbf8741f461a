"""Reranking: queries with the documents that another search found, ranked by the score of each pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.data.tokenization import EncodedTexts, Text
from octobert.data.windows import LongTextOptions
from octobert.tasks._classification import refuse_prompt
from octobert.tasks._one_score import OneScore, activation_of
from octobert.tasks._ranking import METRICS, Columns, Judged, Ranked
from octobert.tasks._rows import Table
from octobert.tasks._task import NOTHING, Result, RowTargets, TaskOptions


class RerankingOptions(TaskOptions, LongTextOptions):
    """Args:
    query, document: columns of a query, and of a document or a list of documents.
    relevance: the column of the relevance of documents, 0 for those that do not answer; read where the data has it.
    negative: the column of a document, or list of documents, that does not answer the query; read where the data has it.
    max_length: tokens of a row; by default the model's limit.
    """

    description: ClassVar[str] = (
        "score documents of queries with a cross-encoder; nDCG@10, MRR, MAP and recall by query"
    )

    query: str = "query"
    document: str = "document"
    relevance: str = "relevance"
    negative: str = "negative"
    max_length: int | None = Field(default=None, ge=2)

    def build(self, metadata: ModelMetadata = NOTHING) -> Reranking:
        """Return the task for a model.

        Raises:
            DataError: a model that gives no score, or puts a prompt before its texts.
        """
        refuse_prompt(metadata)
        if len(metadata.labels) > 1:
            raise DataError(
                "a reranker gives one score",
                where="task.reranking",
                got=f"{len(metadata.labels)} ({', '.join(metadata.labels)})",
                expected="a model with one logit",
                fix="use the task text-classification",
            )
        return Reranking(
            text=((self.query, self.document),),
            labels=metadata.labels or ("score",),
            texts=2,
            activation=activation_of(metadata),
            max_length=self.max_length,
            windows=self,
            # All of the few documents that are reranked are among the first hundred.
            metrics={name: metric for name, metric in METRICS.items() if name != "recall@100"},
            names=Columns(self.query, self.document, self.relevance, self.negative),
        )


@dataclass(frozen=True, kw_only=True)
class Reranking(Ranked, OneScore):
    """Queries, and the documents of each. Texts are the pairs, query by query."""

    head: str = "sequence-classification"

    def read_inputs(self, table: Table) -> list[Text]:
        return [
            (query, document)
            for query, *documents in self.row_texts(table)
            for document in documents
        ]

    def row_texts(self, table: Table) -> list[Text]:
        rows = super().row_texts(table)
        if not all(query for query, *_ in rows):
            raise DataError(
                "a row has no query", where=table.where, fix="give each document with its query"
            )
        return rows

    def read_gold(self, table: Table) -> list[Judged]:
        rows, gold, start = self.grouped(table), list[Judged](), 0
        self.names.need_relevant(rows, table.where)
        for row in rows:
            levels = row[self.names.relevance]
            gold.append([(start + i, level) for i, level in enumerate(levels)])
            start += len(levels)
        if len(rows) > 1 and all(level for judged in gold for _, level in judged):
            raise DataError(
                "every document of every query is relevant, so that no ranking is wrong",
                where=table.where,
                got=table.columns,
                expected=f"documents with a {self.names.relevance} of 0, or a column {self.names.negative}",
                fix="add what the search that is reranked finds besides",
            )
        return gold

    def targets(self, encoded: EncodedTexts, gold: Sequence[Judged]) -> list[RowTargets]:
        levels = [float(level) for judged in gold for _, level in judged]
        return [{"labels": level} for level in encoded.of_rows(levels)]

    def scored(self, result: Result) -> Iterator[tuple[int, np.ndarray]]:
        """The documents of each query, by their logits: activations have ties where logits have none."""
        for judged in result.gold:
            start = judged[0][0]
            yield start, result.logits[start : start + len(judged), 0]

    def document(self, text: Text) -> str:
        return text[1]

    def query(self, result: Result, index: int) -> str:
        return str(result.texts[result.gold[index][0][0]][0])
