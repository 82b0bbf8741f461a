"""Texts of our own: what they are, and what a vocabulary that does not cover them gets instead."""

from __future__ import annotations

import numpy as np
import pytest

from octobert.data import other_texts
from octobert.data.tokenization import Tokenizer

FILES = ("supplement.txt", "probe.txt")


def test_no_text_is_in_both_or_twice() -> None:
    """What a model is probed with must not be what it was calibrated on."""
    texts = [text.casefold() for name in FILES for text in other_texts._lines(name)]
    assert len(set(texts)) == len(texts)
    assert all(text == text.strip() and text for text in texts)


@pytest.mark.parametrize(("name", "least"), [("supplement.txt", 200), ("probe.txt", 140)])
def test_they_are_of_many_kinds(name: str, least: int) -> None:
    texts = other_texts._lines(name)
    assert least <= len(texts) <= 300
    words = [len(text.split()) for text in texts]
    assert min(words) == 1
    assert 20 < max(words) <= 40
    first = {ord(max(text)) // 256 for text in texts}
    # Scripts: Latin with accents, Cyrillic, Arabic, Devanagari, Kana, Chinese characters, Hangul.
    assert len(first) >= 8
    assert any(char.isdigit() for text in texts for char in text)


def test_a_vocabulary_without_them_gives_its_own_words(wordpiece_folder) -> None:
    tokenizer = Tokenizer(wordpiece_folder)
    texts = other_texts.supplement(tokenizer)
    assert texts == other_texts.supplement(tokenizer)
    assert len(texts) == len(other_texts._lines("supplement.txt"))
    for text, row in zip(
        other_texts._lines("supplement.txt"), tokenizer.offsets(texts), strict=True
    ):
        covered = np.isin(tokenizer.offsets([text])[0].ids, tokenizer.unknown).mean() <= 0.1
        assert (text in texts) == covered
        assert len(row.ids)
    assert "Нет" not in texts
    assert not any(
        "[" in text for text in texts if text not in other_texts._lines("supplement.txt")
    )
    assert max(len(text.split()) for text in texts) > 20


def test_a_probe_is_left_where_a_vocabulary_covers_nothing(wordpiece_folder) -> None:
    tokenizer = Tokenizer(wordpiece_folder)
    assert set(other_texts.probe(tokenizer)) <= set(other_texts._lines("probe.txt"))
    assert other_texts.probe(tokenizer)
