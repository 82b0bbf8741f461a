"""Vectors of texts: what tasks on embeddings share."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octobert.core.closeness import Measure
from octobert.core.errors import DataError, did_you_mean
from octobert.core.model_config import Similarity
from octobert.core.plain import preview
from octobert.core.wording import numbers_text
from octobert.data.tokenization import EncodedTexts, Text
from octobert.tasks._metrics import output_error, unit
from octobert.tasks._task import Change, Fidelity, Result
from octobert.tasks._texts import WholeTexts

# Entries of a block of similarities.
_BLOCK = 2**23
OUTPUT = "sentence_embedding"


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


@dataclass(frozen=True, kw_only=True)
class Embedding(WholeTexts):
    """Text columns.

    Args:
        columns: one text column, or two: the pair, or query and document.
        prompts: name → text that is put before a text.
        used: names of the prompts of the columns' texts, one for each; empty for none.
        prompt: name of the prompt of a text that names none; empty for none.
        similarity: of vectors.
    """

    columns: tuple[str, ...]
    head: str = "embedding"
    prompts: Mapping[str, str] = field(default_factory=dict)
    used: tuple[str, ...] = ()
    prompt: str = ""
    similarity: Similarity = "cosine"

    def prompted(self, column: int, texts: Sequence[str]) -> list[Text]:
        """Texts of a column behind its prompt."""
        prompt = self._prompt_of(column)
        return [(prompt + text,) for text in texts]

    def without_prompt(self, text: Text, column: int) -> str:
        """A text without the prompt of its column."""
        return text[0].removeprefix(self._prompt_of(column))

    def _prompt_of(self, column: int) -> str:
        return self.prompts.get(self.used[column], "") if self.used else ""

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
        return (self.prompts.get(name, "") + first, *second)

    def inputs_like(self, text: Text, texts: Sequence[str]) -> list[Text]:
        """Behind the prompts of the columns in turn."""
        inputs = super().inputs_like(text, texts)
        prompts = [self.prompts.get(name, "") for name in self.used or (self.prompt,)]
        return [
            (prompt + first, *rest)
            for prompt, (first, *rest) in zip(itertools.cycle(prompts), inputs, strict=False)
        ]

    def targets(self, encoded: EncodedTexts, gold: Sequence[float]) -> list[dict[str, Any]]:
        raise DataError(
            "embeddings are not fine-tuned here",
            where="finetune",
            fix="train them with sentence-transformers first",
        )

    def similarities(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """[n, m] the similarity of all pairs of vectors."""
        return similarities(self.similarity, first, second)

    def chunks(
        self, asking: np.ndarray, found: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(indices of some vectors that ask, their similarities with all that are found), until all have asked."""
        size, kind = max(1, _BLOCK // max(len(found), 1)), self.similarity
        if kind == "cosine":
            # Divided by their lengths once, not for each block.
            asking, found, kind = unit(asking), unit(found), "dot"
        for start in range(0, len(asking), size):
            part = np.arange(start, min(start + size, len(asking)))
            yield part, similarities(kind, asking[part], found)

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """The agreement of vectors by their cosine."""
        after, before = (unit(result.outputs[OUTPUT]) for result in (ours, reference))
        chance = None
        if len(before) > 1:
            # The cosine of texts that have nothing to do with each other: where it is near 1, a cosine near 1 says nothing.
            chance = float(np.mean(np.sum(before * np.roll(before, 1, axis=0), axis=-1)))
        return Fidelity(
            "mean cosine",
            float(np.sum(after * before, axis=-1).mean()),
            output_error(ours.outputs, reference.outputs),
            tuple(self.changes(ours, reference)),
            chance,
            kind="cosine",
        )

    def closeness(self, ours: Result, reference: Result) -> tuple[Measure, np.ndarray]:
        """The cosine of vectors."""
        after, before = (unit(result.outputs[OUTPUT]) for result in (ours, reference))
        return "cosine", np.sum(after.astype(np.float64) * before, axis=-1)

    @abstractmethod
    def changes(self, ours: Result, reference: Result) -> Iterator[Change]:
        """Yield what changed of the items, see `Fidelity`."""

    def answer(self, result: Result, index: int, user_input: Any) -> dict[str, Any]:
        return {"embedding": result.outputs[OUTPUT][index].tolist()}

    def line(self, answer: Mapping[str, Any]) -> str:
        vector = answer["embedding"]
        return f"[{numbers_text(vector)}, …] ({len(vector)})"


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
