"""Entities from tags, counted as seqeval (and the CoNLL evaluation script before it) counts them.

A tag is `O`, or a letter and a type: B begins an entity, I continues it, E ends it, S is an entity of one word. An `I` after
another type or after no entity begins an entity, so that IOB1, IOB2 and IOBES are all read correctly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octobert.tasks._metrics import of_counts
from octobert.tasks._task import Extremes, Metric

Entity = tuple[str, int, int]
# Columns of the counts of a sentence.
RIGHT, PREDICTED, EXPECTED, RIGHT_TAGS, TAGS, CHANCE_RIGHT, CHANCE_PREDICTED = range(7)
_LETTERS = ("B", "I", "E", "S")


def parted(tag: str) -> tuple[str, str]:
    """(letter, type): `B-PER` is ("B", "PER"); a tag without a letter, such as NOUN, goes on with its own type."""
    letter, dash, kind = tag.partition("-")
    if tag == "O":
        return "O", ""
    if dash and letter in _LETTERS:
        return letter, kind
    return (tag, "_") if tag in _LETTERS else ("I", tag)


def kind_of(tag: str) -> str:
    """The type of a tag; O for O."""
    letter, kind = parted(tag)
    return kind if letter != "O" else "O"


def entities(tags: Sequence[str]) -> list[Entity]:
    """(type, first word, last word) of every entity, in order."""
    entities_so_far: list[Entity] = []
    open_at, before, kind_before = -1, "O", ""
    for index, tag in enumerate([*tags, "O"]):
        letter, kind = parted(tag)
        goes_on = letter in ("I", "E") and before in ("B", "I") and kind == kind_before
        if open_at >= 0 and not goes_on:
            entities_so_far.append((kind_before, open_at, index - 1))
            open_at = -1
        if letter != "O" and not goes_on:
            open_at = index
        before, kind_before = letter, kind
    return entities_so_far


def iob2(tags: Sequence[str]) -> list[str]:
    """The same entities, each beginning with B; tags that are not of that form stay as they are."""
    letters = {parted(tag)[0] for tag in tags if "-" in tag}
    if not letters or letters & {"E", "S"} or any("-" not in tag and tag != "O" for tag in tags):
        return list(tags)
    converted = ["O"] * len(tags)
    for kind, first, last in entities(tags):
        converted[first : last + 1] = [f"B-{kind}"] + [f"I-{kind}"] * (last - first)
    return converted


def labels_of(tags: set[str]) -> tuple[str, ...]:
    """The labels of a model that says such tags: both B and I of every type, whichever the data happens to have."""
    if all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags):
        kinds = sorted({tag[2:] for tag in tags if tag != "O"})
        return ("O", *(f"{letter}-{kind}" for kind in kinds for letter in "BI"))
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag)))


def counts(tags: Sequence[str], right: Sequence[str]) -> tuple[int, int, int, int, int]:
    """(entities that are right, predicted, expected; words tagged right, words) of one sentence."""
    ours, theirs = set(entities(tags)), set(entities(right))
    same = sum(kind_and_letter == other for kind_and_letter, other in zip(tags, right, strict=True))
    return len(ours & theirs), len(ours), len(theirs), same, len(right)


def by_chance(items: np.ndarray) -> np.ndarray:
    """The counts of tags that say nothing of the words."""
    return items[:, [CHANCE_RIGHT, CHANCE_PREDICTED, EXPECTED, RIGHT_TAGS, TAGS]]


def extremes(items: np.ndarray) -> Extremes:
    """As many entities as there are, or one, in the wrong places with no tag right; or all right."""
    wrong, right = items.copy(), items.copy()
    wrong[:, [RIGHT, RIGHT_TAGS]], wrong[:, PREDICTED] = 0, np.maximum(items[:, EXPECTED], 1)
    right[:, [RIGHT, PREDICTED]], right[:, RIGHT_TAGS] = items[:, [EXPECTED]], items[:, TAGS]
    return wrong, right


def _counts(items: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, predicted and expected entities of all sentences."""
    return (
        items[:, [RIGHT]].sum(axis=0),
        items[:, [PREDICTED]].sum(axis=0),
        items[:, [EXPECTED]].sum(axis=0),
    )


def _accuracy(items: np.ndarray) -> float:
    """Share of words that are tagged right."""
    words = items[:, TAGS].sum()
    return float(items[:, RIGHT_TAGS].sum() / words) if words else 0.0


METRICS: Mapping[str, Metric] = {
    "f1": of_counts(_counts, "f1", "micro"),
    "precision": of_counts(_counts, "precision", "micro"),
    "recall": of_counts(_counts, "recall", "micro"),
    "accuracy": _accuracy,
}
