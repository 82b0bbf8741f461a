"""Sentence embeddings: pairs with a gold score, queries with their document, or texts alone."""

from __future__ import annotations

from pydantic import Field, model_validator

from octobert.core.frozen import FrozenModel
from octobert.tasks._embedding import Embedding

DESCRIPTION = "embed texts; Spearman on scored pairs, MRR@10 and recall on query→document, or fidelity to float"
FILES: tuple[str, ...] = ()


class Options(FrozenModel):
    """Give the columns of one form; by default, pairs `sentence1`, `sentence2`, `score`.

    Args:
        text: one column of texts without gold, or two columns of a pair.
        score: the gold column of a pair.
        query, document: columns of a query and the document that answers it.
        max_length: tokens of a text; by default the model's limit.
    """

    text: tuple[str, ...] = Field(default=(), max_length=2)
    score: str | None = None
    query: str | None = None
    document: str | None = None
    max_length: int | None = Field(default=None, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _one_column(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("text"), str):
            return {**value, "text": (value["text"],)}
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Options:
        if (self.query is None) != (self.document is None):
            raise ValueError("query and document go together")
        if self.query is not None and (self.text or self.score):
            raise ValueError("give text columns, or query and document, not both")
        if len(self.text) == 1 and self.score is not None:
            raise ValueError("a score needs two text columns")
        return self


def build(options: Options, labels: tuple[str, ...] = ()) -> Embedding:
    """The task; `labels` has no meaning here."""
    if options.query is not None and options.document is not None:
        return Embedding("retrieval", (options.query, options.document), None, options.max_length)
    if len(options.text) == 1:
        return Embedding("texts", options.text, None, options.max_length)
    return Embedding("pairs", options.text or ("sentence1", "sentence2"), options.score or "score", options.max_length)
