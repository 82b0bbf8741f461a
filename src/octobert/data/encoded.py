"""Token rows and their batches: what a model reads, whatever made it of texts.

Rows are never padded further than the longest of their batch, and batches hold rows of similar length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octobert.core.session import Feeds


@dataclass(frozen=True)
class Encoded:
    """One tokenized row: ids and segment ids of equal length, and whether the text was cut to fit."""

    ids: np.ndarray
    types: np.ndarray
    truncated: bool

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def attended(self) -> int:
        """How many tokens others attend to: the first so many; all, unless a model fills texts up."""
        return len(self)

    @property
    def entries(self) -> int:
        """How many entries `kept` leaves of each output: one for each token."""
        return len(self)

    @property
    def numbers(self) -> int:
        """Numbers that a per-token output has for each token, where they are so many that batches must be small; else 1."""
        return 1

    def kept(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What is kept of the outputs of this row, [entries, …] each: those of its tokens, without those of padding.

        Args:
            outputs: of the model for this row, [padded tokens, …] each.
        """
        return {name: array[: len(self)] for name, array in outputs.items()}


# Begins the name of what is kept of an output's shape: the number of axes and their sizes, for at most so many axes.
_SHAPE, _MOST_AXES = "#", 8


@dataclass(frozen=True)
class FeedRow(Encoded):
    """What a graph of any kind reads. It runs alone: nothing is known of its axes.

    Args:
        feeds: input → array, as the graph takes it.
    """

    feeds: Feeds

    @property
    def numbers(self) -> int:
        """So many that no batch holds two rows."""
        return 1 << 62

    def kept(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The numbers of each output one after another, and beside them its shape: `outputs_of` reads them."""
        kept: dict[str, np.ndarray] = {}
        for name, output in outputs.items():
            array = np.asarray(output)
            shape = np.zeros((1, 1 + _MOST_AXES), np.int64)
            shape[0, : 1 + array.ndim] = array.ndim, *array.shape
            kept |= {name: array.reshape(-1), f"{_SHAPE}{name}": shape}
        return kept


def outputs_of(kept: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """What `FeedRow.kept` left of several rows, one behind the other, as the outputs of each row."""
    rows: list[dict[str, np.ndarray]] = []
    for name, values in kept.items():
        place = 0
        for index, (axes, *sizes) in enumerate(kept.get(f"{_SHAPE}{name}", ())):
            count = int(np.prod(sizes[:axes]))
            rows += [{}] if index == len(rows) else []
            rows[index][name] = values[place : place + count].reshape(sizes[:axes])
            place += count
    return rows


@dataclass(frozen=True)
class TokenOffsets:
    """All tokens of a text, without special tokens.

    Args:
        ids: [tokens].
        spans: [tokens, 2] first character and end of each token in the text.
    """

    ids: np.ndarray
    spans: np.ndarray


@dataclass(frozen=True)
class Frame:
    """The special tokens around one text, or around a pair: [CLS] … [SEP] … [SEP] in BERT.

    Args:
        special: ids before the first text, between the two (pairs only), and after the last.
        special_types: their segment ids.
        types: segment id of each text.
    """

    special: tuple[np.ndarray, ...]
    special_types: tuple[np.ndarray, ...]
    types: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many special tokens there are."""
        return sum(map(len, self.special))

    def behind(self, ids: np.ndarray) -> Frame:
        """The frame of the last text alone, with these tokens before it: a pair's first text, or the beginning of a text."""
        *between, last = zip(self.special, self.special_types, strict=True)
        (first, first_types), *others = between
        types = np.full(len(ids), self.types[0])
        special = np.concatenate([first, ids, *(part for part, _ in others)])
        segments = np.concatenate([first_types, types, *(part for _, part in others)])
        return Frame((special, last[0]), (segments, last[1]), self.types[-1:])


def feeds_of(rows: Sequence[Encoded], pad_id: int, length: int = 0) -> Feeds:
    """One batch: input_ids, attention_mask, token_type_ids, int64 [B, S], padded on the right to `length` or the longest."""
    if rows and isinstance(rows[0], FeedRow):
        return rows[0].feeds
    # An empty text may have no tokens. It is one of padding then, which attends to itself, however long the others are.
    width = max(length, 1, *(len(row) for row in rows))
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row.ids
        mask[index, : max(row.attended, 1)] = 1
        types[index, : len(row)] = row.types
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def size_of(feeds: Feeds) -> tuple[int, int]:
    """Rows and tokens of a batch, without padding; of a graph of any kind, one row of as many as its longest second axis.

    They follow from shapes, and from which numbers of a mask are 0: never from what a number is.
    """
    mask, ids = feeds.get("attention_mask"), feeds.get("input_ids")
    if mask is not None and ids is not None and ids.ndim == mask.ndim == 2:
        return len(ids), int(np.count_nonzero(mask))
    held = (array for array in feeds.values() if array.ndim > 1 and array.size)
    return 1, max((array.shape[1] for array in held), default=1)


def batches(rows: Sequence[Encoded], *, max_tokens: int, max_rows: int = 64) -> Iterator[list[int]]:
    """Indices of rows, longest first, grouped so that rows × longest stays within `max_tokens` (at least one row each)."""
    if rows and isinstance(rows[0], FeedRow):
        max_rows = 1
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    group: list[int] = []
    for index in order:
        width = len(rows[group[0]]) if group else 0
        if group and (len(group) == max_rows or (len(group) + 1) * width > max_tokens):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def split(outputs: np.ndarray, rows: Sequence[Encoded]) -> list[np.ndarray]:
    """Outputs [tokens of all rows, …] row by row."""
    return np.split(outputs, np.cumsum([row.entries for row in rows])[:-1])
