"""Sentence embeddings: pairs with a gold score, queries with their document, or texts alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from octobert.core.errors import DataError, did_you_mean
from octobert.core.evidence import Answer, ChangedRow
from octobert.core.plain import beginning, preview
from octobert.core.results import ModelMetadata
from octobert.data.tokenization import EncodedTexts, Text
from octobert.tasks._metrics import (
    SCORES,
    TOP,
    extreme_scores,
    moved,
    named,
    output_error,
    unit,
)
from octobert.tasks._rows import Table, number_of
from octobert.tasks._task import (
    NOTHING,
    Change,
    Extremes,
    Fidelity,
    Metric,
    Outputs,
    Pair,
    Predictions,
    Result,
)
from octobert.tasks._texts import TextOptions, WholeTexts

DESCRIPTION = "embed texts; Spearman on scored pairs, MRR@10 and recall on query→document, or fidelity to float"
FILES = ()
_DOCUMENTS = ("document", "passage", "corpus")
Form = Literal["pairs", "retrieval", "texts"]
# Index of a text, and its cosine.
Near = tuple[int, float]
MRR_DEPTH = 10
_CHUNK = 512
# Characters of a neighbour's text.
_NEIGHBOUR = 200
OUTPUT = "sentence_embedding"


def mrr(items: np.ndarray) -> float:
    """Mean reciprocal rank of the right document, 0 beyond rank 10."""
    return float(np.mean(np.where(items[:, 0] <= MRR_DEPTH, 1.0 / items[:, 0], 0.0)))


def recall_at_1(items: np.ndarray) -> float:
    """Share of queries whose document is first."""
    return float(np.mean(items[:, 0] <= 1))


def recall_at_10(items: np.ndarray) -> float:
    """Share of queries whose document is among the first ten."""
    return float(np.mean(items[:, 0] <= MRR_DEPTH))


METRICS: dict[Form, dict[str, Metric]] = {
    "pairs": named(SCORES, "spearman"),
    "retrieval": {"mrr@10": mrr, "recall@1": recall_at_1, "recall@10": recall_at_10},
    "texts": {},
}


class Options(TextOptions):
    """Give the columns of one form; by default, pairs `sentence1`, `sentence2`, `score`.

    Args:
        text: one column of texts without gold, or two columns of a pair.
        score: the gold column of a pair.
        query, document: columns of a query and the document that answers it.
        prompt: name of the model's prompt that is put before texts; by default the one that the model states; "" for none.
        query_prompt, document_prompt: names of the prompts of queries and documents; by default the model's `query`, and the
            first of its `document`, `passage` and `corpus`; "" for none.
        max_length: tokens of a text; by default the model's limit.
    """

    score: str | None = None
    query: str | None = None
    document: str | None = None
    prompt: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    max_length: int | None = Field(default=None, ge=2)

    @model_validator(mode="after")
    def _one_form(self) -> Options:
        if (self.query is None) != (self.document is None):
            raise ValueError("query and document go together")
        if self.query is not None and (self.text or self.score):
            raise ValueError("give text columns, or query and document, not both")
        if len(self.text) == 1 and self.score is not None:
            raise ValueError("a score needs two text columns")
        return self


def build(options: Options, metadata: ModelMetadata = NOTHING) -> Embedding:
    """The task for a model.

    Raises:
        DataError: the options name a prompt that the model does not have.
    """
    form: Form = "pairs"
    columns: tuple[str, ...] = options.text or ("sentence1", "sentence2")
    if options.query is not None and options.document is not None:
        form, columns = "retrieval", (options.query, options.document)
    elif len(columns) == 1:
        form = "texts"
    prompts = metadata.prompts
    prompt = (metadata.default_prompt or "") if options.prompt is None else options.prompt
    used = (prompt,) * len(columns)
    if form == "retrieval":
        used = (
            _chosen(options.query_prompt, ("query",), prompts),
            _chosen(options.document_prompt, _DOCUMENTS, prompts),
        )
    for name in (prompt, *used):
        # Before the model is read, none of its prompts is known.
        if metadata is not NOTHING:
            check_prompt(name, prompts, where="task.embedding")
    return Embedding(
        form=form,
        columns=columns,
        score=(options.score or "score") if form == "pairs" else None,
        max_length=options.max_length,
        primary=next(iter(METRICS[form]), None),
        metrics=METRICS[form],
        prompts=prompts,
        used=used,
        prompt=prompt,
    )


def _chosen(name: str | None, usual: tuple[str, ...], prompts: Mapping[str, str]) -> str:
    """The prompt that the options name, else the first of the usual names that the model has."""
    return (
        next((usual_name for usual_name in usual if usual_name in prompts), "")
        if name is None
        else name
    )


@dataclass(frozen=True, kw_only=True)
class Embedding(WholeTexts):
    """Text columns, and how their embeddings are judged, in one of three ways.

    pairs with a gold score     items: cosine of each pair               metric: Spearman correlation
    query and its document      items: rank of the right document        metrics: MRR@10, recall@1, recall@10
    texts alone                 items: nothing to judge by itself; only fidelity to the float model is measured

    Args:
        form: `pairs`, `retrieval` or `texts`.
        columns: one text column, or two: the pair, or query and document.
        score: the gold column of pairs.
        prompts: name → text that is put before a text.
        used: names of the prompts of the columns' texts, one for each; empty for none.
        prompt: name of the prompt of a text that names none; empty for none.
    """

    form: Form
    columns: tuple[str, ...]
    score: str | None
    head: str = "embedding"
    prompts: Mapping[str, str] = field(default_factory=dict)
    used: tuple[str, ...] = ()
    prompt: str = ""

    @property
    def offered(self) -> Mapping[str, Metric | None]:
        return SCORES if self.form == "pairs" else self.metrics

    def read_inputs(self, table: Table) -> list[Text]:
        """Column by column: all first texts, then all second texts."""
        table.need(*self.columns)
        prompts = [self.prompts.get(name, "") for name in self.used or ("",) * len(self.columns)]
        return [
            (prompt + text,)
            for column, prompt in zip(self.columns, prompts, strict=True)
            for text in table.texts(column)
        ]

    def parse(self, user_input: Any, *, where: str) -> Text:
        """A text or a pair of texts, or {"text": …, "prompt": …} with the name of a prompt of the model.

        Raises:
            DataError: it is neither, or the model has no such prompt.
        """
        name = self.prompt
        if isinstance(user_input, Mapping):
            if set(user_input) != {"text", "prompt"}:
                raise DataError(
                    "the input is not a text with the name of its prompt",
                    where=where,
                    got=preview(dict(user_input)),
                )
            user_input, name = user_input["text"], str(user_input["prompt"])
            check_prompt(name, self.prompts, where=where)
        first, *second = super().parse(user_input, where=where)
        return (self.prompts.get(name, "") + first, *second)

    def read_gold(self, table: Table) -> list[float]:
        if self.score is None:
            return [1.0] * len(table.rows) if self.form == "retrieval" else []
        table.need(self.score)
        return [number_of(*cell) for cell in table.cells(self.score)]

    def targets(self, encoded: EncodedTexts, gold: Sequence[float]) -> list[dict[str, Any]]:
        raise DataError(
            "embeddings are not fine-tuned here",
            where="finetune",
            fix="train them with sentence-transformers first",
        )

    def items(self, result: Result) -> np.ndarray:
        """[items, 2]: cosine and gold score of pairs; or rank of the right document and number of documents."""
        if self.form == "retrieval":
            ranks = self._ranks(result)
            documents = len({text[0] for text in result.texts[len(ranks) :]})
            return np.stack([ranks, np.full_like(ranks, documents)], axis=1)
        judged = self.judged(result)
        return np.column_stack([judged.predictions, judged.references])

    def judged(self, result: Result) -> Predictions:
        """Cosines and gold scores of pairs.

        Raises:
            DataError: the data has no pairs with a score.
        """
        if self.form != "pairs":
            raise DataError(
                "only pairs with a score have predictions for such a metric",
                where="metric",
                fix="give pairs with a score, or leave out metric",
            )
        return Predictions(self.cosines(result.outputs), np.asarray(result.gold, dtype=np.float64))

    def cosines(self, outputs: Outputs) -> np.ndarray:
        """[pairs] the cosine of the two texts of each pair, or of each query and its document."""
        first, second = np.split(unit(outputs[OUTPUT]), 2)
        return np.asarray(np.sum(first * second, axis=-1))

    def chance(self, items: np.ndarray) -> Mapping[str, float]:
        """The metrics of documents in random order, and of uninformative scores."""
        if self.form != "retrieval" or not len(items):
            return dict.fromkeys(METRICS[self.form], 0.0)
        count = int(items[0, 1])
        ranks = np.arange(1, count + 1)[:, None]
        return {name: metric(ranks) for name, metric in METRICS[self.form].items()}

    def extremes(self, items: np.ndarray) -> Extremes:
        """The right document comes last, or first; see `extreme_scores` for pairs."""
        if self.form != "retrieval":
            return extreme_scores(items)
        documents = items[:1, 1]
        return np.stack([documents, documents], axis=1), np.stack(
            [np.ones_like(documents), documents], axis=1
        )

    def expected(self, gold: float) -> str:
        return f"{gold:g}"

    def neighbours(self, result: Result, indices: Sequence[int], count: int) -> list[list[Near]]:
        """The nearest documents of some queries, or the nearest other texts of some texts, the nearest first.

        Args:
            indices: of the queries, or of the texts.
            count: the most of each.
        """
        first, distinct, firsts, document = self._searched(result)
        nearest: list[list[Near]] = []
        for start in range(0, len(indices), _CHUNK):
            part = np.asarray(indices[start : start + _CHUNK])
            block = first[part] @ distinct.T
            if self.form != "retrieval":
                block[np.arange(len(part)), document[part]] = -np.inf
            top = np.sort(
                np.argpartition(-block, min(count, block.shape[1]) - 1, axis=1)[:, :count], axis=1
            )
            for places, cosines in zip(top, block, strict=True):
                # By falling cosine, equal ones by their place.
                ordered = places[np.argsort(-cosines[places], kind="stable")]
                nearest.append(
                    [
                        (int(firsts[i]), float(cosines[i]))
                        for i in ordered
                        if np.isfinite(cosines[i])
                    ]
                )
        return nearest

    def _searched(self, result: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(vectors that ask, distinct vectors that are found, text of each of those, which of those belongs to each that asks).

        Documents that several queries share are one document.
        """
        vectors = unit(result.outputs[OUTPUT])
        start = len(vectors) // 2 if self.form == "retrieval" else 0
        texts = [text[0] for text in result.texts[start:]]
        _, firsts, document = np.unique(texts, return_index=True, return_inverse=True)
        return vectors[: start or None], vectors[start:][firsts], start + firsts, document

    def _ranks(self, result: Result) -> np.ndarray:
        first, distinct, _, document = self._searched(result)
        ranks = []
        for start in range(0, len(first), _CHUNK):
            block = first[start : start + _CHUNK] @ distinct.T
            right_cosines = np.take_along_axis(
                block, document[start : start + len(block), None], axis=1
            )
            # Ties count against the model. Otherwise a model with the same vector for every text would be perfect.
            ranks.append(np.sum(block >= right_cosines, axis=1))
        return np.concatenate(ranks)

    def fidelity(self, ours: Result, reference: Result) -> Fidelity:
        """The agreement. Changed are ranks among the first ten, before or after; clearly, cosines; nearest other texts."""
        after, before = (unit(result.outputs[OUTPUT]) for result in (ours, reference))
        chance = None
        if len(before) > 1:
            # The cosine of texts that have nothing to do with each other: where it is near 1, a cosine near 1 says nothing.
            chance = float(np.mean(np.sum(before * np.roll(before, 1, axis=0), axis=-1)))
        return Fidelity(
            "mean cosine",
            float(np.sum(after * before, axis=-1).mean()),
            output_error(ours.outputs, reference.outputs),
            tuple(self._changed(ours, reference)),
            chance,
        )

    def _changed(self, ours: Result, reference: Result) -> Iterator[Change]:
        if self.form == "retrieval":
            after, before = self._ranks(ours), self._ranks(reference)
            for i in np.flatnonzero((after != before) & (np.minimum(after, before) <= MRR_DEPTH)):
                yield int(i), f"rank {before[i]}", f"rank {after[i]}"
        elif self.form == "pairs":
            after, before = self.cosines(ours.outputs), self.cosines(reference.outputs)
            yield from ((i, f"{before[i]:.4f}", f"{after[i]:.4f}") for i in moved(after, before))
        else:
            texts = ours.texts
            every = range(len(texts))
            nearest = (self.neighbours(result, every, 1) for result in (reference, ours))
            for i, old, new in zip(every, *nearest, strict=True):
                if old and old[0][0] != new[0][0]:
                    yield i, texts[old[0][0]][0], texts[new[0][0]][0]

    def changed_rows(self, pair: Pair, changed: Sequence[Change]) -> Iterator[ChangedRow]:
        """With the nearest texts; the cosine of the right document, of the pair, or of the nearest text."""
        texts = pair[0].texts
        prompts = [self.prompts.get(name, "") for name in self.used] or [""]
        retrieval, second = self.form == "retrieval", len(texts) // 2
        shown = [(i, answers, texts[i][0].removeprefix(prompts[0])) for i, *answers in changed]
        right = [self.cosines(result.outputs) for result in pair if self.form != "texts"]
        if self.form == "pairs":
            for i, answers, text in shown:
                both = text, texts[second + i][0].removeprefix(prompts[-1])
                scores = [float(cosines[i]) for cosines in right]
                yield self.scored_row(pair, i, answers, scores, texts=both)
            return
        indices = [i for i, _, _ in changed]
        near = [self.neighbours(result, indices, TOP) for result in pair]

        def beginning_of(place: int) -> str:
            return beginning(texts[place][0].removeprefix(prompts[-1]), _NEIGHBOUR)

        for number, (i, answers, text) in enumerate(shown):
            nearest = [neighbours[number] for neighbours in near]
            scores = [float(cosines[i]) for cosines in right] or [
                neighbours[0][1] for neighbours in nearest
            ]
            explained = [
                Answer(
                    text=answer if retrieval else beginning(answer, _NEIGHBOUR),
                    score=score,
                    neighbours=tuple((beginning_of(place), cosine) for place, cosine in neighbours),
                )
                for answer, score, neighbours in zip(answers, scores, nearest, strict=True)
            ]
            others: dict[str, Any] = {"texts": (text,), "change": scores[0] - scores[1]}
            if retrieval:
                others["transitions"] = [tuple(map(_depth, answers))]
                others["expected"] = beginning_of(second + i)
            yield self.row_of(pair, i, explained, **others)

    def quality(self, items: np.ndarray) -> np.ndarray | None:
        """The reciprocal rank."""
        return (
            np.where(items[:, 0] <= MRR_DEPTH, 1 / items[:, 0], 0.0)
            if self.form == "retrieval"
            else None
        )

    def answer(self, result: Result, index: int, user_input: Any) -> dict[str, Any]:
        return {"embedding": result.outputs[OUTPUT][index].tolist()}


def check_prompt(name: str, prompts: Mapping[str, str], *, where: str) -> None:
    """Refuse the name of a prompt that the model does not have.

    Raises:
        DataError: with the names of its prompts.
    """
    if name and name not in prompts:
        raise DataError(
            f'the model has no prompt "{name}"',
            where=where,
            expected=", ".join(prompts) or "no name: the model has no prompts",
            fix=did_you_mean(name, prompts),
        )


def _depth(rank: str) -> str:
    """Where a rank lies."""
    place = int(rank.split()[-1])
    return (
        "rank 1"
        if place == 1
        else f"rank 2–{MRR_DEPTH}"
        if place <= MRR_DEPTH
        else f"beyond rank {MRR_DEPTH}"
    )
