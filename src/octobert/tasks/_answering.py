"""Extractive question answering: the answer is a span of the context, read in overlapping windows."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from octobert.core.errors import DataError, each
from octobert.core.evidence import Answer, ChangedRow, Mark
from octobert.core.plain import preview
from octobert.data.encoded import Frame, split
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.data.windows import NOWHERE, StepOptions, step_within, stepped, windows
from octobert.tasks import _squad
from octobert.tasks._metrics import agreement, output_error, probabilities
from octobert.tasks._rows import Table, check_texts
from octobert.tasks._squad import Gold, Prediction
from octobert.tasks._task import (
    Extremes,
    Fidelity,
    Pair,
    Predictions,
    Result,
    RowTargets,
    Task,
    TaskOptions,
    UserAnswer,
    objects,
)

# Defaults of the reference implementations; each is smaller where the model's own length is.
MAX_LENGTH, STEP, MAX_QUERY_LENGTH = 384, 128, 64
_OTHERS = 4
# Answers of one question in a file of n-best answers, as the official scripts have them.
_OFFICIAL = 20
_NO_ANSWER = "(no answer)"
# Short texts that make a context.
_TOGETHER = 6


class WindowOptions(TaskOptions, StepOptions):
    """Args:
    max_length: tokens of a window, with the question and the special tokens; by default 384, or the model's limit.
    step: tokens from the start of one window to the start of the next; by default 128, or half a window.
    max_query_length: tokens of the question, which is cut after them; by default 64, or a quarter of a window.
    n_best: number of answers that are considered in each window, and returned for each question.
    max_answer_length: the largest number of tokens of an answer.
    """

    max_length: int | None = Field(default=None, ge=8)
    max_query_length: int | None = Field(default=None, ge=1)
    n_best: int = Field(default=20, ge=1, le=1024)
    max_answer_length: int = Field(default=30, ge=1)

    @model_validator(mode="after")
    def _fitting(self) -> WindowOptions:
        # There are at least three special tokens. A tokenizer with more is noticed when texts are encoded.
        if self.max_length is not None and self.max_query_length is not None:
            room = self.max_length - self.max_query_length - 3
            if room < 1:
                raise ValueError(
                    f"a window of max_length {self.max_length} has no room for a context beside a question of "
                    f"max_query_length {self.max_query_length}"
                )
            for name, stated, end in (
                ("step", self.step, "overlap"),
                ("overlap", self.overlap, "advance"),
            ):
                if stated is not None and stated >= room:
                    raise ValueError(
                        f"{name} must be less than the {room} tokens of context in a window, or windows do not {end}"
                    )
        return self

    def answering(
        self,
        columns: tuple[str, str, str] = ("question", "context", "answers"),
        threshold: float | None = None,
    ) -> Answering:
        """The task with these windows.

        Args:
            columns, threshold: see `Answering`.
        """
        return Answering(
            columns=columns,
            options=self,
            max_length=self.max_length,
            threshold=threshold,
            metrics=_squad.METRICS if threshold is None else _squad.METRICS_2_0,
        )


@dataclass(frozen=True, kw_only=True)
class Answering(Task):
    """Questions that are answered by a span of their context.

    Args:
        columns: names of the question, context and answers columns.
        options: of the windows.
        threshold: the answer is "no answer" where its score exceeds that of the best answer by more than this; None where
            every question has an answer, otherwise a question may have none (SQuAD 2.0).
    """

    shown_whole = (0,)
    per_token: bool = True
    columns: tuple[str, str, str]
    options: WindowOptions
    threshold: float | None
    head: str = "question-answering"
    primary: str | None = "f1"

    @property
    def unanswerable(self) -> bool:
        """True if a question may have no answer."""
        return self.threshold is not None

    def read_inputs(self, table: Table) -> list[Text]:
        question, context, _ = self.columns
        table.need(question, context)
        _refuse_duplicates(table)
        return list(zip(table.texts(question), table.texts(context), strict=True))

    def parse(self, user_input: Any, *, where: str) -> Text:
        """(question, context), or {"question": …, "context": …}.

        Raises:
            DataError: it is neither, or one of them is empty.
        """
        texts: tuple[Any, ...] = tuple(user_input) if isinstance(user_input, (tuple, list)) else ()
        if isinstance(user_input, Mapping):
            texts = tuple(user_input.get(key) for key in ("question", "context"))
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise DataError(
                "the input is not a question with its context",
                where=where,
                got=preview(user_input),
                expected="(question, context)",
            )
        check_texts(texts, where=where)
        return texts

    def row_texts(self, table: Table) -> list[Text]:
        """The context: one question about a passage helps to answer the others."""
        return [(context,) for _, context in self.read_inputs(table)]

    def inputs_like(self, text: Text, texts: Sequence[str]) -> list[Text]:
        """Contexts of several texts."""
        inputs = super().inputs_like(("",) * (1 + _TOGETHER), texts)
        return [(question, " ".join(context)) for question, *context in inputs]

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        frame = tokenizer.frame(2)
        length, most = self._window(tokenizer, frame)
        least = length - frame.size - most
        distinct = list(dict.fromkeys(context for _, context in texts))
        contexts = {
            c: _squad.visible(c, tokens)
            for c, tokens in zip(distinct, tokenizer.offsets(distinct), strict=True)
        }
        rows = []
        for (_, context), question in zip(
            texts, tokenizer.offsets([q.strip() for q, _ in texts]), strict=True
        ):
            ids, cut = question.ids[:most], len(question.ids) > most
            room = length - frame.size - len(ids)
            step = step_within(self.options, room, least=least, usual=STEP, of="context")
            tokens = contexts[context]
            parts = stepped(len(tokens.ids), room, step)
            rows.append(windows(frame.behind(ids), tokens, parts, truncated=cut))
        return EncodedTexts(texts, rows)

    def _window(self, tokenizer: Tokenizer, frame: Frame) -> tuple[int, int]:
        """(tokens of a window, largest number of tokens of a question) for a model.

        Raises:
            DataError: a window has no room for the context.
        """
        length = self.options.max_length or min(MAX_LENGTH, tokenizer.max_length)
        most = self.options.max_query_length or min(MAX_QUERY_LENGTH, length // 4)
        room = length - frame.size - most
        if room < 1:
            raise DataError(
                "a window has no room for a context",
                where="max_length",
                got=f"a window of {length} tokens, {frame.size} of them special, for questions of up to {most}",
                fix="raise it, or lower max_query_length",
            )
        return length, most

    def read_gold(self, table: Table) -> list[Gold]:
        """The acceptable answers to each question."""
        _, context, answers = self.columns
        table.need(answers)
        table.need(context)
        rows = zip(table.rows, table.cells(answers), strict=True)
        return each(
            self._answers_of,
            ((str(row[context]), bool(row.get("is_impossible")), *cell) for row, cell in rows),
        )

    def _answers_of(self, context: str, impossible: bool, cell: Any, place: str) -> Gold:
        texts, starts = _squad.answers_of(cell, place)
        for text, start in zip(texts, starts, strict=False):
            _squad.check_place(context, text, start, place)
        if (not texts or impossible) and not self.unanswerable:
            raise DataError(
                "the question has no answer, and in this task every question has an answer",
                where=place,
                got="is_impossible: true" if impossible else "no answers",
                expected="at least one answer, as in SQuAD 1.1",
                fix="use the task squad-v2 (or question-answering with unanswerable: true), or leave the row out",
            )
        return {"texts": [] if impossible else texts, "starts": starts}

    def targets(self, encoded: EncodedTexts, gold: Sequence[Gold]) -> list[RowTargets]:
        """First and last token of the answer; the first token of the row if the window does not hold the whole answer."""
        targets = []
        for (_, context), rows, answer in zip(encoded.texts, encoded.rows, gold, strict=True):
            tokens = [_squad.tokens_in(row, *_squad.characters_of(context, answer)) for row in rows]
            # A window holds the answer if it holds all of the answer's tokens that any window holds.
            spans = [
                row.spans[places]  # type: ignore[attr-defined]
                for row, places in zip(rows, tokens, strict=True)
                if len(places)
            ]
            whole = (min(s[0, 0] for s in spans), max(s[-1, 1] for s in spans)) if spans else None
            for row, places in zip(rows, tokens, strict=True):
                holds = len(places) and (row.spans[places[0], 0], row.spans[places[-1], 1]) == whole  # type: ignore[attr-defined]
                first, last = (int(places[0]), int(places[-1])) if holds else (0, 0)
                targets.append({"start_positions": first, "end_positions": last})
        return targets

    def predictions(self, result: Result, count: int) -> list[Prediction]:
        """The best answers to every question, at most `count` for each."""
        starts, ends = (
            split(result.outputs[name], result.encoded.flat)
            for name in ("start_logits", "end_logits")
        )
        predictions, at = [], 0
        for (_, context), rows in zip(result.texts, result.encoded.rows, strict=True):
            scored: list[tuple[float, int, int]] = []
            for index, row in enumerate(rows):
                scored += self._scored(row, starts[at + index], ends[at + index], count)
            null = min(float(starts[at + i][0] + ends[at + i][0]) for i in range(len(rows)))
            predictions.append(Prediction(_squad.best_spans(context, scored, count), null))
            at += len(rows)
        return predictions

    def _scored(
        self, row: Any, starts: np.ndarray, ends: np.ndarray, count: int
    ) -> list[tuple[float, int, int]]:
        """(score, first character, end) of the best spans in a window."""
        held = row.spans[:, 0] != NOWHERE
        first = _squad.highest(starts, held & row.best, self.options.n_best)
        last = _squad.highest(ends, held, self.options.n_best)
        lengths = last[None, :] - first[:, None] + 1
        # Sums in float64, so that the order of answers does not depend on the last bit of a float32 sum.
        scores = starts[first].astype(np.float64)[:, None] + ends[last].astype(np.float64)[None, :]
        scores = np.where(
            (lengths >= 1) & (lengths <= self.options.max_answer_length), scores, -np.inf
        )
        order = np.argsort(-scores, axis=None, kind="stable")[:count]
        order = order[np.isfinite(scores.reshape(-1)[order])]
        begun, ended = np.unravel_index(order, scores.shape)
        spans = row.spans[first[begun], 0], row.spans[last[ended], 1]
        return list(
            zip(
                scores.reshape(-1)[order].tolist(),
                *(places.tolist() for places in spans),
                strict=True,
            )
        )

    def final_answer(self, prediction: Prediction) -> str:
        """The text of the best answer; empty for "no answer"."""
        if self.threshold is not None and prediction.null_minus_best > self.threshold:
            return ""
        return prediction.best_text

    def items(self, result: Result) -> np.ndarray:
        """[questions, 10]: the columns of `_squad`."""
        items = []
        judge = functools.partial(_squad.judge, unanswerable=self.unanswerable)
        for index, (prediction, right) in enumerate(
            zip(self.predictions(result, 1), result.gold, strict=True)
        ):
            golds, best = right["texts"], prediction.best_text
            chance = _squad.by_chance(
                result.texts[index][1], tuple(golds), unanswerable=self.unanswerable, seed=index
            )
            difference = min(prediction.null_minus_best, np.finfo(np.float32).max)
            items.append(
                (
                    *judge(self.final_answer(prediction), golds),
                    float(bool(golds)),
                    difference,
                    *judge(best, golds),
                    float(bool(best)),
                    *chance,
                )
            )
        return np.array(items, dtype=np.float64)

    def judged(self, result: Result) -> Predictions:
        """The answer to each question, and the list of acceptable answers; empty ones for "no answer"."""
        return Predictions(
            objects(self._finals(result)), objects([right["texts"] for right in result.gold])
        )

    def _finals(self, result: Result) -> list[str]:
        return [self.final_answer(prediction) for prediction in self.predictions(result, 1)]

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """The best of a span anywhere in the context, the whole context, and, where a question may have no answer, none."""
        if not len(items):
            return {}
        without = float(np.mean(items[:, _squad.ANSWERABLE] == 0)) if self.unanswerable else 0.0
        exact, f1, whole = (
            items[:, [_squad.CHANCE_EXACT, _squad.CHANCE_F1, _squad.ALL_F1]].mean(axis=0).tolist()
        )
        return {"exact": max(exact, without), "f1": max(f1, whole, without)}

    def extremes(self, items: np.ndarray) -> Extremes:
        return _squad.extremes(items)

    def expected(self, gold: Gold) -> str:
        return " | ".join(dict.fromkeys(gold["texts"])) or _NO_ANSWER

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        error = output_error(ours.outputs, reference.outputs)
        fidelity = agreement(self._finals(reference), self._finals(ours), error)
        changed = [(i, b or _NO_ANSWER, a or _NO_ANSWER) for i, b, a in fidelity.changed]
        return replace(fidelity, changed=tuple(changed))

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        """The best answer and others; scores are probabilities among the best answers, with "no answer" if it is allowed."""
        (prediction,) = self.predictions(result.single(index), self.options.n_best)
        spans = prediction.spans
        logits = [span.score for span in spans] + (
            [prediction.null] if self.unanswerable or not spans else []
        )
        likely = probabilities(np.array(logits))
        answers: list[UserAnswer] = [
            {"answer": span.text, "score": float(score), "start": span.start, "end": span.end}
            for span, score in zip(spans, likely, strict=False)
        ]
        if not self.final_answer(prediction):
            answers.insert(
                0, {"answer": "", "score": float(likely[-1]), "start": None, "end": None}
            )
        return {**answers[0], "others": answers[1 : 1 + _OTHERS]}

    def line(self, answer: Mapping[str, Any]) -> str:
        place = "" if answer["start"] is None else f"{answer['start']}–{answer['end']}"
        return f"{answer['answer'] or '(no answer)'}\t{answer['score']:.4f}\t{place}"

    def official(
        self, result: Result
    ) -> tuple[list[str], list[float] | None, list[list[dict[str, Any]]]]:
        """The results that the official scripts write for each question.

        Returns:
            (final answer; score of "no answer" minus that of the best answer, None where each question has an answer; the best
            answers with probability, score and place, most likely first).
        """
        predictions = self.predictions(result, _OFFICIAL)
        most = float(np.finfo(np.float32).max)
        odds = (
            [min(prediction.null_minus_best, most) for prediction in predictions]
            if self.unanswerable
            else None
        )
        return list(map(self.final_answer, predictions)), odds, list(map(self._best, predictions))

    def _best(self, prediction: Prediction) -> list[dict[str, Any]]:
        """Answers to one question with their probabilities among each other, most likely first."""
        entries: list[dict[str, Any]] = [
            {"text": span.text, "score": span.score, "start": span.start, "end": span.end}
            for span in prediction.spans
        ]
        if self.unanswerable or not entries:
            entries.append({"text": "", "score": prediction.null, "start": None, "end": None})
        entries.sort(key=lambda entry: -entry["score"])
        likely = probabilities(np.array([entry["score"] for entry in entries]))
        return [
            {**entry, "probability": float(share)}
            for entry, share in zip(entries, likely, strict=True)
        ]

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """With the places of the answers in the context."""
        texts, sides = pair[0].texts[index], self.answers(pair, index)
        spans = [(side["start"], side["end"]) if side["answer"] else None for side in sides]
        explained = [
            Answer(
                text=text,
                score=side["score"],
                marks=() if span is None else (Mark(text=1, start=span[0], end=span[1]),),
            )
            for text, side, span in zip(answers, sides, spans, strict=True)
        ]
        marks = tuple(
            Mark(text=1, start=start, end=end)
            for start, end in _squad.right_spans(texts[1], pair[0].expected(index))
        )
        return self.row_of(
            pair,
            index,
            explained,
            marks=marks,
            transitions=[_move(*spans)],
            change=sides[0]["score"] - sides[1]["score"],
        )

    def quality(self, items: np.ndarray) -> np.ndarray:
        return np.asarray(items[:, _squad.F1])


def _move(before: tuple[int, int] | None, after: tuple[int, int] | None) -> tuple[str, str]:
    """Classify the change of an answer. An answer that holds the other is the longer of the two."""
    if before is None or after is None:
        return (_NO_ANSWER, "an answer") if before is None else ("an answer", _NO_ANSWER)
    if after[0] <= before[0] and before[1] <= after[1]:
        return "shorter", "longer"
    if before[0] <= after[0] and after[1] <= before[1]:
        return "longer", "shorter"
    return "an answer", "an answer"


def _refuse_duplicates(table: Table) -> None:
    seen: dict[Any, int] = {}
    for index, row in enumerate(table.rows):
        if row.get("id") in (None, ""):
            continue
        name = str(row["id"])
        if name in seen:
            raise DataError(
                "two questions have the same id",
                where=table.place("id", index),
                got=repr(name),
                fix=f"rename one; the other is {table.place('id', seen[name])}",
            )
        seen[name] = index
