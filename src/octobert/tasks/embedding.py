"""Sentence embeddings: pairs with a gold score, queries with their documents, or texts alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from octobert.core.errors import each
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.plain import beginning
from octobert.core.results import ModelMetadata
from octobert.data.tokenization import Text
from octobert.data.windows import LongTextOptions
from octobert.tasks._metrics import SCORES, TOP, moved, named
from octobert.tasks._ranking import METRICS, Columns, cost_metrics, top
from octobert.tasks._retrieval import Retrieval
from octobert.tasks._rows import Table, is_number, number_of
from octobert.tasks._task import (
    NOTHING,
    Change,
    Pair,
    Predictions,
    Result,
    once,
)
from octobert.tasks._texts import Correlated, TextOptions, Unscored
from octobert.tasks._vectors import DenseVectors, Embedding, VectorForm, check_prompt

# Names of what a text is, where queries and documents are read in different ways.
QUERY, DOCUMENT = "query", "document"
_DOCUMENTS = (DOCUMENT, "passage", "corpus")
# Usual names of texts alone.
_ALONE = ("text", "sentence", "content", "body", "passage", DOCUMENT)
# Characters of a neighbour's text.
_NEIGHBOUR = 200
# Index of a text, and its similarity.
Near = tuple[int, float]


class VectorOptions(TextOptions):
    """Give the columns of one form; by default, pairs `sentence1`, `sentence2`, `score`, or the one text column that rows have.

    Args:
        text: one column of texts without gold, or two columns of a pair.
        score: the gold column of a pair.
        query, document: columns of a query and the document, or list of documents, that answers it.
        relevance: the column of the relevance of documents, 0 for those that do not answer; read where the data has it.
        negative: the column of a document, or list of documents, that does not answer the query; read where the data has it.
        prompt: name of the model's prompt that is put before texts; by default the one that the model states; "" for none.
        query_prompt, document_prompt: names of the prompts of queries and documents; by default the model's `query`, and the
            first of its `document`, `passage` and `corpus`; "" for none.
        max_length: tokens of a text; by default the model's limit.
    """

    score: str | None = None
    query: str | None = None
    document: str | None = None
    relevance: str = "relevance"
    negative: str = "negative"
    prompt: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    max_length: int | None = Field(default=None, ge=2)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.query is None) != (self.document is None):
            raise ValueError("query and document go together")
        if self.query is not None and (self.text or self.score):
            raise ValueError("give text columns, or query and document, not both")
        if len(self.text) == 1 and self.score is not None:
            raise ValueError("a score needs two text columns")
        return self

    def built(
        self,
        metadata: ModelMetadata,
        *,
        form: VectorForm = DenseVectors(),
        **others: Any,
    ) -> Embedding:
        """The task for a model, by the columns that the options name.

        Args:
            form: of the model's vectors.
            others: fields of the task, such as `similarity`.

        Raises:
            DataError: the options name a prompt that the model does not have.
        """
        prompts = metadata.prompts
        prompt = (metadata.default_prompt or "") if self.prompt is None else self.prompt
        columns: tuple[str, ...] = self.text or ("sentence1", "sentence2")
        used = (prompt,) * len(columns)
        if form.told and len(columns) == 2:
            used = (QUERY, DOCUMENT)
        if self.query is not None and self.document is not None:
            columns = (self.query, self.document)
            used = (
                _chosen(self.query_prompt, (QUERY,), prompts),
                _chosen(self.document_prompt, _DOCUMENTS, prompts),
            )
        for name in (prompt, *used):
            # Before the model is read, none of its prompts is known.
            if metadata is not NOTHING:
                check_prompt(name, prompts, where="task.embedding")
        shared: dict[str, Any] = {
            "columns": columns,
            "max_length": self.max_length,
            "prompts": prompts,
            "used": used,
            "prompt": prompt,
            "form": form,
            **others,
        }
        if self.query is not None:
            names = Columns(self.query, str(self.document), self.relevance, self.negative)
            metrics = {**METRICS, **cost_metrics(form.costs)}
            return Retrieval(**shared, names=names, metrics=metrics, costs=form.costs)
        if len(columns) == 1:
            return Texts(**shared)
        return Pairs(
            **shared,
            score=self.score or "score",
            primary="spearman",
            metrics=named(SCORES, "spearman"),
        )


class EmbeddingOptions(VectorOptions, LongTextOptions):
    """Args:
    dimensions: of retrieval: how many of the first dimensions are stored, for models that are trained to be cut (Matryoshka);
        each is a line of the report.
    """

    description: ClassVar[str] = (
        "embed texts; Spearman on scored pairs, nDCG@10, MRR, MAP and recall of ranked documents, or fidelity to float"
    )

    dimensions: tuple[Annotated[int, Field(gt=0)], ...] = ()

    def build(self, metadata: ModelMetadata = NOTHING) -> Embedding:
        """Return the task for a model.

        Raises:
            DataError: the options name a prompt that the model does not have.
        """
        similarity = metadata.similarity or "cosine"
        task = self.built(metadata, similarity=similarity, windows=self)
        return replace(task, dimensions=self.dimensions) if isinstance(task, Retrieval) else task


def text_alone(table: Table) -> str | None:
    """The column of rows that are texts alone: that of a usual name, or the only texts; None of rows of another form.

    Example:
        >>> text_alone(Table([{"id": 7, "body": "a text", "url": "b"}], where="dev.csv"))
        'body'
    """
    row = dict(table.rows[0]) if table.rows else {}
    if not {"sentence1", "sentence2", "score", QUERY}.isdisjoint(row):
        return None
    texts = [
        name
        for name, cell in row.items()
        if isinstance(cell, str) and not is_number(cell) and not re.search(r"(^|_)id$", name, re.I)
    ]
    usual = [name for name in _ALONE if name in texts]
    return next(iter(usual or texts[:1])) if usual or len(texts) == 1 else None


def sided(metadata: ModelMetadata) -> ModelMetadata:
    """What a model states, where each text is told to be a query or a document: documents, if nobody says."""
    if metadata is NOTHING:
        return metadata
    return metadata.replaced(
        prompts={QUERY: "", DOCUMENT: "", **metadata.prompts},
        default_prompt=metadata.default_prompt or DOCUMENT,
    )


def _chosen(name: str | None, usual: tuple[str, ...], prompts: Mapping[str, str]) -> str:
    """The prompt that the options name, else the first of the usual names that the model has."""
    return (
        next((usual_name for usual_name in usual if usual_name in prompts), "")
        if name is None
        else name
    )


@dataclass(frozen=True, kw_only=True)
class Pairs(Embedding, Correlated):
    """Pairs with a gold score. Items: similarity of each pair, and its gold score.

    Args:
        score: the gold column.
    """

    score: str

    def read_inputs(self, table: Table) -> list[Text]:
        """Column by column: all first texts, then all second texts."""
        table.need(*self.columns)
        return [
            text
            for place, column in enumerate(self.columns)
            for text in self.prompted(place, table.texts(column))
        ]

    def row_texts(self, table: Table) -> list[Text]:
        inputs, count = self.read_inputs(table), len(table.rows)
        return [(inputs[i][0], inputs[count + i][0]) for i in range(count)]

    def read_gold(self, table: Table) -> list[float]:
        table.need(self.score)
        return each(number_of, table.cells(self.score))

    def judged(self, result: Result) -> Predictions:
        """Similarities and gold scores."""
        return Predictions(self._scores(result), np.asarray(result.gold, dtype=np.float64))

    @once
    def _scores(self, result: Result) -> np.ndarray:
        """[pairs] the similarity of the two texts of each pair."""
        vectors, count = self.vectors(result), len(result.texts) // 2
        scores = (
            self.form.similarities(self.similarity, vectors[i : i + 1], vectors[j : j + 1])
            for i, j in zip(range(count), range(count, 2 * count), strict=True)
        )
        return np.array([score.item() for score in scores])

    def changes(self, ours: Result, reference: Result) -> Iterator[Change]:
        """Yield similarities that changed clearly, see `moved`."""
        after, before = self._scores(ours), self._scores(reference)
        yield from ((i, f"{before[i]:.4f}", f"{after[i]:.4f}") for i in moved(after, before))

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """With both texts."""
        texts = pair[0].texts
        first, second = texts[index], texts[len(texts) // 2 + index]
        both = self.without_prompt(first, 0), self.without_prompt(second, 1)
        scores = [float(self._scores(result)[index]) for result in pair]
        return self.scored_row(pair, index, answers, scores, texts=both)


@dataclass(frozen=True, kw_only=True)
class Texts(Embedding, Unscored):
    """Texts alone: nothing is judged but fidelity to the float model."""

    def read_inputs(self, table: Table) -> list[Text]:
        table.need(*self.columns)
        return self.prompted(0, table.texts(self.columns[0]))

    @once
    def neighbours(self, result: Result) -> list[list[Near]]:
        """The nearest other texts of each text, the nearest first."""
        vectors = self.vectors(result)
        texts = [text[0] for text in result.texts]
        _, firsts, own = np.unique(texts, return_index=True, return_inverse=True)
        nearest = list[list[Near]]()
        for part, scores in self.chunks(vectors, vectors[firsts]):
            scores[np.arange(len(part)), own[part]] = -np.inf
            nearest += [
                [(int(firsts[i]), float(row[i])) for i in top(row, TOP) if np.isfinite(row[i])]
                for row in scores
            ]
        return nearest

    def changes(self, ours: Result, reference: Result) -> Iterator[Change]:
        """Yield texts with another nearest text."""
        texts = ours.texts
        nearest = zip(self.neighbours(reference), self.neighbours(ours), strict=True)
        for i, (old, new) in enumerate(nearest):
            if old and old[0][0] != new[0][0]:
                yield i, texts[old[0][0]][0], texts[new[0][0]][0]

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """With the nearest texts."""
        texts, sides = pair[0].texts, [self.neighbours(result)[index] for result in pair]
        explained = [
            Answer(
                text=self._beginning(texts[side[0][0]]),
                score=side[0][1],
                neighbours=tuple((self._beginning(texts[i]), score) for i, score in side),
            )
            for side in sides
        ]
        change = sides[0][0][1] - sides[1][0][1]
        shown = (self.without_prompt(texts[index], 0),)
        return self.row_of(pair, index, explained, texts=shown, change=change)

    def _beginning(self, text: Text) -> str:
        return beginning(self.without_prompt(text, 0), _NEIGHBOUR)
