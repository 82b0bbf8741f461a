"""Vectors of texts: what tasks on embeddings share, whatever form the vectors have."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from octobert.core.closeness import Measure
from octobert.core.errors import DataError, did_you_mean
from octobert.core.measurements import FidelityKind
from octobert.core.model_config import Similarity
from octobert.core.plain import preview
from octobert.core.session import VECTOR
from octobert.core.wording import numbers_text
from octobert.data.encoded import Encoded
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.tasks._metrics import output_error, unit
from octobert.tasks._task import Change, Fidelity, Outputs, Result, UserAnswer, once
from octobert.tasks._texts import WholeTexts

# Entries of a block of similarities.
_BLOCK = 2**23


def similarities(kind: Similarity, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The similarity of all pairs, as sentence-transformers computes it: distances are negative.

    Args:
        first, second: [n, dimensions] and [m, dimensions].

    Returns:
        [n, m], float64.

    Example:
        >>> similarities("euclidean", np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]))
        array([[-5.]])
    """
    if kind in ("euclidean", "manhattan"):
        from scipy.spatial.distance import cdist

        return -np.asarray(cdist(first, second, "cityblock" if kind == "manhattan" else kind))
    if kind == "cosine":
        first, second = unit(first), unit(second)
    return np.asarray(first.astype(np.float64) @ second.astype(np.float64).T)


class VectorForm(ABC):
    """What the vectors of a kind of model are. Vectors of several texts can be indexed as an array, and have its `shape[0]`.

    What is not abstract here is what most forms do.
    """

    # Names of what a search costs, of which less is better.
    costs: ClassVar[tuple[str, ...]] = ()
    # The output with all vectors, which may be stored in a smaller form; empty for none.
    stored: ClassVar[str] = ""

    @property
    def told(self) -> bool:
        """Whether queries and documents are read in different ways."""
        return False

    def reads(self, text: Text) -> bool:
        """Whether the vector of a text is the model's; False where it is made without it."""
        return True

    @abstractmethod
    def rows(self, texts: Sequence[Text], tokenizer: Tokenizer) -> Sequence[Sequence[Encoded]]:
        """One token row for each text, which keeps what its vector is made of; none where that needs no model."""

    @abstractmethod
    def read(self, outputs: Outputs, encoded: EncodedTexts) -> Any:
        """The vectors of all texts."""

    def prepared(self, kind: Similarity, vectors: Any) -> tuple[Similarity, Any]:
        """A similarity, and vectors that are compared by it many times, in the form that is fastest."""
        return kind, vectors

    @abstractmethod
    def similarities(self, kind: Similarity, first: Any, second: Any) -> np.ndarray:
        """[n, m] the similarity of all pairs of n and m vectors."""

    @abstractmethod
    def cosines(self, first: Any, second: Any) -> np.ndarray:
        """[n] the cosine of each vector with the one at the same place."""

    @abstractmethod
    def agreement(self, ours: Any, reference: Any) -> tuple[str, np.ndarray, FidelityKind]:
        """What the agreement of vectors is called, its value for each text, and what kind it is of."""

    @abstractmethod
    def error(self, ours: Any, reference: Any) -> float:
        """Root mean square difference of the entries."""

    def cost(self, asking: Any, found: Any, relevant: Sequence[np.ndarray]) -> np.ndarray:
        """What a search costs; nothing, where all vectors are alike.

        Args:
            asking: vectors of queries.
            found: those of all documents.
            relevant: places of each query's relevant documents.

        Returns:
            [queries, costs].
        """
        return np.empty((asking.shape[0], 0))

    @abstractmethod
    def answer(self, vectors: Any, index: int, tokenizer: Tokenizer | None) -> UserAnswer:
        """The vector of a text as plain data."""

    @abstractmethod
    def line(self, answer: Mapping[str, Any]) -> str:
        """The same in one line."""

    @abstractmethod
    def column(self, vectors: Any) -> Any:
        """Vectors as an array of Arrow."""


@dataclass(frozen=True)
class DenseVectors(VectorForm):
    """One vector of float32 for each text, [n, dimensions]."""

    stored: ClassVar[str] = VECTOR

    def rows(self, texts: Sequence[Text], tokenizer: Tokenizer) -> Sequence[Sequence[Encoded]]:
        """The tokens as they are."""
        return [[row] for row in tokenizer.encode(texts)]

    def read(self, outputs: Outputs, encoded: EncodedTexts) -> np.ndarray:
        """The output."""
        return outputs[VECTOR]

    def prepared(self, kind: Similarity, vectors: np.ndarray) -> tuple[Similarity, np.ndarray]:
        """For cosines, divided by their lengths once."""
        return ("dot", unit(vectors)) if kind == "cosine" else (kind, vectors)

    def similarities(self, kind: Similarity, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """See `similarities`."""
        return similarities(kind, first, second)

    def cosines(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Products of the vectors, divided by their lengths."""
        return np.asarray(np.sum(unit(first).astype(np.float64) * unit(second), axis=-1))

    def agreement(
        self, ours: np.ndarray, reference: np.ndarray
    ) -> tuple[str, np.ndarray, FidelityKind]:
        """The cosine."""
        return "mean cosine", self.cosines(ours, reference), "cosine"

    def error(self, ours: np.ndarray, reference: np.ndarray) -> float:
        """Of all entries."""
        return output_error({VECTOR: ours}, {VECTOR: reference})

    def answer(self, vectors: np.ndarray, index: int, tokenizer: Tokenizer | None) -> UserAnswer:
        """All numbers."""
        return {"embedding": vectors[index].tolist()}

    def line(self, answer: Mapping[str, Any]) -> str:
        """The first numbers."""
        vector = answer["embedding"]
        return f"[{numbers_text(vector)}, …] ({len(vector)})"

    def column(self, vectors: np.ndarray) -> Any:
        """Lists of one length, of float32."""
        import pyarrow as pa

        numbers = pa.array(vectors.astype(np.float32).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(numbers, vectors.shape[1])


@dataclass(frozen=True, kw_only=True)
class Embedding(WholeTexts):
    """Text columns.

    Args:
        form: of the vectors.
        columns: one text column, or two: the pair, or query and document.
        prompts: name → text that is put before a text.
        used: names of the prompts of the columns' texts, one for each; empty for none.
        prompt: name of the prompt of a text that names none; empty for none.
        similarity: of vectors.
    """

    columns: tuple[str, ...]
    head: str = "embedding"
    form: VectorForm = DenseVectors()
    prompts: Mapping[str, str] = field(default_factory=dict)
    used: tuple[str, ...] = ()
    prompt: str = ""
    similarity: Similarity = "cosine"

    def prompted(self, column: int, texts: Sequence[str]) -> list[Text]:
        """Texts of a column behind its prompt."""
        return [self._prompted(self._name_of(column), text) for text in texts]

    def _prompted(self, name: str, text: str) -> Text:
        """A text behind a prompt, with the prompt's name where queries and documents are read in different ways."""
        prompted = self.prompts.get(name, "") + text
        return (prompted, name) if self.form.told else (prompted,)

    def without_prompt(self, text: Text, column: int) -> str:
        """A text without the prompt of its column."""
        return text[0].removeprefix(self.prompts.get(self._name_of(column), ""))

    def _name_of(self, column: int) -> str:
        return self.used[column] if self.used else ""

    def parse(self, user_input: Any, *, where: str) -> Text:
        """A text or a pair of texts, or {"text": …, "prompt": …} with the name of a prompt of the model.

        Raises:
            DataError: it is neither, or the model has no such prompt.
        """
        name = self.prompt
        if isinstance(user_input, Mapping):
            if set(user_input) != {"text", "prompt"}:
                raise DataError(
                    "the input is not a text with the name of its prompt",
                    where=where,
                    got=preview(dict(user_input)),
                )
            user_input, name = user_input["text"], str(user_input["prompt"])
            check_prompt(name, self.prompts, where=where)
        first, *second = super().parse(user_input, where=where)
        if second and self.form.told:
            raise DataError(
                "each text is a query or a document, and none is a pair",
                where=where,
                got=preview([first, *second]),
                fix="give two inputs",
            )
        return self._prompted(name, first) + tuple(second)

    def inputs_like(self, text: Text, texts: Sequence[str]) -> list[Text]:
        """Behind the prompts of the columns in turn, but for those that no model reads."""
        inputs = super().inputs_like(text[:1] if self.form.told else text, texts)
        names = itertools.cycle(
            name
            for name in self.used or (self.prompt,)
            if self.form.reads(self._prompted(name, ""))
        )
        return [
            self._prompted(name, first) + tuple(rest)
            for name, (first, *rest) in zip(names, inputs, strict=False)
        ]

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """Token rows that keep what the vector of their text is made of: one for each text, several windows, or none."""
        if self.windows.windows is not None:
            return self.windows.encoded(tokenizer, texts, self.prompts.values())
        return EncodedTexts(texts, self.form.rows(texts, tokenizer), tokenizer)

    @once
    def vectors(self, result: Result) -> Any:
        """The vectors of all texts, see `VectorForm`."""
        whole = self.whole(result)
        return self.form.read(whole.outputs, whole.encoded)

    def whole(self, result: Result) -> Result:
        """A result with one row for each text, whose vectors are joined of those of its windows.

        They are as long as those in the mean: where a model divides vectors by their lengths, so are these.
        """
        encoded = result.encoded
        if not encoded.windowed:
            return result
        vectors = result.outputs[VECTOR]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        joined = unit(encoded.join(vectors)) * replace(encoded, joined="mean").join(lengths)
        first = replace(encoded, rows=[rows[:1] for rows in encoded.rows])
        return replace(result, outputs={VECTOR: joined.astype(vectors.dtype)}, encoded=first)

    def chunks(self, asking: Any, found: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(indices of some vectors that ask, their similarities with all that are found), until all have asked."""
        (kind, asking), (_, found) = (
            self.form.prepared(self.similarity, vectors) for vectors in (asking, found)
        )
        size, count = max(1, _BLOCK // max(found.shape[0], 1)), asking.shape[0]
        for start in range(0, count, size):
            part = np.arange(start, min(start + size, count))
            yield part, self.form.similarities(kind, asking[part], found)

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """The agreement of vectors, of texts that the model reads."""
        after, before = map(self.vectors, (ours, reference))
        read = [index for index, text in enumerate(ours.texts) if self.form.reads(text)]
        if len(read) < len(ours.texts):
            after, before = after[read], before[read]
        name, agreement, kind = self.form.agreement(after, before)
        chance, count = None, before.shape[0]
        if count > 1:
            # Of texts that have nothing to do with each other: where it is near 1, an agreement near 1 says nothing.
            others = before[np.roll(np.arange(count), 1)]
            chance = float(self.form.agreement(before, others)[1].mean())
        return Fidelity(
            name,
            float(agreement.mean()),
            self.form.error(after, before),
            tuple(self.changes(ours, reference)),
            chance,
            kind=kind,
        )

    def closeness(self, ours: Result, reference: Result) -> tuple[Measure, np.ndarray]:
        """The cosine of vectors."""
        return "cosine", self.form.cosines(self.vectors(ours), self.vectors(reference))

    @abstractmethod
    def changes(self, ours: Result, reference: Result) -> Iterator[Change]:
        """Yield what changed of the items, see `Fidelity`."""

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        if self.per_token:
            # The vectors of this text alone: answers are made one by one.
            result, index = result.single(index), 0
        return self.form.answer(self.vectors(result), index, result.encoded.tokenizer)

    def line(self, answer: Mapping[str, Any]) -> str:
        return self.form.line(answer)


def check_prompt(name: str, prompts: Mapping[str, str], *, where: str) -> None:
    """Refuse the name of a prompt that the model does not have.

    Raises:
        DataError: with the names of its prompts.
    """
    if name and name not in prompts:
        raise DataError(
            f'the model has no prompt "{name}"',
            where=where,
            expected=", ".join(prompts) or "no name: the model has no prompts",
            fix=did_you_mean(name, prompts),
        )
