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
    # An empty text may have no tokens.
    width = max(length, 1, *(len(row) for row in rows))
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row.ids
        mask[index, : row.attended] = 1
        types[index, : len(row)] = row.types
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def batches(rows: Sequence[Encoded], *, max_tokens: int, max_rows: int = 64) -> Iterator[list[int]]:
    """Indices of rows, longest first, grouped so that rows × longest stays within `max_tokens` (at least one row each)."""
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
