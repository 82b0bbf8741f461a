"""What two models answer to a row, as people read it: answers with their scores and their places in the texts, task by task.

Tasks decode outputs themselves (`Task.answer`). Here their answers become records of `core/evidence.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from octobert.core.evidence import Answer, Mark
from octobert.core.excerpts import beginning
from octobert.data.tokenization import EncodedTexts
from octobert.tasks import Outputs, _entities, _masking, _squad
from octobert.tasks._answering import Answering
from octobert.tasks._classification import Classification
from octobert.tasks._common import probabilities
from octobert.tasks._embedding import MRR_DEPTH, Embedding
from octobert.tasks._multilabel import MultiLabel
from octobert.tasks._scores import Scores
from octobert.tasks.fill_mask import FillMask
from octobert.tasks.token_classification import Tagging, places_of

# Classes and neighbours that an answer has, and characters of a neighbour's text.
_TOP, _NEIGHBOUR = 5, 200
NO_ANSWER, NOTHING = "(no answer)", "(nothing)"


@dataclass(frozen=True)
class Pair:
    """Outputs of two models for the same rows.

    Args:
        before: of the float model.
        after: of the quantized model.
        encoded: the rows.
        gold: expected value of each item; empty without labels.
    """

    before: Outputs
    after: Outputs
    encoded: EncodedTexts
    gold: Sequence[Any]

    def of(self, index: int) -> Any:
        """What is expected of an item; None without labels."""
        return self.gold[index] if len(self.gold) else None


@dataclass(frozen=True)
class Told:
    """A row and what is said of it; see `ChangedRow`.

    Args:
        expected: None for what `Task.expected` says.
        shift: by how much a probability or a score fell.
        questions: texts that are shown whole.
    """

    texts: tuple[str, ...]
    before: Answer
    after: Answer
    marks: tuple[Mark, ...] = ()
    transitions: tuple[tuple[str, str], ...] = ()
    expected: str | None = None
    shift: float = 0.0
    questions: tuple[int, ...] = ()


@singledispatch
def told(task: Any, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterable[Told]:
    """Tell of rows with different answers.

    Args:
        changed: (index, answer before, answer after) as `Fidelity` has them.

    Returns:
        For each of them, in order. Of a task that is not known here, the answers as text.
    """
    return [Told(pair.encoded.texts[i], Answer(text=b), Answer(text=a), transitions=((b, a),)) for i, b, a in changed]


@singledispatch
def qualities(task: Any, items: np.ndarray) -> np.ndarray | None:
    """The task's own measure on each item alone, from 0 to 1; None where it has none, as scores that are correlated."""
    return None


@told.register
def _(task: Classification, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterator[Told]:
    for i, before, after in changed:
        sides = [probabilities(outputs["logits"][i]) for outputs in (pair.before, pair.after)]
        names = [task.labels[c] if c < len(task.labels) else str(c) for c in range(len(sides[0]))]
        answers = [
            Answer(text=text, score=float(likely.max()), scores=_top(zip(names, likely.tolist(), strict=True)))
            for text, likely in zip((before, after), sides, strict=True)
        ]
        meant = names.index(before) if pair.of(i) is None else pair.of(i)
        shift = float(sides[0][meant] - sides[1][meant])
        yield Told(pair.encoded.texts[i], answers[0], answers[1], transitions=((before, after),), shift=shift)


@qualities.register
def _(task: Classification, items: np.ndarray) -> np.ndarray:
    return np.asarray(items[:, 0] == items[:, 1], dtype=np.float64)


@told.register
def _(task: MultiLabel, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterator[Told]:
    for i, before, after in changed:
        sides = [task.answer(outputs, pair.encoded, i, None) for outputs in (pair.before, pair.after)]
        answers = [
            Answer(text=text, scores=_top(side["scores"].items())) for text, side in zip((before, after), sides, strict=True)
        ]
        old, new = (set(side["labels"]) for side in sides)
        differ = [name for name in task.labels if name in old ^ new]
        moves = [(name, f"(not {name})") if name in old else (f"(not {name})", name) for name in differ]
        shift = max(abs(sides[0]["scores"][name] - sides[1]["scores"][name]) for name in task.labels)
        yield Told(pair.encoded.texts[i], answers[0], answers[1], transitions=tuple(moves), shift=shift)


@qualities.register
def _(task: MultiLabel, items: np.ndarray) -> np.ndarray:
    given, right = np.split(items, 2, axis=1)
    return _f1((given * right).sum(axis=1), given.sum(axis=1), right.sum(axis=1))


@told.register
def _(task: Scores, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterator[Told]:
    for i, before, after in changed:
        scores = [task.answer(outputs, pair.encoded, i, None)["score"] for outputs in (pair.before, pair.after)]
        yield _scored(pair.encoded.texts[i], (before, after), scores)


@told.register
def _(task: Answering, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterator[Told]:
    for i, *said in changed:
        texts, gold = pair.encoded.texts[i], pair.of(i)
        sides = [task.answer(outputs, pair.encoded, i, None) for outputs in (pair.before, pair.after)]
        spans = [(side["start"], side["end"]) if side["answer"] else None for side in sides]
        answers = [
            Answer(text=text, score=side["score"], marks=() if span is None else (Mark(text=1, start=span[0], end=span[1]),))
            for text, side, span in zip(said, sides, spans, strict=True)
        ]
        marks = tuple(Mark(text=1, start=start, end=end) for start, end in _right_spans(texts[1], gold))
        moves = (_span_moved(spans[0], spans[1]),)
        shift = sides[0]["score"] - sides[1]["score"]
        yield Told(texts, answers[0], answers[1], marks, moves, shift=shift, questions=(0,))


@qualities.register
def _(task: Answering, items: np.ndarray) -> np.ndarray:
    return np.asarray(items[:, _squad.F1])


@told.register
def _(task: Tagging, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterator[Told]:
    for i, *said in changed:
        words, gold = pair.encoded.texts[i], pair.of(i)
        text = " ".join(words)
        sides = [task.answer(outputs, pair.encoded, i, words) for outputs in (pair.before, pair.after)]
        found = [[(e["type"], e["start"], e["end"]) for e in side["entities"]] for side in sides]
        answers = [Answer(text=text, marks=_entity_marks(own)) for text, own in zip(said, found, strict=True)]
        kinds = [kind for kind, _, _ in _entities.entities(gold or ())]
        right = [(kind, *place) for kind, place in zip(kinds, places_of(words, text, gold or ()), strict=True)]
        moves = tuple(_entities_moved(found[0], found[1]))
        yield Told((text,), answers[0], answers[1], _entity_marks(right), moves, shift=float(len(moves)))


@qualities.register
def _(task: Tagging, items: np.ndarray) -> np.ndarray:
    return _f1(items[:, _entities.RIGHT], items[:, _entities.PREDICTED], items[:, _entities.EXPECTED])


@told.register
def _(task: FillMask, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterator[Told]:
    tokenizer = pair.encoded.tokenizer
    assert tokenizer is not None
    offset = len(tokenizer.frame(1).special[0])
    for i, _, _ in changed:
        rows, (text,) = pair.encoded.rows[i], pair.encoded.texts[i]
        places = [int(place) - offset for row in rows for place in row.places]  # type: ignore[attr-defined]
        sides = [pair.encoded.single(i, outputs)[1] for outputs in (pair.before, pair.after)]
        ids = [side[_masking.IDS][:, 0] for side in sides]
        differ = np.flatnonzero(ids[0] != ids[1]).tolist()
        spans = tokenizer.offsets([text])[0].spans[[places[k] for k in differ]].tolist()
        answers = []
        for side, own in zip(sides, ids, strict=True):
            fillers = [tokenizer.decoded([int(own[k])]) for k in differ]
            filled = [Mark(text=0, start=s, end=e, label=name) for (s, e), name in zip(spans, fillers, strict=True)]
            score = float(np.exp(side[_masking.LOGS][differ[0], 0])) if len(differ) == 1 else None
            answers.append(Answer(text=", ".join(fillers), score=score, marks=tuple(filled)))
        expected = ", ".join(text[start:end] for start, end in spans)
        marks = tuple(Mark(text=0, start=start, end=end) for start, end in spans)
        yield Told((text,), answers[0], answers[1], marks, expected=expected, shift=float(len(differ)))


@qualities.register
def _(task: FillMask, items: np.ndarray) -> np.ndarray:
    # Texts with masks of their own have nothing to judge.
    return np.asarray(items[:, 2] / np.maximum(items[:, 0], 1))


@told.register
def _(task: Embedding, pair: Pair, changed: Sequence[tuple[int, str, str]]) -> Iterator[Told]:
    texts, indices = pair.encoded.texts, [i for i, _, _ in changed]
    count = len(texts) if task.form == "texts" else len(texts) // 2
    prompts = [task.prompts.get(name, "") for name in task.used] or [""]
    if task.form == "pairs":
        both = [task.cosines(outputs) for outputs in (pair.before, pair.after)]
        for i, *said in changed:
            shown = texts[i][0].removeprefix(prompts[0]), texts[count + i][0].removeprefix(prompts[-1])
            yield _scored(shown, said, [float(cosines[i]) for cosines in both])
        return
    near = [task.neighbours(outputs, pair.encoded, indices, _TOP) for outputs in (pair.before, pair.after)]
    right = [task.cosines(outputs) if task.form == "retrieval" else None for outputs in (pair.before, pair.after)]

    def shortened(place: int) -> str:
        return beginning(texts[place][0].removeprefix(prompts[-1]), _NEIGHBOUR)

    for number, (i, *said) in enumerate(changed):
        answers = [
            Answer(
                text=text if task.form == "retrieval" else beginning(text, _NEIGHBOUR),
                score=float(own[i] if own is not None else found[number][0][1]),
                neighbours=tuple((shortened(place), cosine) for place, cosine in found[number]),
            )
            for text, own, found in zip(said, right, near, strict=True)
        ]
        retrieved = task.form == "retrieval"
        yield Told(
            (texts[i][0].removeprefix(prompts[0]),),
            answers[0],
            answers[1],
            transitions=((_depth(said[0]), _depth(said[1])),) if retrieved else (),
            expected=shortened(count + i) if retrieved else None,
            shift=(answers[0].score or 0) - (answers[1].score or 0),
        )


@qualities.register
def _(task: Embedding, items: np.ndarray) -> np.ndarray | None:
    """The reciprocal rank."""
    return np.where(items[:, 0] <= MRR_DEPTH, 1 / items[:, 0], 0.0) if task.form == "retrieval" else None


def _top(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    return dict(sorted(scores, key=lambda entry: -entry[1])[:_TOP])


def _f1(same: np.ndarray, given: np.ndarray, right: np.ndarray) -> np.ndarray:
    """F1 of each row; 1 where there is nothing on either side."""
    return np.where(given + right > 0, 2 * same / np.maximum(given + right, 1), 1.0)


def _scored(texts: Sequence[str], said: Sequence[str], scores: Sequence[float]) -> Told:
    """A row with another score. It went from lower to higher, or the other way."""
    answers = [Answer(text=text, score=score) for text, score in zip(said, scores, strict=True)]
    move = ("lower", "higher") if scores[0] < scores[1] else ("higher", "lower")
    return Told(tuple(texts), answers[0], answers[1], transitions=(move,), shift=abs(scores[0] - scores[1]))


def _right_spans(context: str, gold: Any) -> list[tuple[int, int]]:
    """Places of the acceptable answers; of those that state none, the first occurrence."""
    if gold is None:
        return []
    starts = gold["starts"] or [context.find(text) for text in gold["texts"]]
    places = zip(starts, gold["texts"], strict=False)
    return sorted({(start, start + len(text)) for start, text in places if start >= 0 and text})


def _span_moved(before: tuple[int, int] | None, after: tuple[int, int] | None) -> tuple[str, str]:
    """How an answer changed. An answer that holds the other is the longer of the two."""
    if before is None or after is None:
        return (NO_ANSWER, "an answer") if before is None else ("an answer", NO_ANSWER)
    if after[0] <= before[0] and before[1] <= after[1]:
        return "shorter", "longer"
    if before[0] <= after[0] and after[1] <= before[1]:
        return "longer", "shorter"
    return "an answer", "an answer"


def _entity_marks(found: Sequence[tuple[str, int, int]]) -> tuple[Mark, ...]:
    return tuple(Mark(text=0, start=start, end=end, label=kind) for kind, start, end in found)


def _entities_moved(before: Sequence[tuple[str, int, int]], after: Sequence[tuple[str, int, int]]) -> Iterator[tuple[str, str]]:
    """(type before, type after) of entities that changed; those that overlap belong together."""
    new = [entity for entity in after if entity not in before]
    for kind, start, end in (entity for entity in before if entity not in after):
        partner = next((entity for entity in new if entity[1] < end and start < entity[2]), None)
        if partner is not None:
            new.remove(partner)
        yield kind, NOTHING if partner is None else partner[0]
    yield from ((NOTHING, kind) for kind, _, _ in new)


def _depth(rank: str) -> str:
    """Where a rank lies."""
    place = int(rank.split()[-1])
    return "rank 1" if place == 1 else f"rank 2–{MRR_DEPTH}" if place <= MRR_DEPTH else f"beyond rank {MRR_DEPTH}"
