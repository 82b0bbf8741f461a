"""Masked language models: which tokens may stand where the mask is.

A text is evaluated by masking 15 % of its tokens at once, as in BERT's pre-training, always the same ones, and asking for them.
That takes one row for each text. `mask: each` masks every token in a row of its own, which gives the pseudo-perplexity of
Salazar et al. (2020) and takes as many rows as there are tokens. Masked tokens are replaced by the mask, never by others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from octobert.core.errors import DataError
from octobert.core.evidence import Answer, ChangedRow, Mark
from octobert.core.plain import preview
from octobert.core.results import ModelMetadata
from octobert.data.encoded import Encoded
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.tasks._metrics import changed_answers, log_probabilities, share_of_most_frequent
from octobert.tasks._rows import Table, check_texts
from octobert.tasks._task import (
    NOTHING,
    Extremes,
    Fidelity,
    Metric,
    Outputs,
    Pair,
    Result,
    RowTargets,
    Task,
    TaskOptions,
    UserAnswer,
)

_TEXTS = ("text", "sentence", "sentence1", "premise")
# Fillers that are given where the input does not say how many.
FILLERS = 5
_IGNORED = -100
# Of the logits over a vocabulary a few numbers are kept for each masked token, never all, computed batch by batch: the `TOP`
# most likely tokens and their log-probabilities, the log-probability of the masked token itself, and how many tokens are more
# likely or as likely.
TOP = 100
IDS, LOGS, RIGHT, RANK = KEPT = ("top_ids", "top_log_probabilities", "log_probability", "rank")
# Instead of a token's id, where it is not known what was masked.
UNKNOWN = -1
# Of the choice of masked tokens: a text is always masked at the same places.
_SEED = 15


class FillMaskOptions(TaskOptions):
    """Args:
    text: the text column; by default, the first of the usual names that the data has.
    mask: share of the tokens of a text that are masked together, or `each` for every token in a row of its own, which takes as
        many times longer as a text has tokens.
    max_length: tokens of a text; by default the model's limit.
    """

    description: ClassVar[str] = (
        "fill masks of a text; accuracy and top-5 accuracy of masked tokens, their log-likelihood, pseudo-perplexity"
    )

    text: str | None = None
    mask: float | Literal["each"] = 0.15
    max_length: int | None = Field(default=None, ge=3)

    @field_validator("mask", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value != "each" and not (number and 0 < value <= 1):  # type: ignore[operator]
            raise ValueError("give a share of the tokens, above 0 and at most 1, or each")
        return value

    def build(self, metadata: ModelMetadata = NOTHING) -> FillMask:
        """Return the task for any masked language model."""
        return FillMask(
            text=(self.text,) if self.text else _TEXTS,
            share=None if self.mask == "each" else self.mask,
            max_length=self.max_length,
            metrics=METRICS,
            costs=("pseudo_perplexity",),
        )


@dataclass(frozen=True, kw_only=True)
class FillMask(Task):
    """One text column.

    Args:
        text: candidate columns; the first that the data has is used.
        share: of the tokens that are masked together; None for each by itself.
    """

    judges = False
    per_token: bool = True
    text: tuple[str, ...]
    share: float | None
    head: str = "masked-lm"
    primary: str | None = "accuracy"

    def read_inputs(self, table: Table) -> list[Text]:
        return [(text,) for text in table.texts(table.first_column(self.text))]

    def parse(self, user_input: Any, *, where: str) -> Text:
        """A text with masks, or {"text": …, "top": number of fillers}.

        Raises:
            DataError: it is neither, or is empty.
        """
        text = user_input
        if isinstance(user_input, Mapping) and set(user_input) == {"text", "top"}:
            text, top = user_input["text"], user_input["top"]
            if not isinstance(top, int) or not 1 <= top <= TOP:
                raise DataError(
                    "not a number of fillers",
                    where=where,
                    got=preview(top, 60),
                    expected=f"1 to {TOP}",
                )
        if not isinstance(text, str):
            raise DataError(
                "the input is not a text",
                where=where,
                got=preview(user_input),
                expected="one text with masks",
            )
        check_texts([text], where=where)
        return (text,)

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """Rows with masks: those of the text, else by the option `mask`. Texts are cut to the largest number of tokens."""
        _, mask = tokenizer.mask
        special = tokenizer.frame(1).special
        inside = (len(special[0]), len(special[-1]))
        rows = [
            masked(row, mask, tokenizer.vocabulary, inside, self.share)
            for row in tokenizer.encode(texts)
        ]
        return EncodedTexts(texts, rows, tokenizer)

    def read_gold(self, table: Table) -> list[str]:
        """The texts themselves: what was masked is right."""
        return [text for (text,) in self.read_inputs(table)]

    def targets(self, encoded: EncodedTexts, gold: Sequence[str]) -> list[RowTargets]:
        """The masked tokens, `_IGNORED` elsewhere."""
        targets = []
        for row in encoded.flat:
            assert isinstance(row, MaskedRow)
            labels = np.full(len(row), _IGNORED)
            labels[row.places] = np.where(row.masked_ids == UNKNOWN, _IGNORED, row.masked_ids)
            targets.append({"labels": labels})
        return targets

    def items(self, result: Result) -> np.ndarray:
        """[texts, 6]: of the masked tokens whose id is known: their number, the sum of their log-probabilities, how many were
        the first guess, how many were among the first five, and how many are the token, and one of the five tokens, that were
        masked most often in all texts. Texts with masks of their own count nothing.
        """
        every = Counter(
            token
            for row in result.encoded.flat
            for token in row.masked_ids.tolist()  # type: ignore[attr-defined]
            if token != UNKNOWN
        )
        frequent = [
            token for token, _ in sorted(every.items(), key=lambda item: (-item[1], item[0]))[:5]
        ]
        numbers, at, outputs = [], 0, result.outputs
        for rows in result.encoded.rows:
            count = sum(row.entries for row in rows)
            part, at = slice(at, at + count), at + count
            masked_ids = np.concatenate([row.masked_ids for row in rows])  # type: ignore[attr-defined]
            is_known = masked_ids != UNKNOWN
            rank = outputs[RANK][part][is_known]
            logs = outputs[RIGHT][part][is_known]
            masked_ids = masked_ids[is_known]
            hits = [
                np.sum(rank <= 1),
                np.sum(rank <= 5),
                np.sum(np.isin(masked_ids, frequent[:1])),
                np.sum(np.isin(masked_ids, frequent)),
            ]
            numbers.append([len(rank), logs.sum(dtype=np.float64), *hits])
        return np.array(numbers, dtype=np.float64)

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """Accuracies of a model that always gives the tokens that were masked most often."""
        if not items[:, 0].sum():
            return {}
        return {"accuracy": _per_token(4)(items), "top5_accuracy": _per_token(5)(items)}

    def extremes(self, items: np.ndarray) -> Extremes:
        """No masked token of a text is among the first guesses, or all are the first guess."""
        tokens = items[:, :1]
        worst, best = (
            end(items[:, 1:2] / np.maximum(tokens, 1)) * tokens for end in (np.min, np.max)
        )
        wrong = np.concatenate([tokens, worst, 0 * tokens, 0 * tokens, items[:, 4:]], axis=1)
        return wrong, np.concatenate([tokens, best, tokens, tokens, items[:, 4:]], axis=1)

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """Agreement is the share of masks with the same most likely token."""
        assert ours.encoded.tokenizer is not None
        after, before = map(firsts, (ours, reference))
        words = ours.encoded.tokenizer.words
        changed = tuple(
            (i, " ".join(words(b)), " ".join(words(a)))
            for i, b, a in changed_answers(before, after)
        )
        pairs = [
            pair for both in zip(after, before, strict=True) for pair in zip(*both, strict=True)
        ]
        return Fidelity(
            "agreement",
            sum(a == b for a, b in pairs) / max(len(pairs), 1),
            log_error(ours.outputs, reference.outputs),
            changed,
            share_of_most_frequent([b for _, b in pairs]),
            float(divergence(ours.outputs, reference.outputs).mean()) if pairs else None,
        )

    def changed_row(self, pair: Pair, index: int, answers: Sequence[str]) -> ChangedRow:
        """With the masks that are filled otherwise."""
        tokenizer = pair[0].encoded.tokenizer
        assert tokenizer is not None
        offset = len(tokenizer.frame(1).special[0])
        rows, (text,) = pair[0].encoded.rows[index], pair[0].texts[index]
        places = [int(place) - offset for row in rows for place in row.places]  # type: ignore[attr-defined]
        sides = [result.single(index).outputs for result in pair]
        ids = [side[IDS][:, 0] for side in sides]
        differ = np.flatnonzero(ids[0] != ids[1]).tolist()
        spans = tokenizer.offsets([text])[0].spans[[places[k] for k in differ]].tolist()
        explained = []
        for side, filled in zip(sides, ids, strict=True):
            fillers = [tokenizer.decoded([int(filled[k])]) for k in differ]
            marks = [
                Mark(text=0, start=s, end=e, label=name)
                for (s, e), name in zip(spans, fillers, strict=True)
            ]
            score = float(np.exp(side[LOGS][differ[0], 0])) if len(differ) == 1 else None
            explained.append(Answer(text=", ".join(fillers), score=score, marks=tuple(marks)))
        return self.row_of(
            pair,
            index,
            explained,
            marks=[Mark(text=0, start=start, end=end) for start, end in spans],
            expected=", ".join(text[start:end] for start, end in spans),
            change=len(differ),
        )

    def quality(self, items: np.ndarray) -> np.ndarray:
        # Texts with masks of their own have nothing to judge.
        return np.asarray(items[:, 2] / np.maximum(items[:, 0], 1))

    def answer(self, result: Result, index: int, user_input: Any) -> UserAnswer:
        """For each mask of a text the most likely tokens with their probabilities, and the text with the first of each.

        Raises:
            DataError: the text has no mask, or not within the tokens that the model reads.
        """
        single, tokenizer = result.single(index), result.encoded.tokenizer
        row, outputs = single.encoded.flat[0], single.outputs
        assert isinstance(row, MaskedRow)
        assert tokenizer is not None
        (text,), (mask, _) = single.texts[0], tokenizer.mask
        if not row.stated:
            late = mask in text
            raise DataError(
                f"the mask stands after the {len(row)} tokens that the model reads"
                if late
                else "the text has no mask",
                got=preview(text),
                fix="shorten the text before it"
                if late
                else f"write {mask} in place of the word that is to be filled in",
            )
        count = user_input["top"] if isinstance(user_input, Mapping) else FILLERS
        masks = []
        for ids, logs in zip(
            outputs[IDS][:, :count].tolist(), outputs[LOGS][:, :count].tolist(), strict=True
        ):
            fillers = zip(ids, tokenizer.words(ids), logs, strict=True)
            masks.append(
                [
                    {"token": word, "text": tokenizer.decoded([i]), "score": float(np.exp(log))}
                    for i, word, log in fillers
                ]
            )
        filled, special = row.ids.copy(), tokenizer.frame(1).special
        filled[row.places] = outputs[IDS][:, 0]
        return {
            "masks": masks,
            "text": tokenizer.decoded(
                filled[len(special[0]) : len(filled) - len(special[-1])].tolist()
            ),
        }

    def line(self, answer: Mapping[str, Any]) -> str:
        masks = (
            ", ".join(f"{f['text']} ({f['score']:.4f})" for f in mask) for mask in answer["masks"]
        )
        return " | ".join(masks)

    def compared(self, encoded: EncodedTexts) -> int:
        """Masks."""
        return sum(row.entries for row in encoded.flat)


@dataclass(frozen=True)
class MaskedRow(Encoded):
    """A row with masked tokens.

    Args:
        places: [masked] their positions.
        masked_ids: [masked] ids of the tokens that were masked; `UNKNOWN` where the text itself has the mask.
        vocabulary: number of tokens.
        stated: whether the text itself has the masks.
    """

    places: np.ndarray
    masked_ids: np.ndarray
    vocabulary: int
    stated: bool

    @property
    def entries(self) -> int:
        """One for each masked token."""
        return len(self.places)

    @property
    def numbers(self) -> int:
        """A logit for each token of the vocabulary."""
        return self.vocabulary

    def kept(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The numbers of `KEPT`; from logits [tokens, vocabulary]."""
        logits = outputs["logits"][self.places].astype(np.float64)
        logs = log_probabilities(logits)
        top = min(TOP, logs.shape[-1])
        ids = np.sort(np.argpartition(-logits, top - 1, axis=-1)[:, :top], axis=-1)
        # By falling logit, equal ones by id.
        order = np.argsort(-np.take_along_axis(logits, ids, axis=-1), axis=-1, kind="stable")
        ids = np.take_along_axis(ids, order, axis=-1)
        masked_ids = np.maximum(self.masked_ids, 0)[:, None]
        right = np.take_along_axis(logs, masked_ids, axis=-1)
        # Undefined logits are no first guesses.
        rank = np.sum(~(logs < right), axis=-1)
        return {
            IDS: ids.astype(np.int32),
            LOGS: np.take_along_axis(logs, ids, axis=-1).astype(np.float32),
            RIGHT: right[:, 0].astype(np.float32),
            RANK: rank.astype(np.int32),
        }


def masked(
    row: Encoded, mask: int, vocabulary: int, inside: tuple[int, int], share: float | None
) -> list[MaskedRow]:
    """The rows in which tokens of a text are masked.

    Args:
        row: of the text.
        mask: id of the mask token. Where the row has it already, it stays as it is.
        vocabulary: number of tokens.
        inside: position of the first token of the text, and number of special tokens after the last.
        share: of the tokens that are masked together, chosen by the text; None masks each token in a separate row.
    """
    stated = np.flatnonzero(row.ids == mask)
    tokens = np.arange(inside[0], len(row) - inside[1])
    if len(stated):
        groups = [stated]
    elif share is None:
        groups = [tokens[i : i + 1] for i in range(len(tokens))] or [tokens]
    else:
        count = min(len(tokens), max(1, round(share * len(tokens))))
        generator = np.random.default_rng([_SEED, *row.ids.tolist()])
        groups = [np.sort(generator.choice(tokens, count, replace=False))]
    rows = []
    for places in groups:
        ids = row.ids.copy()
        ids[places] = mask
        masked_ids = np.full(len(places), UNKNOWN) if len(stated) else row.ids[places]
        rows.append(
            MaskedRow(
                ids,
                row.types,
                row.truncated,
                places,
                masked_ids,
                vocabulary,
                stated=bool(len(stated)),
            )
        )
    return rows


def _per_token(column: int) -> Metric:
    """The mean of a column of items over all masked tokens."""

    def metric(items: np.ndarray) -> float:
        tokens = items[:, 0].sum()
        return float(items[:, column].sum() / tokens) if tokens else float("nan")

    return metric


_LOG_LIKELIHOOD = _per_token(1)
METRICS: Mapping[str, Metric] = {
    # Share of the masked tokens that are the most likely one, and among the five most likely ones.
    "accuracy": _per_token(2),
    "top5_accuracy": _per_token(3),
    # Mean log-probability of the masked tokens in nats.
    "log_likelihood": _LOG_LIKELIHOOD,
    # Exponential of the negative mean log-probability; lower is better (Salazar et al. 2020, with `mask: each`).
    "pseudo_perplexity": lambda items: float(np.exp(-_LOG_LIKELIHOOD(items))),
}


def divergence(ours: Outputs, reference: Outputs) -> np.ndarray:
    """[masked] Kullback-Leibler divergence of the reference's distribution from ours, in nats.

    Taken over the tokens that both keep, with all others as one event. Merging events never raises a divergence, so this is a
    lower bound; the 100 most likely tokens of both hold nearly all of the probability of a trained model.
    """
    divergences = []
    for q, p in _kept_by_both(ours, reference):
        rest = [max(1 - float(np.exp(logs).sum()), 1e-12) for logs in (p, q)]
        divergences.append(np.sum(np.exp(p) * (p - q)) + rest[0] * np.log(rest[0] / rest[1]))
    return np.maximum(np.array(divergences, dtype=np.float64), 0.0)


def log_error(ours: Outputs, reference: Outputs) -> float:
    """Root mean square difference of the log-probabilities of the tokens that both keep."""
    squares, count = 0.0, 0
    for after, before in _kept_by_both(ours, reference):
        squares += float(np.sum(np.square(before - after)))
        count += len(before)
    return float(np.sqrt(squares / max(count, 1)))


def _kept_by_both(ours: Outputs, reference: Outputs) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each masked token, the log-probabilities of the tokens that both keep: (ours, those of the reference)."""
    for i in range(len(reference[IDS])):
        _, before, after = np.intersect1d(
            reference[IDS][i], ours[IDS][i], assume_unique=True, return_indices=True
        )
        yield ours[LOGS][i][after].astype(np.float64), reference[LOGS][i][before].astype(np.float64)


def firsts(result: Result) -> list[list[int]]:
    """The most likely token of each mask of each text."""
    ids = iter(result.outputs[IDS][:, 0].tolist())
    return [[next(ids) for row in rows for _ in range(row.entries)] for rows in result.encoded.rows]
