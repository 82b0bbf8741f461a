"""Late interaction (ColBERT): a vector for each token of a text. The score of a document is, for each token of the query, the
best product with a token of the document, added up.

Queries and documents begin with markers of their own. Queries are filled up with mask tokens, whose vectors count, and
documents have no vectors of punctuation, where the model is trained so.

Source: Khattab and Zaharia, ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT,
2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from octobert.core.errors import DataError, ModelError
from octobert.core.measurements import FidelityKind
from octobert.core.model_config import Reading, Similarity
from octobert.core.results import ModelMetadata
from octobert.core.session import TOKEN_VECTORS
from octobert.core.wording import numbers_text
from octobert.data.encoded import Encoded, split
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.tasks._task import NOTHING, Outputs
from octobert.tasks._vectors import Embedding, VectorForm
from octobert.tasks.embedding import DOCUMENT, QUERY, VectorOptions, sided


class LateInteractionOptions(VectorOptions):
    """As those of the task embedding."""

    description: ClassVar[str] = (
        "embed each token of texts (ColBERT); as embedding, by the best products of tokens"
    )

    def build(self, metadata: ModelMetadata = NOTHING) -> Embedding:
        """Return the task for a model.

        Raises:
            DataError: the options name a prompt that the model does not have, or nothing says how it reads texts.
        """
        if metadata.reading is None and metadata is not NOTHING:
            raise DataError(
                "nothing says how the model reads queries and documents",
                where="task.late-interaction",
                expected="a model of PyLate, of sentence-transformers (MultiVectorEncoder) or of Stanford's ColBERT",
                fix="choose the task embedding, or copy the model again",
            )
        reading = metadata.reading or Reading()
        most = self.max_length or (reading.lengths[1] and max(filter(None, reading.lengths)))
        return self.replaced(max_length=most).built(
            sided(metadata),
            head="late-interaction",
            form=TokenVectors(reading),
            per_token=True,
        )


@dataclass(frozen=True)
class TokenVectors(VectorForm):
    """Vectors of the tokens of each text, an array of arrays [tokens, dimensions] of length 1.

    Args:
        reading: how the model reads texts.
    """

    stored: ClassVar[str] = TOKEN_VECTORS
    reading: Reading

    @property
    def told(self) -> bool:
        """By their markers, at least."""
        return True

    def rows(self, texts: Sequence[Text], tokenizer: Tokenizer) -> list[list[Encoded]]:
        """Rows with markers and fillers, which keep the vectors of their tokens.

        Args:
            texts: the text, and `query` or what else it is.

        Raises:
            ModelError: the vocabulary has no marker, or no token that fills queries up.
        """
        encoded = tokenizer.encode([text[:1] for text in texts])
        sides = {name: _Side(self.reading, name, tokenizer) for name in {text[1] for text in texts}}
        return [[sides[text[1]].row(row)] for text, row in zip(texts, encoded, strict=True)]

    def read(self, outputs: Outputs, encoded: EncodedTexts) -> np.ndarray:
        """The vectors of each text."""
        rows = encoded.flat
        vectors = np.empty(len(rows), dtype=object)
        for index, part in enumerate(split(outputs[TOKEN_VECTORS], rows)[: len(rows)]):
            vectors[index] = part
        return vectors

    def similarities(self, kind: Similarity, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """[n, m]: of each query's tokens the best products with a document's, added up.

        Args:
            kind: tokens have one similarity.
            first, second: vectors of queries, and of documents.
        """
        tokens, starts = _joined(first)
        scores = np.empty((len(first), len(second)))
        # Document by document: the best products of all of them would be as many times larger as queries have tokens.
        for place, found in enumerate(second):
            best = (tokens @ found.T).max(axis=1)
            scores[:, place] = np.add.reduceat(best, starts, dtype=np.float64)
        return scores

    def cosines(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The mean over the tokens; of texts of other lengths, over the best products of the first one's tokens."""
        pairs = zip(first, second, strict=True)
        return np.array(
            [
                np.sum(a.astype(np.float64) * b, axis=-1).mean()
                if a.shape == b.shape
                else (a @ b.T).max(axis=-1).mean()
                for a, b in pairs
            ]
        )

    def agreement(
        self, ours: np.ndarray, reference: np.ndarray
    ) -> tuple[str, np.ndarray, FidelityKind]:
        """The mean cosine of the tokens."""
        return "mean cosine of tokens", self.cosines(ours, reference), "cosine"

    def error(self, ours: np.ndarray, reference: np.ndarray) -> float:
        """Of all entries."""
        differences = _joined(ours)[0].astype(np.float64) - _joined(reference)[0]
        return float(np.sqrt(np.mean(differences**2)))

    def answer(
        self, vectors: np.ndarray, index: int, tokenizer: Tokenizer | None
    ) -> dict[str, Any]:
        """All numbers of all tokens."""
        return {"embeddings": vectors[index].tolist()}

    def line(self, answer: Mapping[str, Any]) -> str:
        """How many vectors there are, and the first numbers."""
        vectors = answer["embeddings"]
        return f"{len(vectors)} × [{numbers_text(vectors[0])}, …] ({len(vectors[0])})"

    def column(self, vectors: np.ndarray) -> Any:
        """For each text a list of lists of one length, of float32."""
        import pyarrow as pa

        tokens, starts = _joined(vectors)
        numbers = pa.array(tokens.astype(np.float32).reshape(-1))
        offsets = pa.array([*starts, len(tokens)], pa.int32())
        return pa.ListArray.from_arrays(
            offsets, pa.FixedSizeListArray.from_arrays(numbers, tokens.shape[-1])
        )


def _joined(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(all vectors one after another, where those of each text begin)."""
    sizes = [len(each) for each in vectors]
    starts = np.cumsum([0, *sizes[:-1]]) if sizes else np.zeros(0, dtype=np.intp)
    return (np.concatenate(list(vectors)) if sizes else np.zeros((0, 1), np.float32)), starts


class _Side:
    """How texts of one side, queries or documents, become rows.

    Raises:
        ModelError: the vocabulary has no marker, or no token that fills queries up.
    """

    def __init__(self, reading: Reading, name: str, tokenizer: Tokenizer) -> None:
        side = 0 if name == QUERY else 1
        marker = reading.markers[side]
        self._marker = [_id_of(marker, tokenizer, "marker")] if marker else []
        self._most = min(reading.lengths[side] or tokenizer.max_length, tokenizer.max_length)
        self._end = len(tokenizer.frame(1).special[-1])
        self._filled = min(reading.filled, self._most) if side == 0 else 0
        self._filler = 0
        if self._filled:
            filler = reading.filler or tokenizer.mask[0]
            self._filler = _id_of(filler, tokenizer, "token that fills queries up")
        self._attended = reading.attended
        skips = (QUERY if side == 0 else DOCUMENT) in reading.skipping
        known = map(tokenizer.id_of, reading.skipped if skips else ())
        self._skipped = [i for i in known if i is not None and i not in tokenizer.unknown]

    def row(self, row: Encoded) -> TokensRow:
        """The row of a text: marked, cut and filled up."""
        most = self._most - len(self._marker)
        ids, truncated = row.ids, row.truncated or len(row) > most
        if len(ids) > most:
            ids = np.concatenate([ids[: most - self._end], ids[len(ids) - self._end :]])
        ids = np.concatenate([ids[:1], self._marker, ids[1:]]).astype(np.int64)
        places = np.flatnonzero(~np.isin(ids, self._skipped))
        missing = max(0, self._filled - len(ids))
        if not len(places) + missing:
            raise ModelError(
                "no token of a text has a vector",
                got=f"{len(self._skipped)} tokens that are skipped",
                expected="vectors of special tokens, at least",
                fix="copy the model again",
            )
        attended = len(ids) + missing * self._attended
        fillers = np.arange(len(ids), len(ids) + missing)
        ids = np.concatenate([ids, np.full(missing, self._filler, np.int64)])
        types = np.zeros_like(ids)
        return TokensRow(ids, types, truncated, np.concatenate([places, fillers]), attended)


def _id_of(token: str, tokenizer: Tokenizer, what: str) -> int:
    index = tokenizer.id_of(token)
    if index is None:
        index = tokenizer.id_of(token.strip())
    if index is None:
        raise ModelError(
            f"the vocabulary has no {what}",
            got=repr(token),
            fix="save the model again with the library that it was trained with",
        )
    return index


@dataclass(frozen=True)
class TokensRow(Encoded):
    """A row that keeps the vectors of some of its tokens.

    Args:
        places: of these tokens.
        attended: see `Encoded.attended`.
    """

    places: np.ndarray
    attended: int = 0

    @property
    def entries(self) -> int:
        """One for each token with a vector."""
        return len(self.places)

    def kept(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The vectors of these tokens."""
        return {name: array[self.places] for name, array in outputs.items()}
