"""Tags of words, and the entities that they mark: IOB1, IOB2, IOBES, and what `readings` makes of other schemes.

A tag is `O`, or a letter and a type: B begins an entity, I continues it, E ends it, S is an entity of one word. An `I` after
another type or after no entity begins an entity, as seqeval (and the CoNLL evaluation script before it) counts them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

# The tag of a word for which the model predicts nothing.
OUTSIDE = "O"
# (type, first word, last word); or (type, first character, end).
Entity = tuple[str, int, int]
_LETTERS = ("B", "I", "E", "S")
# Letters of BILOU and BMES → those of IOBES.
_IOBES = str.maketrans("LUM", "ESI")
# How schemes write a letter and a type: `B-PER`, `B_PER` or `b-per`, `PER-B` or `per_b`.
_FORMS = (
    r"(?P<letter>[BIESLUM])(-(?P<kind>.+))?",
    r"(?i:(?P<letter>[BIESLUM])([-_](?P<kind>.+))?)",
    r"(?i:(?P<kind>.+)[-_](?P<letter>[BIESLUM]))",
)


def readings(tags: Collection[str]) -> dict[str, str]:
    """Tag → the same tag of IOBES, of all tags of a model or a data set; empty where they have no scheme.

    Where none is called O, a single tag without a letter is the one outside of entities.

    Example:
        >>> readings(["O", "U-PER", "L-PER"]), readings(["out", "per_b"]), readings(["NOUN", "O"])
        ({'U-PER': 'S-PER', 'L-PER': 'E-PER', 'O': 'O'}, {'per_b': 'B-per', 'out': 'O'}, {})
    """
    for form in _FORMS:
        found = {tag: re.fullmatch(form, tag) for tag in tags}
        read = {
            tag: "-".join(filter(None, (match["letter"].upper().translate(_IOBES), match["kind"])))
            for tag, match in found.items()
            if match
        }
        outside = set(tags) - set(read)
        # Without one outside, tags of another form may be words such as e-mail.
        if read and (len(outside) == 1 or (form == _FORMS[0] and not outside)):
            return read | dict.fromkeys(outside, OUTSIDE)
    return {}


def mark_entities(tags: Collection[str]) -> bool:
    """Whether tags have a scheme or one for the words outside of entities, unlike parts of speech."""
    return OUTSIDE in tags or bool(readings(tags))


def parted(tag: str) -> tuple[str, str]:
    """(letter, type): `B-PER` is ("B", "PER"); a tag without a letter, such as NOUN, goes on with its own type."""
    letter, dash, kind = tag.partition("-")
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if dash and letter in _LETTERS:
        return letter, kind
    return (tag, "_") if tag in _LETTERS else ("I", tag)


def kind_of(tag: str) -> str:
    """The type of a tag; O for O."""
    letter, kind = parted(tag)
    return kind if letter != OUTSIDE else OUTSIDE


def entities(tags: Sequence[str]) -> list[Entity]:
    """(type, first word, last word) of every entity, in order."""
    entities_so_far: list[Entity] = []
    open_at, before, kind_before = -1, OUTSIDE, ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        letter, kind = parted(tag)
        goes_on = letter in ("I", "E") and before in ("B", "I") and kind == kind_before
        if open_at >= 0 and not goes_on:
            entities_so_far.append((kind_before, open_at, index - 1))
            open_at = -1
        if letter != OUTSIDE and not goes_on:
            open_at = index
        before, kind_before = letter, kind
    return entities_so_far


def iob2(tags: Sequence[str]) -> list[str]:
    """The same entities, each beginning with B; tags of another form do not change."""
    letters = {parted(tag)[0] for tag in tags if "-" in tag}
    if (
        not letters
        or letters & {"E", "S"}
        or any("-" not in tag and tag != OUTSIDE for tag in tags)
    ):
        return list(tags)
    converted = [OUTSIDE] * len(tags)
    for kind, first, last in entities(tags):
        converted[first : last + 1] = [f"B-{kind}"] + [f"I-{kind}"] * (last - first)
    return converted


def labels_of(tags: set[str]) -> tuple[str, ...]:
    """The labels of a model that says such tags: both B and I of every type, whichever the data happens to have."""
    if all(tag == OUTSIDE or tag[:2] in ("B-", "I-") for tag in tags):
        kinds = sorted({tag[2:] for tag in tags if tag != OUTSIDE})
        return (OUTSIDE, *(f"{letter}-{kind}" for kind in kinds for letter in "BI"))
    return tuple(sorted(tags, key=lambda tag: (tag != OUTSIDE, tag)))


def counts(tags: Sequence[str], right: Sequence[str]) -> tuple[int, int, int, int, int]:
    """(entities that are right, predicted, expected; words tagged right, words) of one sentence."""
    ours, theirs = set(entities(tags)), set(entities(right))
    same = sum(kind_and_letter == other for kind_and_letter, other in zip(tags, right, strict=True))
    return len(ours & theirs), len(ours), len(theirs), same, len(right)
