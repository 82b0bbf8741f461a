"""Token classification: a tag for every word, and entities from the tags. Data: column files, or lists of words and tags."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from octobert.core.errors import DataError, did_you_mean
from octobert.core.evidence import Answer, Mark
from octobert.core.plain import preview
from octobert.core.results import Stated
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer, TokenOffsets, split
from octobert.data.windows import NOWHERE, StepOptions, step_within, windows
from octobert.tasks import _entities
from octobert.tasks._classification import check_labels
from octobert.tasks._metrics import changed_answers, f1_of_rows, output_error, probabilities
from octobert.tasks._rows import Table, check_texts, label_index
from octobert.tasks._task import (
    NOTHING,
    Explanation,
    Extremes,
    Fidelity,
    Judged,
    Pair,
    Result,
    Task,
    objects,
)

DESCRIPTION = "tag every word (entities, parts of speech); entity F1, precision and recall as seqeval counts them, accuracy"
FILES = ()
_WORDS, _TAGS = ("tokens", "words"), ("ner_tags", "tags", "labels", "pos_tags")
# The tag of a word for which the model predicts nothing.
OUTSIDE = "O"
_NO_ENTITY = "(nothing)"
IGNORED = -100


class Options(StepOptions):
    """Args:
    words: the column with lists of words; by default, the first of the usual names that the data has.
    tags: the column with lists of tags; the same default.
    labels: tags in the order of the logits; by default those of the model's config.
    metric: the main metric.
    max_length: tokens of a window; by default the model's limit.
    step: tokens from the start of one window to the start of the next, for longer sentences; by default half a window.
    """

    words: str | None = None
    tags: str | None = None
    labels: tuple[str, ...] = ()
    metric: str = "f1"
    max_length: int | None = Field(default=None, ge=8)

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        if value not in _entities.METRICS:
            raise ValueError(f"there is no such metric; {did_you_mean(value, _entities.METRICS)}")
        return value


def build(options: Options, stated: Stated = NOTHING) -> Tagging:
    """The task for a model with these tags.

    Raises:
        DataError: the options name another number of tags than the model has.
    """
    return Tagging(
        words=(options.words,) if options.words else _WORDS,
        tags=(options.tags,) if options.tags else _TAGS,
        labels=check_labels(options.labels, stated.labels),
        primary=options.metric,
        metrics=_entities.METRICS,
        max_length=options.max_length,
        steps=options,
    )


@dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """A column of words and a column of tags.

    Args:
        words, tags: candidate columns; the first that the data has is used.
        steps: the distance of windows over long sentences.
    """

    per_token = True
    words: tuple[str, ...]
    tags: tuple[str, ...]
    steps: StepOptions
    head: str = "token-classification"

    def read_inputs(self, table: Table) -> list[Text]:
        texts = []
        for cell, place in table.cells(table.first_column(self.words)):
            words = _list(cell, place)
            if not all(isinstance(word, str) for word in words):
                raise DataError(
                    "a word is not a text",
                    where=place,
                    got=preview(words),
                    fix="write every word as text",
                )
            check_texts([" ".join(words)], where=place, fix="remove the row or fill it in")
            texts.append(tuple(words))
        return texts

    def parse(self, given: Any, *, where: str) -> Text:
        """A text, which is split into words and signs, or a list of words.

        Raises:
            DataError: it is neither, or is empty.
        """
        if isinstance(given, str):
            check_texts([given], where=where)
            return tuple(_words(given))
        if (
            not isinstance(given, (list, tuple))
            or not given
            or not all(isinstance(word, str) for word in given)
        ):
            raise DataError(
                "the input is not a text or a list of words", where=where, got=preview(given)
            )
        check_texts([" ".join(given)], where=where)
        return tuple(given)

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """Token rows of the words, which are tokenized as one text with spaces between them, as in pre-training."""
        frame, length = tokenizer.frame(1), tokenizer.max_length
        step = step_within(self.steps, length - frame.size)
        offsets = tokenizer.offsets([" ".join(words) for words in texts])
        aligned = [_aligned(words, own) for words, own in zip(texts, offsets, strict=True)]
        return EncodedTexts(
            texts, [windows(frame, own, length=length, step=step) for own in aligned]
        )

    def read_gold(self, table: Table) -> list[list[str]]:
        """The tags of each sentence, in IOB2 where they are a form of it."""
        tags, words = map(table.first_column, (self.tags, self.words))
        gold = []
        for row, (cell, place) in zip(table.rows, table.cells(tags), strict=True):
            own = [self._name(tag, place) for tag in _list(cell, place)]
            count = len(row[words])
            if len(own) != count:
                raise DataError(
                    "a sentence has another number of tags than words",
                    where=place,
                    got=str(len(own)),
                    expected=str(count),
                )
            gold.append(_entities.iob2(own))
        self._check_types(gold, table.where)
        return gold

    def read_labels(self, table: Table) -> tuple[str, ...]:
        """O first, then B- and I- of each type; or all tags as they are."""
        return _entities.labels_of({tag for tags in self.read_gold(table) for tag in tags})

    def targets(self, encoded: EncodedTexts, gold: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """The tag's index at the first token of each word, `IGNORED` elsewhere."""
        index = {label: i for i, label in enumerate(self.labels)}
        targets = []
        for rows, tags in zip(encoded.rows, gold, strict=True):
            unknown = sorted(set(tags) - set(index))
            if unknown:
                raise DataError(
                    "the model has no such tag",
                    where="finetune",
                    got=unknown[0],
                    expected=", ".join(self.labels),
                )
            for row in rows:
                places = row.spans[:, 0]  # type: ignore[attr-defined]
                targets.append(
                    {
                        "labels": np.array(
                            [IGNORED if word == NOWHERE else index[tags[word]] for word in places]
                        )
                    }
                )
        return targets

    def predictions(self, result: Result) -> list[tuple[list[str], list[float]]]:
        """(tags, their probabilities) of every text; a word without tokens has the tag O."""
        logits, predictions, at = split(result.logits, result.encoded.flat), [], 0
        for words, rows in zip(result.texts, result.encoded.rows, strict=True):
            tags, likely = [OUTSIDE] * len(words), [0.0] * len(words)
            for row in rows:
                own = np.flatnonzero(row.best & (row.spans[:, 0] != NOWHERE))  # type: ignore[attr-defined]
                for place, share in zip(own, probabilities(logits[at][own]), strict=True):
                    word = int(row.spans[place, 0])  # type: ignore[attr-defined]
                    tags[word], likely[word] = (
                        self.label_of(int(share.argmax())),
                        float(share.max()),
                    )
                at += 1
            predictions.append((tags, likely))
        return predictions

    def items(self, result: Result) -> np.ndarray:
        """[sentences, 7]: the counts of `_entities`, both in IOB2: a model trained on IOB1 means the same by other tags."""
        predicted, gold = self.judged(result).predictions, result.gold
        # Tags that know how often each occurs, and nothing of the words: those of other words.
        every = [tag for tags in gold for tag in tags]
        others = iter(every[len(every) // 2 :] + every[: len(every) // 2])
        counts = []
        for own, tags in zip(predicted, gold, strict=True):
            right, said, *_ = _entities.counts([next(others) for _ in tags], tags)
            counts.append((*_entities.counts(own, tags), right, said))
        return np.array(counts, dtype=np.float64)

    def judged(self, result: Result) -> Judged:
        """The tags of each sentence in IOB2, as seqeval reads them."""
        predicted = [_entities.iob2(tags) for tags, _ in self.predictions(result)]
        return Judged(objects(predicted), objects(result.gold))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Of the right tags of other words."""
        return {
            name: _entities.METRICS[name](_entities.by_chance(items))
            for name in ("f1", "precision", "recall")
        }

    def extremes(self, items: np.ndarray) -> Extremes:
        return _entities.extremes(items)

    def expected(self, gold: Sequence[str]) -> str:
        return _shown(gold)

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """Agreement is the share of words with the same tag. A sentence has changed where its entities have."""
        after, before = (
            [tags for tags, _ in self.predictions(result)] for result in (ours, reference)
        )
        same = sum(
            a == b
            for ours_tags, reference_tags in zip(after, before, strict=True)
            for a, b in zip(ours_tags, reference_tags, strict=True)
        )
        total = sum(map(len, after))
        changed = changed_answers(list(map(_shown, before)), list(map(_shown, after)))
        frequent = Counter(tag for tags in before for tag in tags).most_common(1)
        chance = frequent[0][1] / total if frequent else None
        error = output_error(ours.outputs, reference.outputs)
        return Fidelity("agreement", same / max(total, 1), error, changed, chance)

    def answer(self, result: Result, index: int, given: Any) -> dict[str, Any]:
        """Tags of the words, and entities with their characters in the given text, or in the given words joined by spaces."""
        ((tags, likely),) = self.predictions(result.single(index))
        words = result.texts[index]
        text = given if isinstance(given, str) else " ".join(words)
        entities = []
        for (kind, first, last), (start, end) in zip(
            _entities.entities(tags), places_of(words, text, tags), strict=True
        ):
            score = float(np.mean(likely[first : last + 1]))
            entities.append(
                {"type": kind, "text": text[start:end], "start": start, "end": end, "score": score}
            )
        return {"words": list(words), "tags": tags, "entities": entities}

    def explanation(self, pair: Pair, index: int, answers: Sequence[str]) -> Explanation:
        """With the entities in the words joined by spaces."""
        words, gold = pair[0].texts[index], pair[0].expected(index) or ()
        text = " ".join(words)
        found = [
            [(e["type"], e["start"], e["end"]) for e in side["entities"]]
            for side in self.answers(pair, index)
        ]
        kinds = [kind for kind, _, _ in _entities.entities(gold)]
        right = [
            (kind, *place) for kind, place in zip(kinds, places_of(words, text, gold), strict=True)
        ]
        marked = [
            Answer(text=answer, marks=_marks(own))
            for answer, own in zip(answers, found, strict=True)
        ]
        moves = tuple(_moves(*found))
        return Explanation((text,), marked, _marks(right), moves, shift=float(len(moves)))

    def quality(self, items: np.ndarray) -> np.ndarray:
        return f1_of_rows(
            items[:, _entities.RIGHT], items[:, _entities.PREDICTED], items[:, _entities.EXPECTED]
        )

    def _name(self, tag: Any, place: str) -> str:
        """A tag by its name, or by its index in the model's labels."""
        if isinstance(tag, str):
            index = label_index(tag.strip(), self.labels)
            return tag.strip() if index is None else self.labels[index]
        if isinstance(tag, (int, np.integer)) and 0 <= tag < len(self.labels):
            return self.labels[int(tag)]
        raise DataError(
            "a tag is not a name or the index of a name",
            where=place,
            got=preview(tag),
            fix="name the tags as text",
        )

    def _check_types(self, gold: Sequence[Sequence[str]], where: str) -> None:
        """Refuse gold of types that the model does not have, such as labels of another data set or other names."""
        if not self.labels:
            return
        ours = {_entities.kind_of(label) for label in self.labels}
        foreign = sorted(
            {_entities.kind_of(tag) for tags in gold for tag in tags} - ours - {OUTSIDE}
        )
        if foreign:
            raise DataError(
                "the data has tags that the model does not have",
                where=where,
                got=", ".join(foreign),
                expected=", ".join(sorted(ours)),
                fix="name the model's labels in the order of its logits (task.token-classification.labels)",
            )


def places_of(words: Sequence[str], text: str, tags: Sequence[str]) -> list[tuple[int, int]]:
    """(first character, end) of each entity of tags in a text that has the words in their order."""
    places, at = [], 0
    for word in words:
        at = text.index(word, at)
        places.append((at, at + len(word)))
        at += len(word)
    return [(places[first][0], places[last][1]) for _, first, last in _entities.entities(tags)]


def _marks(found: Sequence[tuple[str, int, int]]) -> tuple[Mark, ...]:
    return tuple(Mark(text=0, start=start, end=end, label=kind) for kind, start, end in found)


def _moves(
    before: Sequence[tuple[str, int, int]], after: Sequence[tuple[str, int, int]]
) -> Iterator[tuple[str, str]]:
    """(type before, type after) of entities that changed; those that overlap belong together."""
    new = [entity for entity in after if entity not in before]
    for kind, start, end in (entity for entity in before if entity not in after):
        partner = next((entity for entity in new if entity[1] < end and start < entity[2]), None)
        if partner is not None:
            new.remove(partner)
        yield kind, _NO_ENTITY if partner is None else partner[0]
    yield from ((_NO_ENTITY, kind) for kind, _, _ in new)


def _words(text: str) -> Iterator[str]:
    """Words: runs of letters, digits and their combining marks; every other sign is a word of its own."""
    word = ""
    for character in text:
        if (
            character.isalnum()
            or character == "_"
            or unicodedata.category(character).startswith("M")
        ):
            word += character
            continue
        if word:
            yield word
        word = ""
        if not character.isspace():
            yield character
    if word:
        yield word


def _aligned(words: Sequence[str], offsets: TokenOffsets) -> TokenOffsets:
    """The offsets in words: each token that begins a word has the word's index; other tokens have `NOWHERE`."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    text = " ".join(words)
    spans = np.full((len(offsets.ids), 2), NOWHERE, dtype=np.int64)
    last = NOWHERE
    for index, (start, end) in enumerate(offsets.spans.tolist()):
        while start < end and text[start].isspace():
            start += 1
        word = int(np.searchsorted(starts, start, side="right")) - 1
        if end > start and word > last:
            spans[index], last = (word, word + 1), word
    return TokenOffsets(offsets.ids, spans)


def _shown(tags: Sequence[str]) -> str:
    """`PER 0-1, LOC 4-4`."""
    return (
        ", ".join(
            f"{kind} {first + 1}–{last + 1}" for kind, first, last in _entities.entities(tags)
        )
        or _NO_ENTITY
    )


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, (list, tuple)) or not len(value):
        raise DataError(
            "the cell is not a list of words or tags",
            where=place,
            got=preview(value),
            fix="give one entry for each word",
        )
    return list(value)
