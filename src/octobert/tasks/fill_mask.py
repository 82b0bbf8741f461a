"""Masked language models: which tokens may stand where the mask is.

A text is evaluated by masking 15 % of its tokens at once, as in BERT's pre-training, always the same ones, and asking for them.
That takes one row for each text. `mask: each` masks every token in a row of its own, which gives the pseudo-perplexity of
Salazar et al. (2020) and takes as many rows as there are tokens. Masked tokens are replaced by the mask, never by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.results import Stated
from octobert.data.rows import Row
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.tasks import _masking
from octobert.tasks._common import check_texts, first_column, text_of
from octobert.tasks._masking import MaskedRow
from octobert.tasks._task import NOTHING, Fidelity, Metric, Outputs

DESCRIPTION = "fill masks of a text; accuracy and top-5 accuracy of masked tokens, their log-likelihood, pseudo-perplexity"
FILES: tuple[str, ...] = ()
_TEXTS = ("text", "sentence", "sentence1", "premise")
# Fillers that are given where the input does not say how many.
FILLERS = 5
_IGNORED = -100


class Options(FrozenModel):
    """Args:
    text: the text column; by default, the first of the usual names that the data has.
    mask: share of the tokens of a text that are masked together, or `each` for every token in a row of its own, which takes as
        many times longer as a text has tokens.
    max_length: tokens of a text; by default the model's limit.
    """

    text: str | None = None
    mask: float | Literal["each"] = 0.15
    max_length: int | None = Field(default=None, ge=3)

    @field_validator("mask", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value != "each" and not (number and 0 < value <= 1):  # type: ignore[operator]
            raise ValueError("give a share of the tokens, above 0 and at most 1, or each")
        return value


def build(options: Options, stated: Stated = NOTHING) -> FillMask:
    """The task for any masked language model."""
    return FillMask(
        text=(options.text,) if options.text else _TEXTS,
        share=None if options.mask == "each" else options.mask,
        max_length=options.max_length,
    )


@dataclass(frozen=True)
class FillMask:
    """One text column.

    Args:
        text: candidate columns; the first that the data has is used.
        share: of the tokens that are masked together; None for each by itself.
    """

    text: tuple[str, ...]
    share: float | None
    max_length: int | None
    head: str = "masked-lm"
    labels: tuple[str, ...] = ()
    primary: str = "accuracy"
    per_token: bool = True

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return _masking.METRICS

    def inputs(self, rows: Sequence[Row], *, where: str) -> list[Text]:
        column = first_column(rows, self.text, where=where)
        return [(text_of(row, column, i, where=where),) for i, row in enumerate(rows)]

    def parse(self, given: Any, *, where: str) -> Text:
        """A text with masks, or {"text": …, "top": number of fillers}.

        Raises:
            DataError: it is neither, or is empty.
        """
        text = given
        if isinstance(given, Mapping) and set(given) == {"text", "top"}:
            text, top = given["text"], given["top"]
            if not isinstance(top, int) or not 1 <= top <= _masking.TOP:
                raise DataError("not a number of fillers", where=where, got=repr(top)[:60], expected=f"1 to {_masking.TOP}")
        if not isinstance(text, str):
            raise DataError("the input is not a text", where=where, got=repr(given)[:100], expected="one text with masks")
        check_texts([text], where=where)
        return (text,)

    def identity(self, text: Text) -> Text:
        """The whole text."""
        return text

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """Rows with masks: those of the text, else by the option `mask`. Texts are cut to the largest number of tokens."""
        _, mask = tokenizer.mask
        special = tokenizer.frame(1).special
        inside = (len(special[0]), len(special[-1]))
        rows = [_masking.masked(row, mask, tokenizer.vocabulary, inside, self.share) for row in tokenizer.encode(texts)]
        return EncodedTexts(texts, rows, tokenizer)

    def gold(self, rows: Sequence[Row], *, where: str) -> list[str]:
        """The texts themselves: what was masked is right."""
        return [text[0] for text in self.inputs(rows, where=where)]

    def labels_in(self, rows: Sequence[Row], *, where: str) -> tuple[str, ...]:
        return ()

    def targets(self, encoded: EncodedTexts, gold: Sequence[str]) -> list[dict[str, Any]]:
        """The masked tokens, `_IGNORED` elsewhere."""
        targets = []
        for row in encoded.flat:
            assert isinstance(row, MaskedRow)
            labels = np.full(len(row), _IGNORED)
            labels[row.places] = np.where(row.wanted == _masking.UNKNOWN, _IGNORED, row.wanted)
            targets.append({"labels": labels})
        return targets

    def items(self, outputs: Outputs, encoded: EncodedTexts, gold: Sequence[str]) -> np.ndarray:
        """[texts, 6], see `_masking.items`. Texts with masks of their own count nothing."""
        return _masking.items(outputs, encoded)

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Of the tokens that were masked most often, given for every mask."""
        return _masking.chance(items)

    def expected(self, gold: str) -> str:
        return gold

    def fidelity(self, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> Fidelity:
        """Agreement is the share of masks with the same most likely token."""
        assert encoded.tokenizer is not None
        after, before = (_masking.firsts(outputs, encoded.rows) for outputs in (ours, reference))
        words = encoded.tokenizer.words
        changed = [
            (i, " ".join(words(b)), " ".join(words(a))) for i, (a, b) in enumerate(zip(after, before, strict=True)) if a != b
        ]
        pairs = [pair for both in zip(after, before, strict=True) for pair in zip(*both, strict=True)]
        same, total = sum(a == b for a, b in pairs), max(len(pairs), 1)
        frequent = Counter(b for _, b in pairs).most_common(1)
        return Fidelity(
            "agreement",
            same / total,
            _masking.log_error(ours, reference),
            tuple(changed),
            frequent[0][1] / total if frequent else None,
            float(_masking.divergence(ours, reference).mean()) if pairs else None,
        )

    def answer(self, outputs: Outputs, encoded: EncodedTexts, index: int, given: Any) -> dict[str, Any]:
        """For each mask of a text the most likely tokens with their probabilities, and the text with the first of each.

        Raises:
            DataError: the text has no mask, or not within the tokens that the model reads.
        """
        single, own = encoded.single(index, outputs)
        row, tokenizer = single.flat[0], single.tokenizer
        assert isinstance(row, MaskedRow)
        assert tokenizer is not None
        (text,), (mask, _) = single.texts[0], tokenizer.mask
        if not row.stated:
            late = mask in text
            raise DataError(
                f"the mask stands after the {len(row)} tokens that the model reads" if late else "the text has no mask",
                got=repr(text)[:100],
                fix="shorten the text before it" if late else f"write {mask} in place of the word that is to be filled in",
            )
        count = given["top"] if isinstance(given, Mapping) else FILLERS
        masks = []
        for ids, logs in zip(own[_masking.IDS][:, :count].tolist(), own[_masking.LOGS][:, :count].tolist(), strict=True):
            fillers = zip(ids, tokenizer.words(ids), logs, strict=True)
            masks.append(
                [{"token": word, "text": tokenizer.decoded([i]), "score": float(np.exp(log))} for i, word, log in fillers]
            )
        filled, special = row.ids.copy(), tokenizer.frame(1).special
        filled[row.places] = own[_masking.IDS][:, 0]
        return {"masks": masks, "text": tokenizer.decoded(filled[len(special[0]) : len(filled) - len(special[-1])].tolist())}
