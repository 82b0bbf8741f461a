"""Texts of our own writing, of the kinds that people type: some for ranges that hold for texts unlike the user's rows, and
others to see whether they do.

Ranges follow from the calibration rows, and smoothing brings every channel to the limit of its range. So texts of another kind
exceed them in many channels at once: the shortest ones, other languages, code and numbers most.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert.core.errors import TokenError
from octobert.data.tokenization import Tokenizer

# The share of unknown tokens from which on a text says nothing about a model.
_UNKNOWN = 0.1
# Words of a text that is made of a vocabulary.
_WORDS = (1, 40)


def supplement(tokenizer: Tokenizer) -> list[str]:
    """235 texts for calibration. Those that the vocabulary does not cover are made of its words instead."""
    return _known(_lines("supplement.txt"), tokenizer)


def probe(tokenizer: Tokenizer) -> list[str]:
    """151 other texts, which nothing is fitted to. Those that the vocabulary does not cover are left out."""
    lines = _lines("probe.txt")
    return [line for line in lines if _covers(tokenizer, line)] or lines


def _lines(name: str) -> list[str]:
    return (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()


def _covers(tokenizer: Tokenizer, line: str) -> bool:
    try:
        ids = tokenizer.offsets([line])[0].ids
    except TokenError:
        return False
    return len(ids) > 0 and bool(np.isin(ids, tokenizer.unknown).mean() <= _UNKNOWN)


def _known(lines: list[str], tokenizer: Tokenizer) -> list[str]:
    random = np.random.default_rng(0)
    ids = np.setdiff1d(np.arange(tokenizer.vocabulary), tokenizer.special)
    return [
        line
        if _covers(tokenizer, line)
        else tokenizer.decoded(random.choice(ids, random.integers(*_WORDS)).tolist())
        for line in lines
    ]
