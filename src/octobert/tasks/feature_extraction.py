"""Feature extraction: the states of all tokens in the last layer. Nothing is right or wrong; 8 bits are compared with float.

The only output is `last_hidden_state`. transformers' `pooler_output` is left out: many checkpoints have no trained pooler, and
transformers makes a random one. For one vector of a text take the task `embedding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from octobert.core.results import ModelMetadata
from octobert.core.session import STATES
from octobert.core.wording import numbers_text
from octobert.data.tokenization import EncodedTexts
from octobert.tasks._metrics import unit
from octobert.tasks._task import NOTHING, Fidelity, Result, UserAnswer
from octobert.tasks._texts import USUAL, RowTexts, TextOptions, Unscored

# Tokens that are compared at a time.
_CHUNK = 4096


class FeatureExtractionOptions(TextOptions):
    """Args:
    max_length: tokens of a row; by default the model's limit.
    """

    description: ClassVar[str] = (
        "states of all tokens (last_hidden_state); fidelity to float, no metric"
    )

    max_length: int | None = Field(default=None, ge=2)

    def build(self, metadata: ModelMetadata = NOTHING) -> FeatureExtraction:
        """Return the task for any model."""
        return FeatureExtraction(
            text=(self.text,) if self.text else USUAL, max_length=self.max_length
        )


@dataclass(frozen=True, kw_only=True)
class FeatureExtraction(RowTexts, Unscored):
    """One or two text columns."""

    judges = False
    per_token: bool = True
    head: str = "feature-extraction"

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """Agreement is the mean cosine of the two states of a token, without padding."""
        after, before = ours.outputs[STATES], reference.outputs[STATES]
        cosines = squares = neighbours = 0.0
        for start in range(0, len(after), _CHUNK):
            a, b = (states[start : start + _CHUNK].astype(np.float64) for states in (after, before))
            cosines += float(np.sum(unit(a) * unit(b)))
            squares += float(np.sum(np.square(a - b)))
            # States of different tokens: where their cosine is near 1, a cosine near 1 says nothing.
            neighbours += float(np.sum(unit(b) * np.roll(unit(b), 1, axis=0)))
        count = max(len(after), 1)
        chance = neighbours / count if len(after) > 1 else None
        error = float(np.sqrt(squares / max(after.size, 1)))
        return Fidelity("mean cosine", cosines / count, error, (), chance, kind="cosine")

    def compared(self, encoded: EncodedTexts) -> int:
        """States of tokens."""
        return sum(row.entries for row in encoded.flat)

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        """The tokens of a text and their states."""
        single, tokenizer = result.single(index), result.encoded.tokenizer
        assert tokenizer is not None
        return {
            "tokens": tokenizer.words(single.encoded.flat[0].ids.tolist()),
            "states": single.outputs[STATES].tolist(),
        }

    def line(self, answer: Mapping[str, Any]) -> str:
        states = answer["states"]
        return f"[{numbers_text(states[0])}, …] ({len(states)} × {len(states[0])})"
