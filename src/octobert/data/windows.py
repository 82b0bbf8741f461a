"""Long texts as overlapping windows: which tokens each window holds, and in which of them a token has most context.

Question answering and token tagging read texts that are longer than the model takes. A text is cut into windows whose starts
are `stride` tokens apart; what is asked about a token is answered by the window in which the lesser of its left and right
context is largest (the "maximum context" rule of the original BERT code, Devlin et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octobert.core.errors import DataError
from octobert.data.tokenization import Encoded, Frame, TokenOffsets

# A longer window wins where the context is the same; the original code's weight for it.
_LENGTH_BONUS = 0.01
NOWHERE = -1


@dataclass(frozen=True)
class Window(Encoded):
    """A row that holds a part of a text.

    Args:
        spans: [tokens, 2] what each token stands for in the text; `NOWHERE` for special tokens and those of a question.
        best: [tokens] whether no other window gives the token more context; False for tokens that are not the text's.
    """

    spans: np.ndarray
    best: np.ndarray


def stride_within(room: int, stated: int | None, *, usual: int | None = None, of: str = "text") -> int:
    """The stride of windows that hold `room` tokens of the text each: as stated, else the usual one or half a window.

    Args:
        of: what the text is called in errors.

    Raises:
        DataError: windows would not overlap.
    """
    if stated is None:
        half = (room + 1) // 2
        return half if usual is None else min(usual, half)
    if stated >= room:
        expected = f"less than the {room} tokens of {of} in a window"
        raise DataError("windows would not overlap", where="doc_stride", got=str(stated), expected=expected, fix="lower it")
    return stated


def windows(
    frame: Frame,
    offsets: TokenOffsets,
    *,
    length: int,
    stride: int,
    question: np.ndarray | None = None,
    truncated: bool = False,
) -> list[Window]:
    """The windows of one text, at least one.

    Args:
        frame: special tokens around one text, or around a pair when there is a question.
        pieces: the text's tokens.
        length: the most tokens of a window, special ones and the question's included.
        stride: tokens from the start of a window to that of the next; less than what a window holds of the text.
        question: ids of the question, which stands before the text in each window.
        truncated: something was cut already.
    """
    encoded = len(question) if question is not None else 0
    room = length - frame.size - encoded
    starts, total = [0], len(offsets.ids)
    while starts[-1] + room < total:
        starts.append(starts[-1] + stride)
    parts = [(start, min(start + room, total)) for start in starts]
    best = _best(parts, total)
    return [_window(frame, offsets, part, own, question, truncated) for part, own in zip(parts, best, strict=True)]


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
    frame: Frame, offsets: TokenOffsets, part: tuple[int, int], best: np.ndarray, question: np.ndarray | None, truncated: bool
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
    return Window(np.concatenate(ids).astype(np.int64), np.concatenate(types).astype(np.int64), truncated, spans, is_best)
