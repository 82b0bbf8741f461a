"""Questions to both models: a text, with scores, times and tokens; a text at several lengths; a query in a list of texts."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from octobert.core import wording
from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.heads import head_of
from octobert.core.plain import preview
from octobert.data.encoded import Encoded, Frame
from octobert.data.tokenization import EncodedTexts
from octobert.tasks import Embedding, Fidelity, Outputs, Result, UserAnswer
from octobert.tasks._metrics import probabilities, unit
from octobert.tasks._rows import check_texts
from octobert_compare.models import FLOAT, INT8, Event, Models, Pair, Work

# Tokens of a text that the page lists.
_LISTED = 512
# Parts of answers that are decisions; scores and vectors always differ a little.
_DECIDED = ("label", "labels", "answer", "tags", "text")
# Rounds of each length.
_ROUNDS = 7
_SHORTEST, _LONGEST = 16, 512
# Lists whose vectors are kept, and texts that are embedded in one step.
_KEPT, _STEP = 4, 32
_NEAREST = 10
_SEARCH_ROUNDS = 5
# Numbers of each token state that the page shows; the states of one text are megabytes.
_NUMBERS = 6


class Open(FrozenModel):
    """A package to open, so that the first question need not wait for it.

    Args:
        model: name of the package.
    """

    model: str


class Ask(FrozenModel):
    """A question.

    Args:
        model: name of the package.
        input: as `octobert predict` takes it: a text, a pair, {"question", "context"}, {"text", "prompt"} or {"text", "top"}.
        rounds: how often each model is timed.
    """

    model: str
    input: str | tuple[str, ...] | dict[str, Any]
    rounds: int = Field(default=5, ge=1, le=100)


class Lengths(FrozenModel):
    """The same text at several lengths. Args as in `Ask`."""

    model: str
    input: str | tuple[str, ...] | dict[str, Any]


class Lookup(FrozenModel):
    """A search.

    Args:
        model: name of the package.
        texts: the list.
        query: what is looked for in it.
        prompts: names of the prompts of query and texts; empty for the model's default.
    """

    model: str
    texts: tuple[str, ...] = Field(min_length=1, max_length=20_000)
    query: str
    prompts: tuple[str, str] = ("", "")


def open_pair(models: Models, asked: Open) -> Work:
    """Open both models of a package.

    Yields:
        {"sides", "opened"}: what is open.

    Raises:
        OctobertError: a model cannot be opened.
    """
    yield models.pair(asked.model).summary()


def ask(models: Models, asked: Ask) -> Work:
    """Ask both models.

    Yields:
        {"sides", "opened", "tokens", …}: what answers and what is read; {"answers", "ms", "warm": true}: the answers, with
        times that are not counted; {"ms"} for each round, in milliseconds by the name of the side; {"sentence",
        "same"} for people.

    Raises:
        OctobertError: the model cannot be opened, or the input is not one of its task.
    """
    pair = models.pair(asked.model)
    raw = asked.input
    text = pair.task.parse(raw, where="the input")
    check_texts(text, where="the input")
    encoded = pair.task.encode(pair.tokenizer, [text])
    yield {**pair.summary(), **_tokens(pair, encoded)}
    results = pair.timed(0, lambda predictor: predictor([raw])[0])
    outputs = {side.name: side.predictor.outputs(encoded.flat) for side in pair.sides}
    yield {
        "answers": {name: _short(answer) for name, (answer, _) in results.items()},
        "scores": {name: scores_of(pair, output) for name, output in outputs.items()},
        "likeness": likeness(pair, outputs, encoded),
        "ms": {name: ms for name, (_, ms) in results.items()},
        "warm": True,
    }
    rounds: list[dict[str, float]] = []
    for number in range(asked.rounds):
        rounds.append(
            {
                name: ms
                for name, (_, ms) in pair.timed(number, lambda predictor: predictor([raw])).items()
            }
        )
        yield {"ms": rounds[-1]}
    answers = {name: answer for name, (answer, _) in results.items()}
    yield {"sentence": sentence(answers, rounds), "same": same(answers)}


def lengths(models: Models, asked: Lengths) -> Work:
    """Time a text, repeated or cut to several lengths.

    Yields:
        {"lengths"}: all of them; then for each {"length", "ms": side → the time of each round}.

    Raises:
        OctobertError: the model cannot be opened, or the input is not one of its task.
    """
    pair = models.pair(asked.model)
    text = pair.task.parse(asked.input, where="the input")
    check_texts(text, where="the input")
    content = np.concatenate([tokens.ids for tokens in pair.tokenizer.offsets(list(text))])
    if not len(content):
        raise DataError(
            "the text has no tokens", where="the input", got=preview(text, 60), fix="write words"
        )
    frame, most = pair.tokenizer.frame(1), min(pair.tokenizer.max_length, _LONGEST)
    token_counts = [n for n in (2**k for k in range(4, 10)) if frame.size < n <= most] or [most]
    token_counts += [most] if token_counts[-1] < most else []
    yield {**pair.summary(), "lengths": token_counts}
    for length in token_counts:
        ids = np.resize(content, length - frame.size)
        row = _row(frame, ids)
        _, times = pair.rounds(_ROUNDS, lambda predictor: predictor.outputs([row]))  # noqa: B023  # called at once
        yield {"length": length, "ms": times}


def search(models: Models, asked: Lookup) -> Work:
    """Embed a list and a query with both models.

    Yields:
        what answers; {"done", "of"} while the list is embedded, which happens once; then {"nearest", "shared", "ms"}: by the
        name of the side the nearest texts, with the place that the other model gives them, and the times of the query.

    Raises:
        OctobertError: the model makes no embeddings.
    """
    pair = models.pair(asked.model)
    if pair.facts.head != "embedding":
        raise DataError(
            "the model makes no embeddings of one vector",
            got=f"a model for {pair.facts.name}",
            fix="search with a model for embeddings",
        )
    yield pair.summary()
    key = hashlib.sha256(repr((asked.texts, asked.prompts[1])).encode(errors="replace")).hexdigest()
    if key not in pair.lists:
        vectors: dict[str, list[np.ndarray]] = {side.name: [] for side in pair.sides}
        for start in range(0, len(asked.texts), _STEP):
            texts = [
                _prompted(text, asked.prompts[1]) for text in asked.texts[start : start + _STEP]
            ]
            results = pair.timed(0, lambda predictor: predictor(texts))  # noqa: B023  # called at once
            for name, (answers, _) in results.items():
                vectors[name].append(_vectors(answers))
            yield {"done": min(start + _STEP, len(asked.texts)), "of": len(asked.texts)}
        pair.lists[key] = {name: np.concatenate(parts) for name, parts in vectors.items()}
        while len(pair.lists) > _KEPT:
            pair.lists.popitem(last=False)
    yield _nearest(pair, pair.lists[key], asked)


def same(answers: Mapping[str, UserAnswer]) -> bool | None:
    """True where both models decide the same; None where one answers alone, or where answers are numbers only."""
    keys = [key for key in _DECIDED if key in answers[INT8]]
    if FLOAT not in answers or not keys:
        return None
    return all(answers[FLOAT].get(key) == answers[INT8][key] for key in keys)


def sentence(answers: Mapping[str, UserAnswer], rounds: Sequence[Mapping[str, float]]) -> str:
    """A sentence on the answers and the times.

    Args:
        answers: of both models, or of the quantized one alone.
        rounds: their times in milliseconds.

    Example:
        >>> sentence({"float": {"label": "a"}, "int8": {"label": "a"}}, [{"float": 9.0, "int8": 3.0}])
        'Both answer the same. Median of 1 round: 3.00 ms in 8 bits, 9.00 ms in float: 3 × as fast.'
    """
    ours = statistics.median(times[INT8] for times in rounds)
    counted = f"Median of {len(rounds)} {'round' if len(rounds) == 1 else 'rounds'}: {wording.ms(ours)} ms"
    if FLOAT not in answers:
        return (
            f"The package has no float model to compare with (--no-float left it out). {counted}."
        )
    agreement = {True: "Both answer the same. ", False: "The answers differ. ", None: ""}[
        same(answers)
    ]
    theirs = statistics.median(times[FLOAT] for times in rounds)
    speed = theirs / ours
    how = f"{speed:.2g} × as fast" if speed >= 1 else f"{1 / speed:.2g} × slower"
    return f"{agreement}{counted} in 8 bits, {wording.ms(theirs)} ms in float: {how}."


def _row(frame: Frame, content: np.ndarray) -> Encoded:
    """Tokens between the special ones."""
    ids = (frame.special[0], content, frame.special[-1])
    types = (frame.special_types[0], np.full(len(content), frame.types[0]), frame.special_types[-1])
    return Encoded(
        np.concatenate(ids).astype(np.int64), np.concatenate(types).astype(np.int64), False
    )


def scores_of(pair: Pair, outputs: Outputs) -> dict[str, float]:
    """Class → probability of the one text of outputs; empty for tasks whose answers are no classes."""
    if head_of(pair.facts.head).shape != "classes" or outputs["logits"].shape[-1] == 1:
        return {}
    answered = pair.task.answer(Result(outputs, EncodedTexts([("",)], [[]])), 0, "")
    if "scores" in answered:
        return dict(answered["scores"])
    likely = probabilities(outputs["logits"][0])
    names = (
        pair.task.labels
        if len(pair.task.labels) == len(likely)
        else [str(i) for i in range(len(likely))]
    )
    return {name: float(probability) for name, probability in zip(names, likely, strict=True)}


def likeness(pair: Pair, outputs: Mapping[str, Outputs], encoded: EncodedTexts) -> Event | None:
    """The likeness of the two outputs; None where one model answers alone."""
    if len(outputs) < 2:
        return None
    fidelity = fidelity_of(pair, outputs, encoded)
    same = fidelity.agreement if math.isfinite(fidelity.agreement) else None
    return {"name": fidelity.name, "agreement": same, "error": fidelity.error}


def fidelity_of(pair: Pair, outputs: Mapping[str, Outputs], encoded: EncodedTexts) -> Fidelity:
    """The fidelity of the quantized model to the float one on some texts; embeddings of each text alone."""
    ours, theirs = outputs[INT8], outputs[FLOAT]
    if not isinstance(pair.task, Embedding):
        return pair.task.fidelity(Result(ours, encoded), Result(theirs, encoded))
    form = pair.task.form
    after, before = (form.read(outputs, encoded) for outputs in (ours, theirs))
    name, agreement, _ = form.agreement(after, before)
    return Fidelity(name, float(agreement.mean()), form.error(after, before), ())


def _tokens(pair: Pair, encoded: EncodedTexts) -> Event:
    """The tokens of the first row, how many rows there are, and how much was cut; without a row those of the text."""
    rows = encoded.rows[0]
    ids = rows[0].ids if rows else pair.tokenizer.offsets(encoded.texts[0][:1])[0].ids
    listed = ids[:_LISTED].tolist()
    truncated = any(row.truncated for row in rows)
    total = (
        sum(len(tokens.ids) for tokens in pair.tokenizer.offsets(list(encoded.texts[0])))
        if truncated
        else None
    )
    return {
        "tokens": [
            {"id": i, "piece": piece}
            for i, piece in zip(listed, pair.tokenizer.words(listed), strict=True)
        ],
        "read": sum(len(row) for row in rows),
        "rows": len(rows),
        "truncated": truncated,
        "whole": total,
        "limit": pair.tokenizer.max_length,
    }


def _short(answer: UserAnswer) -> UserAnswer:
    """An answer without most numbers of token states."""
    if "states" not in answer:
        return answer
    return {
        **answer,
        "states": [state[:_NUMBERS] for state in answer["states"]],
        "size": len(answer["states"][0]),
    }


def _nearest(pair: Pair, lists: dict[str, np.ndarray], asked: Lookup) -> Event:
    query = _prompted(asked.query, asked.prompts[0])
    results, times = pair.rounds(_SEARCH_ROUNDS, lambda predictor: predictor([query]))
    scores = {name: lists[name] @ _vectors(answers)[0] for name, answers in results.items()}
    order = {name: np.argsort(-values, kind="stable") for name, values in scores.items()}
    places = {name: np.argsort(ranking, kind="stable") + 1 for name, ranking in order.items()}
    nearest = {
        name: [
            {
                "text": asked.texts[i],
                "score": float(scores[name][i]),
                "other": next(
                    (int(ranks[i]) for other, ranks in places.items() if other != name), None
                ),
            }
            for i in ranking[:_NEAREST].tolist()
        ]
        for name, ranking in order.items()
    }
    shared = len(
        set.intersection(*(set(ranking[:_NEAREST].tolist()) for ranking in order.values()))
    )
    return {
        "nearest": nearest,
        "shared": shared,
        "of": min(_NEAREST, len(asked.texts)),
        "ms": times,
    }


def _prompted(text: str, prompt: str) -> Any:
    return {"text": text, "prompt": prompt} if prompt else text


def _vectors(answers: Sequence[UserAnswer]) -> np.ndarray:
    """[texts, size] of length 1."""
    return unit(np.array([answer["embedding"] for answer in answers]))
