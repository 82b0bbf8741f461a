"""Token classification: a tag for every word, and entities from the tags. Data: column files, or lists of words and tags.

Entities are counted as seqeval counts them; `_tags` has the rules.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from octobert.core.errors import DataError, did_you_mean, each
from octobert.core.evidence import Answer, ChangedRow, Mark
from octobert.core.frozen import lazy
from octobert.core.plain import preview
from octobert.core.results import ModelMetadata
from octobert.data.encoded import TokenOffsets, split
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.data.windows import NOWHERE, StepOptions, step_within, stepped, windows
from octobert.tasks._classification import check_labels
from octobert.tasks._metrics import (
    changed_answers,
    f1_of_rows,
    of_counts,
    output_error,
    probabilities,
    share_of_most_frequent,
)
from octobert.tasks._rows import Table, check_texts, class_index
from octobert.tasks._tags import (
    OUTSIDE,
    Entity,
    counts,
    entities,
    iob2,
    kind_of,
    labels_of,
    mark_entities,
    readings,
)
from octobert.tasks._task import (
    NOTHING,
    Extremes,
    Fidelity,
    Metric,
    Pair,
    Predictions,
    Result,
    RowTargets,
    Task,
    TaskOptions,
    UserAnswer,
    objects,
)

_WORDS, _TAGS = ("tokens", "words"), ("ner_tags", "tags", "labels", "pos_tags")
_NO_ENTITY = "(nothing)"
IGNORED = -100
# Columns of the counts of a sentence.
RIGHT, PREDICTED, EXPECTED, RIGHT_TAGS, TAGS, CHANCE_RIGHT, CHANCE_PREDICTED, FREQUENT = range(8)


class TokenClassificationOptions(TaskOptions, StepOptions):
    """Args:
    words: the column with lists of words; by default, the first of the usual names that the data has.
    tags: the column with lists of tags; the same default.
    labels: tags in the order of the logits; by default those of the model's config.
    metric: the main metric; by default f1, and accuracy where tags mark no entities, as parts of speech.
    max_length: tokens of a window; by default the model's limit.
    step: tokens from the start of one window to the start of the next, for longer sentences; by default half a window.
    """

    description: ClassVar[str] = (
        "tag every word (entities, parts of speech); entity F1, precision and recall as seqeval counts them, accuracy"
    )

    words: str | None = None
    tags: str | None = None
    labels: tuple[str, ...] = ()
    metric: str | None = None
    max_length: int | None = Field(default=None, ge=8)

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str | None) -> str | None:
        if value is not None and value not in METRICS:
            raise ValueError(f"there is no such metric; {did_you_mean(value, METRICS)}")
        return value

    def build(self, metadata: ModelMetadata = NOTHING) -> Tagging:
        """Return the task for a model with these tags.

        Raises:
            DataError: the options name another number of tags than the model has.
        """
        labels = check_labels(self.labels, metadata.labels)
        usual = "f1" if mark_entities(labels) or not labels else "accuracy"
        return Tagging(
            words=(self.words,) if self.words else _WORDS,
            tags=(self.tags,) if self.tags else _TAGS,
            labels=labels,
            primary=self.metric or usual,
            metrics=METRICS,
            max_length=self.max_length,
            steps=self,
        )


@dataclass(frozen=True, kw_only=True)
class Tagging(Task):
    """A column of words and a column of tags.

    Args:
        words, tags: candidate columns; the first that the data has is used.
        steps: the distance of windows over long sentences.
    """

    per_token: bool = True
    words: tuple[str, ...]
    tags: tuple[str, ...]
    steps: StepOptions
    head: str = "token-classification"

    @lazy
    def _readings(self) -> dict[str, str]:
        """The model's tags in IOBES, whatever their scheme."""
        return {label: label for label in self.labels} | readings(self.labels)

    def _read(self, tags: Sequence[str]) -> list[str]:
        return [self._readings.get(tag, tag) for tag in tags]

    def read_inputs(self, table: Table) -> list[Text]:
        return each(_words_of, table.cells(table.first_column(self.words)))

    def parse(self, user_input: Any, *, where: str) -> Text:
        """A text, which is split into words and signs, or a list of words.

        Raises:
            DataError: it is neither, or is empty.
        """
        if isinstance(user_input, str):
            check_texts([user_input], where=where)
            return tuple(_words(user_input))
        if (
            not isinstance(user_input, (list, tuple))
            or not user_input
            or not all(isinstance(word, str) for word in user_input)
        ):
            raise DataError(
                "the input is not a text or a list of words", where=where, got=preview(user_input)
            )
        check_texts([" ".join(user_input)], where=where)
        return tuple(user_input)

    def inputs_like(self, text: Text, texts: Sequence[str]) -> list[Text]:
        return [tuple(_words(each)) for each in texts]

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """Token rows of the words, which are tokenized as one text with spaces between them, as in pre-training."""
        frame = tokenizer.frame(1)
        room = tokenizer.max_length - frame.size
        step = step_within(self.steps, room)
        offsets = tokenizer.offsets([" ".join(words) for words in texts])
        aligned = [
            _aligned(words, word_offsets)
            for words, word_offsets in zip(texts, offsets, strict=True)
        ]
        return EncodedTexts(
            texts,
            [
                windows(frame, sentence, stepped(len(sentence.ids), room, step))
                for sentence in aligned
            ],
        )

    def read_gold(self, table: Table) -> list[list[str]]:
        """The tags of each sentence, in IOB2 where they are a form of it, else in IOBES."""
        tags, words = map(table.first_column, (self.tags, self.words))
        rows = zip(table.rows, table.cells(tags), strict=True)
        named = each(self._tags_of, ((len(row[words]), *cell) for row, cell in rows))
        # Tags that the model has are the model's; others may have another scheme.
        read = readings({tag for tags in named for tag in tags}) | self._readings
        gold = [iob2([read.get(tag, tag) for tag in tags]) for tags in named]
        self._check_types(gold, table.where)
        return gold

    def _tags_of(self, count: int, cell: Any, place: str) -> list[str]:
        """The tags of a sentence with so many words."""
        tags = [self._name(tag, place) for tag in _list(cell, place)]
        if len(tags) != count:
            raise DataError(
                "a sentence has another number of tags than words",
                where=place,
                got=str(len(tags)),
                expected=str(count),
            )
        return tags

    def read_labels(self, table: Table) -> tuple[str, ...]:
        """O first, then B- and I- of each type; or all tags without changes."""
        return labels_of({tag for tags in self.read_gold(table) for tag in tags})

    def targets(self, encoded: EncodedTexts, gold: Sequence[Sequence[str]]) -> list[RowTargets]:
        """The tag's index at the first token of each word, `IGNORED` elsewhere."""
        index = {tag: i for i, tag in enumerate(self._read(self.labels))}
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
        logits, predictions, at = split(result.outputs["logits"], result.encoded.flat), [], 0
        for words, rows in zip(result.texts, result.encoded.rows, strict=True):
            tags, likely = [OUTSIDE] * len(words), [0.0] * len(words)
            for row in rows:
                places = np.flatnonzero(row.best & (row.spans[:, 0] != NOWHERE))  # type: ignore[attr-defined]
                for place, share in zip(places, probabilities(logits[at][places]), strict=True):
                    word = int(row.spans[place, 0])  # type: ignore[attr-defined]
                    tags[word] = self.label_of(int(share.argmax()))
                    likely[word] = float(share.max())
                at += 1
            predictions.append((tags, likely))
        return predictions

    def items(self, result: Result) -> np.ndarray:
        """[sentences, 8]: the columns of counts, both in IOB2: a model trained on IOB1 means the same by other tags."""
        predicted, gold = self.judged(result).predictions, result.gold
        # Tags that know how often each occurs, and nothing of the words: those of other words.
        every = [tag for tags in gold for tag in tags]
        others = iter(every[len(every) // 2 :] + every[: len(every) // 2])
        frequent = Counter(every).most_common(1)[0][0]
        items = []
        for predicted_tags, tags in zip(predicted, gold, strict=True):
            right, chance_predicted, *_ = counts([next(others) for _ in tags], tags)
            by_chance = (right, chance_predicted, tags.count(frequent))
            items.append((*counts(predicted_tags, tags), *by_chance))
        return np.array(items, dtype=np.float64)

    def judged(self, result: Result) -> Predictions:
        """The tags of each sentence in IOB2, as seqeval reads them."""
        predicted = [iob2(self._read(tags)) for tags, _ in self.predictions(result)]
        return Predictions(objects(predicted), objects(result.gold))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """The metrics of the right tags of other words; the accuracy of the most frequent tag."""
        by_chance = items[:, [CHANCE_RIGHT, CHANCE_PREDICTED, EXPECTED, FREQUENT, TAGS]]
        return {name: metric(by_chance) for name, metric in METRICS.items()}

    def extremes(self, items: np.ndarray) -> Extremes:
        """As many entities as there are, or one, in the wrong places with no tag right; or all right."""
        wrong, right = items.copy(), items.copy()
        wrong[:, [RIGHT, RIGHT_TAGS]], wrong[:, PREDICTED] = 0, np.maximum(items[:, EXPECTED], 1)
        right[:, [RIGHT, PREDICTED]], right[:, RIGHT_TAGS] = items[:, [EXPECTED]], items[:, TAGS]
        return wrong, right

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
        shown = ([_shown(self._read(tags)) for tags in side] for side in (before, after))
        changed = changed_answers(*shown)
        chance = share_of_most_frequent([tag for tags in before for tag in tags])
        error = output_error(ours.outputs, reference.outputs)
        return Fidelity("agreement", same / max(total, 1), error, changed, chance)

    def compared(self, encoded: EncodedTexts) -> int:
        """Words."""
        return sum(map(len, encoded.texts))

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        """Tags of the words, and entities with their characters in the given text, or in the given words joined by spaces."""
        ((tags, likely),) = self.predictions(result.single(index))
        words = result.texts[index]
        text = user_input if isinstance(user_input, str) else " ".join(words)
        spans, read = [], self._read(tags)
        for (kind, first, last), (_, start, end) in zip(
            entities(read), places_of(words, text, read), strict=True
        ):
            score = float(np.mean(likely[first : last + 1]))
            spans.append(
                {"type": kind, "text": text[start:end], "start": start, "end": end, "score": score}
            )
        return {"words": list(words), "tags": tags, "entities": spans}

    def line(self, answer: Mapping[str, Any]) -> str:
        form = "{text} ({type}, {start}–{end}, {score:.4f})"
        return ", ".join(form.format(**found) for found in answer["entities"]) or "(nothing)"

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """With the entities in the words joined by spaces."""
        words, gold = pair[0].texts[index], pair[0].expected(index) or ()
        text = " ".join(words)
        sides = [
            [(e["type"], e["start"], e["end"]) for e in side["entities"]]
            for side in self.answers(pair, index)
        ]
        marked = [
            Answer(text=answer, marks=_marks(side))
            for answer, side in zip(answers, sides, strict=True)
        ]
        moves = list(_moves(*sides))
        return self.row_of(
            pair,
            index,
            marked,
            texts=(text,),
            marks=_marks(places_of(words, text, gold)),
            transitions=moves,
            change=len(moves),
        )

    def quality(self, items: np.ndarray) -> np.ndarray:
        return f1_of_rows(items[:, RIGHT], items[:, PREDICTED], items[:, EXPECTED])

    def _name(self, tag: Any, place: str) -> str:
        """A tag by its name, or by its index in the model's labels."""
        index = class_index(tag, self.labels)
        if index is not None or isinstance(tag, str):
            return tag.strip() if index is None else self.labels[index]
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
        ours = {kind_of(tag) for tag in self._readings.values()}
        foreign = sorted({kind_of(tag) for tags in gold for tag in tags} - ours - {OUTSIDE})
        if foreign:
            raise DataError(
                "the data has tags that the model does not have",
                where=where,
                got=", ".join(foreign),
                expected=", ".join(sorted(ours)),
                fix="name the model's labels in the order of its logits (task.token-classification.labels)",
            )


def places_of(words: Sequence[str], text: str, tags: Sequence[str]) -> list[Entity]:
    """(type, first character, end) of each entity of tags in a text that has the words in their order."""
    places, at = [], 0
    for word in words:
        at = text.index(word, at)
        places.append((at, at + len(word)))
        at += len(word)
    return [(kind, places[first][0], places[last][1]) for kind, first, last in entities(tags)]


def _marks(places: Sequence[Entity]) -> tuple[Mark, ...]:
    return tuple(Mark(text=0, start=start, end=end, label=kind) for kind, start, end in places)


def _moves(before: Sequence[Entity], after: Sequence[Entity]) -> Iterator[tuple[str, str]]:
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
        is_mark = unicodedata.category(character).startswith("M")
        if character.isalnum() or character == "_" or is_mark:
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
    shown = [f"{kind} {first + 1}–{last + 1}" for kind, first, last in entities(tags)]
    return ", ".join(shown) or _NO_ENTITY


def _words_of(cell: Any, place: str) -> Text:
    words = _list(cell, place)
    if not all(isinstance(word, str) for word in words):
        raise DataError(
            "a word is not a text", where=place, got=preview(words), fix="write every word as text"
        )
    check_texts([" ".join(words)], where=place, fix="remove the row or fill it in")
    return tuple(words)


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, (list, tuple)) or not len(value):
        raise DataError(
            "the cell is not a list of words or tags",
            where=place,
            got=preview(value),
            fix="give one entry for each word",
        )
    return list(value)


def _counts(items: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, predicted and expected entities of all sentences."""
    right, predicted, expected = items[:, [RIGHT, PREDICTED, EXPECTED]].sum(axis=0)
    return np.array([right]), np.array([predicted]), np.array([expected])


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
