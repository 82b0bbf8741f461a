"""A model that embeds a column of a table: the vectors of rows, in their order, and none where the model cannot read a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from octobert.core.errors import ColumnError, DataError, ModelError, TokenError, did_you_mean
from octobert.core.frozen import lazy
from octobert.data.tokenization import Text, Tokenizer
from octobert.inference import columns
from octobert.inference.opened import FinishedModel
from octobert.inference.predictor import Predictor
from octobert.tasks import Embedding, Result, VectorForm

VECTORS = "embedding"


@dataclass(frozen=True)
class Embedder:
    """A model that embeds a column of a table, for `map_batches` of Ray Data and `predict_batch_udf` of Spark.

    It can be pickled. Each process opens the model at its first use. The same texts together always have the same vectors.

    Args:
        package: A package, `OUT/TARGET`, at a path that all machines see.
        column: Column with the texts.
        prompt: Name of the model's prompt that is put before texts, such as passage. Default: the model's.
        options: Others of `load`: `device`, `streams`, `threads`, `cache`, …

    Example:
        >>> dataset.map_batches(octobert.Embedder, fn_constructor_args=["out/ort-cpu"])  # doctest: +SKIP
    """

    package: str | Path | FinishedModel
    column: str = "text"
    prompt: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return Embedder, (self.package, self.column, self.prompt, self.options)

    @lazy
    def model(self) -> Predictor:
        """Return the model of this process.

        Raises:
            ModelError: it does not embed texts.
        """
        model = Predictor(self.package, goal="throughput", measure=False, **self.options)
        if not isinstance(model.task, Embedding):
            raise ModelError(
                "the model does not embed texts",
                where=str(model.folder),
                got=f"a model for {model.opened.facts().name}",
                fix="octobert.load opens it",
            )
        return model

    @lazy
    def _tokenizer(self) -> Tokenizer:
        return self.model.opened.tokenizer(self.model.task)

    def __call__(self, batch: Mapping[str, np.ndarray] | pa.Table) -> pa.Table:
        """Return rows with the column `embedding`, null where the model has no embedding for a token of the text.

        Args:
            batch: Columns by name, or a table.

        Raises:
            DataError: A row has no text.
            ColumnError: There is no column of texts, or two, or there is one of vectors already.
        """
        table = batch if isinstance(batch, pa.Table) else pa.table(dict(batch))
        check_columns([self.column], table.schema, "the batch")
        return with_vectors(table, self.column_of(values_of(table, self.column)))

    def column_of(self, texts: Iterable[str]) -> pa.Array:
        """Return the embeddings of texts as a column; null where the model has no embedding for a token."""
        parsed = self.parsed(texts, "", 1)
        known = [text for text in parsed if not isinstance(text, TokenError)]
        valid = np.array([not isinstance(text, TokenError) for text in parsed], dtype=bool)
        return columns.spread(self._form.column(self._vectors(known)), valid)

    @property
    def _form(self) -> VectorForm:
        assert isinstance(self.model.task, Embedding)
        return self.model.task.form

    def vectors(self, texts: Iterable[str]) -> Any:
        """Return the embeddings of texts: an array of float32 [texts, width]; sparse ones as a matrix of SciPy.

        Args:
            texts: Any number, which are in memory at once.

        Raises:
            DataError: A row has no text, or one with a token that the model has no embedding for.
        """
        parsed = list[Text]()
        for text in self.parsed(texts, "", 1):
            if isinstance(text, TokenError):
                raise text
            parsed.append(text)
        return self._vectors(parsed)

    def _vectors(self, parsed: Sequence[Text]) -> Any:
        # Engines also give blocks without rows, whose vectors have a width too.
        task = self.model.task
        assert isinstance(task, Embedding)
        encoded = task.encode(self._tokenizer, parsed or [task.parse("", where="")])
        return task.vectors(Result(self.model.outputs(encoded.flat), encoded))[: len(parsed)]

    def parsed(self, texts: Iterable[str], where: str, first: int) -> list[Text | TokenError]:
        """Return texts as the model takes them, and errors of those with a token that it has no embedding for.

        Args:
            where: what stands before the number of a row in errors.
            first: number of the first row.

        Raises:
            DataError: A row has no text.
        """
        prompt, task, parsed = self.prompt, self.model.task, list[Text | TokenError]()
        try:
            for row, text in enumerate(texts, first):
                given = text if prompt is None else {"text": text, "prompt": prompt}
                known = task.parse(given, where=f"{where}row {row}")
                try:
                    if self._tokenizer.unread:
                        task.encode(self._tokenizer, [known])
                    parsed.append(known)
                except TokenError as error:
                    error.where = f"{where}row {row}"
                    parsed.append(error)
        except UnicodeDecodeError as error:
            raise DataError(
                "the text is not UTF-8",
                where=f"{where}row {first + len(parsed)}",
                got=str(error),
                fix="write the column again from decoded texts",
            ) from error
        return parsed


def values_of(table: pa.Table, column: str) -> Iterator[Any]:
    """Yield the values of a column one by one, so that the reader knows at which a text cannot be decoded."""
    return (value.as_py() for value in table[column])


def with_vectors(table: pa.Table, column: pa.Array) -> pa.Table:
    """Return rows with the column of their vectors."""
    if VECTORS in table.column_names:
        raise ColumnError(
            f'there is a column "{VECTORS}" already', fix="rename it, or do not keep it"
        )
    return table.append_column(VECTORS, column)


def check_columns(names: Iterable[str], schema: pa.Schema, where: str) -> None:
    """Make sure that a table has one column of each name.

    Raises:
        ColumnError: it has none, or several.
    """
    for name in names:
        if (count := schema.names.count(name)) != 1:
            raise ColumnError(
                f'{count or "there is no"} column{"s have the name" if count else ""} "{name}"',
                where=where,
                fix="rename all but one" if count else did_you_mean(name, schema.names),
            )
