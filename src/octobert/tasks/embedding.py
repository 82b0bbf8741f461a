"""Sentence embeddings: pairs with a gold score, queries with their document, or texts alone."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator

from octobert.core.frozen import FrozenModel
from octobert.core.results import Stated
from octobert.tasks._embedding import Embedding, Form, check_prompt
from octobert.tasks._task import NOTHING

DESCRIPTION = "embed texts; Spearman on scored pairs, MRR@10 and recall on query→document, or fidelity to float"
FILES: tuple[str, ...] = ()
_DOCUMENTS = ("document", "passage", "corpus")


class Options(FrozenModel):
    """Give the columns of one form; by default, pairs `sentence1`, `sentence2`, `score`.

    Args:
        text: one column of texts without gold, or two columns of a pair.
        score: the gold column of a pair.
        query, document: columns of a query and the document that answers it.
        prompt: name of the model's prompt that is put before texts; by default the one that the model states; "" for none.
        query_prompt, document_prompt: names of the prompts of queries and documents; by default the model's `query`, and the
            first of its `document`, `passage` and `corpus`; "" for none.
        max_length: tokens of a text; by default the model's limit.
    """

    text: tuple[str, ...] = Field(default=(), max_length=2)
    score: str | None = None
    query: str | None = None
    document: str | None = None
    prompt: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
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


def build(options: Options, stated: Stated = NOTHING) -> Embedding:
    """The task for a model.

    Raises:
        DataError: the options name a prompt that the model does not have.
    """
    form: Form = "pairs"
    columns: tuple[str, ...] = options.text or ("sentence1", "sentence2")
    if options.query is not None and options.document is not None:
        form, columns = "retrieval", (options.query, options.document)
    elif len(columns) == 1:
        form = "texts"
    prompts = stated.prompts
    prompt = (stated.default_prompt or "") if options.prompt is None else options.prompt
    used = (prompt,) * len(columns)
    if form == "retrieval":
        used = (_chosen(options.query_prompt, ("query",), prompts), _chosen(options.document_prompt, _DOCUMENTS, prompts))
    for name in (prompt, *used):
        # Before the model is read, none of its prompts is known.
        if stated is not NOTHING:
            check_prompt(name, prompts, where="task.embedding")
    return Embedding(
        form,
        columns,
        (options.score or "score") if form == "pairs" else None,
        options.max_length,
        prompts=prompts,
        used=used,
        prompt=prompt,
    )


def _chosen(name: str | None, usual: tuple[str, ...], prompts: Mapping[str, str]) -> str:
    """The prompt that the options name, else the first of the usual names that the model has."""
    return next((known for known in usual if known in prompts), "") if name is None else name
