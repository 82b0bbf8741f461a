"""Sparse embeddings (SPLADE): a weight for each token of the vocabulary, most of them 0, which an inverted index can search.

A model's vectors are as wide as its vocabulary. Of each, the entries that are not 0 are kept as soon as it is computed. Beside
the ranking of documents, 8 bits are judged by the terms that they keep, and by how many there are: a filled vector ranks well
and is slow to search.

Source: Formal et al., SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from octobert.core.errors import DataError, ModelError
from octobert.core.measurements import FidelityKind
from octobert.core.model_config import Similarity
from octobert.core.results import ModelMetadata
from octobert.core.session import VECTOR
from octobert.data.encoded import Encoded
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.tasks._task import NOTHING, Outputs, UserAnswer
from octobert.tasks._vectors import Embedding, VectorForm
from octobert.tasks.embedding import QUERY, VectorOptions, sided

INDICES, VALUES = "indices", "values"
# Entries that are kept of a vector. Trained models have 20 to 400.
MOST = 1024
# Columns of matrices: more than any vocabulary has tokens. Empty ones take no memory.
_WIDTH = 2**20
_AGAIN = "copy the model again"
# Terms of an answer in one line.
_SHOWN = 8


class SparseEmbeddingOptions(VectorOptions):
    """Args:
    most_active: the largest so many entries of a vector are kept, at most one for each token of the vocabulary; by default what
        the model states, else 1024.
    """

    description: ClassVar[str] = (
        "embed texts as weights of tokens (SPLADE); as embedding, with what a search costs and the overlap of terms"
    )

    most_active: int | None = Field(default=None, gt=0)

    def build(self, metadata: ModelMetadata = NOTHING) -> Embedding:
        """Return the task for a model.

        Raises:
            DataError: the options name a prompt that the model does not have.
        """
        form = SparseVectors(self.most_active or metadata.most_active or MOST, metadata.query_table)
        task = self.built(
            sided(metadata) if form.told else metadata,
            head="sparse-embedding",
            form=form,
            per_token=True,
            similarity=metadata.similarity or "dot",
        )
        if not any(
            form.reads(text) for i in range(len(task.used)) for text in task.prompted(i, [""])
        ):
            raise DataError(
                "the model reads none of the texts: a table makes the vectors of queries",
                where="task.sparse-embedding",
                got=f"the prompt {QUERY}",
                fix="leave the prompt of documents to the model",
            )
        return task


@dataclass(frozen=True)
class SparseVectors(VectorForm):
    """Vectors as rows of a sparse matrix of SciPy. Their entries are above 0.

    Args:
        most: entries that are kept of each.
        tabled: queries are made of the weights of their tokens (`Tokenizer.query_weights`), without the model.
    """

    # Products of a query and a document that a search computes (Paria et al., Minimizing FLOPs to Learn Efficient Sparse
    # Representations, 2020), and entries of a document.
    costs: ClassVar[tuple[str, ...]] = ("flops", "document_terms")
    most: int
    tabled: bool = False

    @property
    def told(self) -> bool:
        """Where queries need no model."""
        return self.tabled

    def reads(self, text: Text) -> bool:
        """All but queries of a table."""
        return not (self.tabled and text[1] == QUERY)

    def rows(self, texts: Sequence[Text], tokenizer: Tokenizer) -> list[list[Encoded]]:
        """Rows that keep the entries of their vector; none for queries that need no model."""
        read = [text for text in texts if self.reads(text)]
        # A text that is told to be a document is one text, no pair.
        encoded = iter(tokenizer.encode([text[:1] for text in read] if self.tabled else read))
        return [[self._row(next(encoded), tokenizer)] if self.reads(text) else [] for text in texts]

    def _row(self, row: Encoded, tokenizer: Tokenizer) -> SparseRow:
        most = min(self.most, tokenizer.vocabulary)
        return SparseRow(row.ids, row.types, row.truncated, most, tokenizer.vocabulary)

    def read(self, outputs: Outputs, encoded: EncodedTexts) -> Any:
        """The matrix, [n, `_WIDTH`]."""
        from scipy.sparse import csr_array

        queries = [index for index, text in enumerate(encoded.texts) if not self.reads(text)]
        if queries:
            outputs = self._completed(outputs, encoded, queries)
        values = outputs[VALUES]
        texts, entries = np.nonzero(values)
        places = texts, outputs[INDICES][texts, entries]
        return csr_array((values[texts, entries], places), (len(values), _WIDTH), dtype=np.float64)

    def _completed(
        self, outputs: Outputs, encoded: EncodedTexts, queries: Sequence[int]
    ) -> dict[str, np.ndarray]:
        """Outputs with the entries of texts that have no row: the weights of their tokens, each once."""
        tokenizer = encoded.tokenizer
        assert tokenizer is not None
        if tokenizer.query_weights is None:
            raise ModelError("the table that makes queries is missing", fix=_AGAIN)
        made: dict[str, list[np.ndarray]] = {INDICES: [], VALUES: []}
        for tokens in tokenizer.offsets([encoded.texts[index][0] for index in queries]):
            most = tokenizer.max_length
            ids = tokens.ids[-most:] if tokenizer.side == "left" else tokens.ids[:most]
            vector = np.zeros(tokenizer.vocabulary, np.float32)
            vector[ids] = tokenizer.query_weights[ids]
            row = self._row(Encoded(ids, np.zeros_like(ids), truncated=False), tokenizer)
            for name, array in row.kept({VECTOR: vector}).items():
                made[name].append(array[0])
        # Places among the texts that have a row.
        places = np.array(queries) - np.arange(len(queries))
        return {
            name: np.insert(
                outputs.get(name, np.zeros((0, *arrays[0].shape), arrays[0].dtype)),
                places,
                arrays,
                axis=0,
            )
            for name, arrays in made.items()
        }

    def similarities(self, kind: Similarity, first: Any, second: Any) -> np.ndarray:
        """Of sums over entries that both have."""
        if kind == "manhattan":
            shared, sums = second.tocsc(), [_sums(first), _sums(second)]
            least = [
                np.minimum(shared[:, row.indices].toarray(), row.data).sum(axis=1)
                for row in (first[[i]] for i in range(first.shape[0]))
            ]
            return np.asarray(2 * np.stack(least) - np.add.outer(*sums))
        products = (first @ second.T).toarray()
        squares = [_sums(matrix.multiply(matrix)) for matrix in (first, second)]
        if kind == "euclidean":
            return np.asarray(-np.sqrt(np.maximum(np.add.outer(*squares) - 2 * products, 0)))
        if kind == "cosine":
            products = products / np.maximum(np.sqrt(np.outer(*squares)), 1e-12)
        return np.asarray(products)

    def cosines(self, first: Any, second: Any) -> np.ndarray:
        """1 where both have no entry."""
        pairs = ((first, second), (first, first), (second, second))
        product, *squares = (_sums(a.multiply(b)) for a, b in pairs)
        cosines = product / np.maximum(np.sqrt(squares[0] * squares[1]), 1e-12)
        return np.where(squares[0] + squares[1] > 0, cosines, 1.0)

    def agreement(self, ours: Any, reference: Any) -> tuple[str, np.ndarray, FidelityKind]:
        """Of the terms that one of both has, those that both have."""
        both, either = self._shared(ours, reference)
        return "overlap of terms", np.where(either > 0, both / np.maximum(either, 1), 1.0), "share"

    def error(self, ours: Any, reference: Any) -> float:
        """Of the entries that one of both has."""
        difference = ours - reference
        _, either = self._shared(ours, reference)
        return float(np.sqrt(difference.multiply(difference).sum() / max(either.sum(), 1)))

    def _shared(self, first: Any, second: Any) -> tuple[np.ndarray, np.ndarray]:
        """How many terms both have, and one of both, [n] each."""
        first, second = (matrix.astype(bool).astype(np.int64) for matrix in (first, second))
        both = _sums(first.multiply(second))
        return both, _sums(first) + _sums(second) - both

    def cost(self, asking: Any, found: Any, relevant: Sequence[np.ndarray]) -> np.ndarray:
        """Of each query: products for a document, the mean of all; and entries of its relevant documents."""
        has = found.astype(bool).astype(np.float64)
        shares = has.sum(axis=0) / max(found.shape[0], 1)
        terms = _sums(has)
        means = [terms[places].mean() if len(places) else 0.0 for places in relevant]
        return np.stack([asking.astype(bool).astype(np.float64) @ shares, means], axis=1)

    def answer(self, vectors: Any, index: int, tokenizer: Tokenizer | None) -> UserAnswer:
        """The entries by falling weight: their places in the vocabulary, their weights, and their tokens."""
        assert tokenizer is not None
        row = vectors[[index]]
        order = np.argsort(-row.data, kind="stable")
        indices = row.indices[order].tolist()
        values = row.data[order].astype(np.float32).tolist()
        return {INDICES: indices, VALUES: values, "tokens": tokenizer.words(indices)}

    def line(self, answer: Mapping[str, Any]) -> str:
        """The heaviest terms."""
        terms = zip(answer["tokens"][:_SHOWN], answer[VALUES], strict=False)
        more = f", … ({len(answer[VALUES])} terms)" if len(answer[VALUES]) > _SHOWN else ""
        return ", ".join(f"{token} {value:.2f}" for token, value in terms) + more

    def column(self, vectors: Any) -> Any:
        """For each text its indices, and their values, two lists of one length."""
        import pyarrow as pa

        parts = vectors.indices.astype(np.int32), vectors.data.astype(np.float32)
        lists = [pa.ListArray.from_arrays(vectors.indptr.astype(np.int32), part) for part in parts]
        return pa.StructArray.from_arrays(lists, [INDICES, VALUES])


def _sums(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.sum(axis=1)).reshape(-1)


@dataclass(frozen=True)
class SparseRow(Encoded):
    """A row that keeps the entries of its vector that are not 0, by rising index; unused places have the value 0.

    Args:
        most: entries that are kept, the largest.
        vocabulary: number of tokens.
    """

    most: int
    vocabulary: int

    @property
    def entries(self) -> int:
        """One vector."""
        return 1

    @property
    def numbers(self) -> int:
        """A logit for each token of the vocabulary, inside of the model."""
        return self.vocabulary

    def kept(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Indices and values, [1, most] each; of a vector [width]."""
        vector = outputs[VECTOR]
        if len(vector) > _WIDTH:
            raise ModelError(
                "the vectors have more entries than any vocabulary has tokens",
                got=f"{len(vector):,}",
                expected=f"at most {_WIDTH:,}",
                fix=_AGAIN,
            )
        places = np.flatnonzero(vector > 0)
        if len(places) > self.most:
            largest = np.argsort(-vector[places], kind="stable")[: self.most]
            places = np.sort(places[largest])
        indices, values = np.zeros((1, self.most), np.int32), np.zeros((1, self.most), np.float32)
        indices[0, : len(places)], values[0, : len(places)] = places, vector[places]
        return {INDICES: indices, VALUES: values}
