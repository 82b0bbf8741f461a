"""Texts that are longer than the model takes, as windows: which tokens each window holds.

Question answering and token tagging cut a text into windows whose starts are `step` tokens apart; what is asked about a token
is answered by the window in which the lesser of its left and right context is largest (the "maximum context" rule of the
original BERT code, Devlin et al. 2018). Tasks that judge a text as a whole take as few windows as hold it, all of them full,
and the mean or the maximum of what the model gives for them (`LongTextOptions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from octobert.core import budget
from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.data.encoded import Encoded, Frame, TokenOffsets
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer

# A longer window wins where the context is the same; the original code's weight for it.
_LENGTH_BONUS = 0.01
NOWHERE = -1
# Bytes of a token of a window, with those of its batch and of what the model gives for it: measured 96. Other texts that are in
# work at the same time take as much.
_TOKEN, _SHARE = 100, 32


class StepOptions(FrozenModel):
    """Options of tasks that read long texts in windows.

    Args:
        step: tokens from the start of one window to the start of the next.
        overlap: in place of `step`, the tokens that neighbouring windows share, as `stride` of Hugging Face tokenizers.
    """

    step: int | None = Field(default=None, ge=1)
    overlap: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _one_meaning(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "doc_stride" in raw:
            raise ValueError(_two_meanings(raw["doc_stride"], raw.get("max_length")))
        return raw

    @model_validator(mode="after")
    def _not_both(self) -> StepOptions:
        if self.step is not None and self.overlap is not None:
            raise ValueError("give step or overlap, not both (step: null removes a step)")
        return self


def _two_meanings(value: Any, length: Any) -> str:
    numbers = isinstance(value, int) and isinstance(length, int)
    apart = f"{length - value}" if numbers else f"max_length - {value}"
    return (
        f"doc_stride: {value} has two meanings; write step: {value} for windows that start {value} tokens apart, as octobert "
        f"read it and BERT's own code does, or overlap: {value} for windows that share {value} tokens, as in Hugging Face "
        f"tokenizers (starts {apart} apart, less the question and special tokens)"
    )


class LongTextOptions(FrozenModel):
    """Options of tasks that judge whole texts, for texts that are longer than `max_length`.

    Args:
        windows: read them in windows, and take the `mean` or the `max` of what the model gives for these; by default they are
            cut. Of a pair, the second text is read so, behind the first in every window.
        overlap: tokens that neighbouring windows share at least, as `stride` of Hugging Face tokenizers; needs `windows`.
    """

    windows: Literal["mean", "max"] | None = None
    overlap: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _overlap_of_windows(self) -> LongTextOptions:
        if self.overlap and self.windows is None:
            raise ValueError("overlap is of windows: set windows: mean, or max")
        return self

    def encoded(
        self, tokenizer: Tokenizer, texts: Sequence[Text], prompts: Iterable[str] = ()
    ) -> EncodedTexts:
        """One token row for each text, or pair of texts; several windows for one that would be cut.

        Args:
            prompts: beginnings of texts, which stand before every window.

        Raises:
            DataError: windows would not advance.
        """
        rows: list[Sequence[Encoded]] = [[row] for row in tokenizer.encode(texts)]
        if self.windows is None:
            return EncodedTexts(texts, rows, tokenizer)
        longest = sorted(prompts, key=len, reverse=True)
        for index in [index for index, (row,) in enumerate(rows) if row.truncated]:
            text = texts[index]
            prompt = next(filter(text[0].startswith, longest), "") if len(text) == 1 else ""
            rows[index] = self._windows(tokenizer, text, len(prompt))
        return EncodedTexts(texts, rows, tokenizer, self.windows)

    def _windows(self, tokenizer: Tokenizer, text: Text, characters: int) -> list[Window]:
        """The windows of a text that begins with so many characters of a prompt, or of a pair."""
        frame, length = tokenizer.frame(len(text)), tokenizer.max_length
        *firsts, long = tokenizer.offsets(text)
        prompt = int(np.sum(long.spans[:, 1] <= characters))
        # What stands in every window takes at most half of it, or what the long text leaves.
        most = max((length - frame.size) // 2, length - frame.size - len(long.ids))
        every = firsts[0].ids if firsts else long.ids[:prompt]
        frame = frame.behind(every[:most])
        long = TokenOffsets(long.ids[prompt:], long.spans[prompt:])
        room, total = length - frame.size, len(long.ids)
        if self.overlap >= room and total > room:
            raise DataError(
                "windows would not advance",
                where="overlap",
                got=str(self.overlap),
                expected=f"less than the {room} tokens of text in a window",
                fix="lower it",
            )
        spare = max(total - room, 0)
        count = 1 + -(-spare // max(room - self.overlap, 1))
        gaps = max(count - 1, 1)
        starts = [index * spare // gaps for index in range(count)]
        parts = [(start, min(start + room, total)) for start in starts]
        return windows(frame, long, parts, truncated=len(every) > most)


LONG_TEXTS_ARE_CUT = LongTextOptions()


@dataclass(frozen=True)
class Window(Encoded):
    """A row that holds a part of a text.

    Args:
        spans: [tokens, 2] what each token stands for in the text; `NOWHERE` for special tokens and those of a question.
        best: [tokens] whether no other window gives the token more context; False for tokens that are not the text's.
    """

    spans: np.ndarray
    best: np.ndarray


def step_within(
    options: StepOptions,
    room: int,
    *,
    least: int | None = None,
    usual: int | None = None,
    of: str = "text",
) -> int:
    """Tokens from the start of one window to that of the next: as stated, else the usual step or half a window.

    Args:
        room: tokens of the text that a window holds.
        least: the same beside the longest question; by default `room`.
        of: what the text is called in errors.

    Raises:
        DataError: windows would not overlap, or would not advance.
    """
    least = room if least is None else least
    for name, stated in (("step", options.step), ("overlap", options.overlap)):
        if stated is not None and stated >= least:
            raise DataError(
                "windows would not overlap" if name == "step" else "windows would not advance",
                where=name,
                got=str(stated),
                expected=f"less than the {least} tokens of {of} in a window",
                fix="lower it",
            )
    if options.overlap is not None:
        return room - options.overlap
    half = (least + 1) // 2
    return options.step or (half if usual is None else min(usual, half))


def stepped(total: int, room: int, step: int) -> list[tuple[int, int]]:
    """The parts of a text that windows hold, at least one, as (first token, end).

    Args:
        total: tokens of the text.
        room: those that a window holds.
        step: tokens from the start of a window to that of the next; less than `room`.

    Example:
        >>> stepped(10, 6, 3)
        [(0, 6), (3, 9), (6, 10)]
    """
    starts = [0]
    while starts[-1] + room < total:
        starts.append(starts[-1] + step)
    return [(start, min(start + room, total)) for start in starts]


def windows(
    frame: Frame,
    offsets: TokenOffsets,
    parts: Sequence[tuple[int, int]],
    *,
    truncated: bool = False,
) -> list[Window]:
    """The windows of one text.

    Args:
        frame: what stands around the text in each window.
        offsets: the text's tokens.
        parts: those that each window holds.
        truncated: something was cut already.

    Raises:
        DataError: they would fill the memory.
    """
    tokens = sum(end - start + frame.size for start, end in parts)
    budget.check(
        DataError,
        f"a text of {len(offsets.ids):,} tokens in {len(parts):,} windows",
        _TOKEN * tokens,
        where="overlap",
        fix="lower overlap, or raise step; or shorten the text",
        share=_SHARE,
    )
    best = _best(parts, len(offsets.ids))
    return [
        _window(frame, offsets, part, best_tokens, truncated)
        for part, best_tokens in zip(parts, best, strict=True)
    ]


def _best(parts: Sequence[tuple[int, int]], total: int) -> list[np.ndarray]:
    """For each window, which of its tokens have most context in it; the first of equals wins."""
    highest = np.full(total, -np.inf)
    winner = np.zeros(total, dtype=np.int64)
    for index, (start, end) in enumerate(parts):
        places = np.arange(start, end)
        score = np.minimum(places - start, end - 1 - places) + _LENGTH_BONUS * (end - start)
        better = score > highest[start:end]
        highest[start:end][better] = score[better]
        winner[start:end][better] = index
    return [winner[start:end] == index for index, (start, end) in enumerate(parts)]


def _window(
    frame: Frame, offsets: TokenOffsets, part: tuple[int, int], best: np.ndarray, truncated: bool
) -> Window:
    inside, held, (before, after) = slice(*part), part[1] - part[0], frame.special
    ids = np.concatenate([before, offsets.ids[inside], after])
    types = np.concatenate(
        [frame.special_types[0], np.full(held, frame.types[0]), frame.special_types[1]]
    )
    spans, is_best = np.full((len(ids), 2), NOWHERE, dtype=np.int64), np.zeros(len(ids), dtype=bool)
    place = slice(len(before), len(before) + held)
    spans[place], is_best[place] = offsets.spans[inside], best
    return Window(ids.astype(np.int64), types.astype(np.int64), truncated, spans, is_best)
