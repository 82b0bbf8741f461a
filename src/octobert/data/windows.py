"""Long texts as overlapping windows: which tokens each window holds, and in which of them a token has most context.

Question answering and token tagging read texts that are longer than the model takes. A text is cut into windows whose starts
are `step` tokens apart; what is asked about a token is answered by the window in which the lesser of its left and right
context is largest (the "maximum context" rule of the original BERT code, Devlin et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.data.tokenization import Encoded, Frame, TokenOffsets

# A longer window wins where the context is the same; the original code's weight for it.
_LENGTH_BONUS = 0.01
NOWHERE = -1


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


def windows(
    frame: Frame,
    offsets: TokenOffsets,
    *,
    length: int,
    step: int,
    question: np.ndarray | None = None,
    truncated: bool = False,
) -> list[Window]:
    """The windows of one text, at least one.

    Args:
        frame: special tokens around one text, or around a pair when there is a question.
        pieces: the text's tokens.
        length: the most tokens of a window, special ones and the question's included.
        step: tokens from the start of a window to that of the next; less than what a window holds of the text.
        question: ids of the question, which stands before the text in each window.
        truncated: something was cut already.
    """
    encoded = len(question) if question is not None else 0
    room = length - frame.size - encoded
    starts, total = [0], len(offsets.ids)
    while starts[-1] + room < total:
        starts.append(starts[-1] + step)
    parts = [(start, min(start + room, total)) for start in starts]
    best = _best(parts, total)
    return [
        _window(frame, offsets, part, best_tokens, question, truncated)
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
    frame: Frame,
    offsets: TokenOffsets,
    part: tuple[int, int],
    best: np.ndarray,
    question: np.ndarray | None,
    truncated: bool,
) -> Window:
    ids, types = [frame.special[0]], [frame.special_types[0]]
    if question is not None:
        ids += [question, frame.special[1]]
        types += [np.full(len(question), frame.types[0]), frame.special_types[1]]
    first = sum(map(len, ids))
    inside = slice(*part)
    held = part[1] - part[0]
    ids += [offsets.ids[inside], frame.special[-1]]
    types += [np.full(held, frame.types[-1]), frame.special_types[-1]]
    count = sum(map(len, ids))
    spans, is_best = np.full((count, 2), NOWHERE, dtype=np.int64), np.zeros(count, dtype=bool)
    spans[first : first + held], is_best[first : first + held] = offsets.spans[inside], best
    return Window(
        np.concatenate(ids).astype(np.int64),
        np.concatenate(types).astype(np.int64),
        truncated,
        spans,
        is_best,
    )
