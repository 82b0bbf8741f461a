"""Masked rows, and what is kept of logits over a vocabulary: a few numbers for each masked token, never all logits.

Kept for each masked token, as named in `KEPT`: the `TOP` most likely tokens and their log-probabilities, the log-probability of
the masked token itself, and how many tokens are more likely or as likely. They are computed batch by batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octobert.data.tokenization import Encoded, EncodedTexts
from octobert.tasks._task import Metric, Outputs

TOP = 100
IDS, LOGS, RIGHT, RANK = KEPT = ("top_ids", "top_log_probabilities", "log_probability", "rank")
# Instead of a token's id, where it is not known what was masked.
UNKNOWN = -1
# Of the choice of masked tokens: a text is always masked at the same places.
_SEED = 15


@dataclass(frozen=True)
class MaskedRow(Encoded):
    """A row with masked tokens.

    Args:
        places: [masked] their positions.
        wanted: [masked] ids of the tokens that were masked; `UNKNOWN` where the text itself has the mask.
        vocabulary: number of tokens.
        stated: whether the text itself has the masks.
    """

    places: np.ndarray
    wanted: np.ndarray
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
        """See the module; from logits [tokens, vocabulary]."""
        logits = outputs["logits"][self.places].astype(np.float64)
        logs = logits - _log_sum(logits)
        top = min(TOP, logs.shape[-1])
        ids = np.sort(np.argpartition(-logits, top - 1, axis=-1)[:, :top], axis=-1)
        # By falling logit, equal ones by id.
        order = np.argsort(-np.take_along_axis(logits, ids, axis=-1), axis=-1, kind="stable")
        ids = np.take_along_axis(ids, order, axis=-1)
        known = np.maximum(self.wanted, 0)[:, None]
        right = np.take_along_axis(logs, known, axis=-1)
        # Undefined logits are no first guesses.
        rank = np.sum(~(logs < right), axis=-1)
        return {
            IDS: ids.astype(np.int32),
            LOGS: np.take_along_axis(logs, ids, axis=-1).astype(np.float32),
            RIGHT: right[:, 0].astype(np.float32),
            RANK: rank.astype(np.int32),
        }


def _log_sum(logits: np.ndarray) -> np.ndarray:
    highest = logits.max(axis=-1, keepdims=True)
    total: np.ndarray = highest + np.log(np.sum(np.exp(logits - highest), axis=-1, keepdims=True))
    return total


def masked(row: Encoded, mask: int, vocabulary: int, inside: tuple[int, int], share: float | None) -> list[MaskedRow]:
    """The rows in which tokens of a text are masked.

    Args:
        row: of the text.
        mask: id of the mask token. Where the row has it already, it stays as it is.
        vocabulary: number of tokens.
        inside: position of the first token of the text, and number of special tokens after the last.
        share: of the tokens that are masked together, chosen by the text; None masks each token in a row of its own.
    """
    own = np.flatnonzero(row.ids == mask)
    if len(own):
        return [MaskedRow(row.ids, row.types, row.truncated, own, np.full(len(own), UNKNOWN), vocabulary, stated=True)]
    tokens = np.arange(inside[0], len(row) - inside[1])
    if share is None:
        groups = [tokens[i : i + 1] for i in range(len(tokens))] or [tokens]
    else:
        count = min(len(tokens), max(1, round(share * len(tokens))))
        generator = np.random.default_rng([_SEED, *row.ids.tolist()])
        groups = [np.sort(generator.choice(tokens, count, replace=False))]
    rows = []
    for places in groups:
        ids = row.ids.copy()
        ids[places] = mask
        rows.append(MaskedRow(ids, row.types, row.truncated, places, row.ids[places], vocabulary, stated=False))
    return rows


def items(outputs: Outputs, encoded: EncodedTexts) -> np.ndarray:
    """[texts, 6]: of the masked tokens whose id is known: their number, the sum of their log-probabilities, how many were the
    first guess, how many were among the first five, and how many are the token, and one of the five tokens, that were masked
    most often in all texts."""
    every = Counter(token for row in encoded.flat for token in row.wanted.tolist() if token != UNKNOWN)  # type: ignore[attr-defined]
    frequent = [token for token, _ in sorted(every.items(), key=lambda item: (-item[1], item[0]))[:5]]
    numbers, at = [], 0
    for rows in encoded.rows:
        count = sum(row.entries for row in rows)
        part, at = slice(at, at + count), at + count
        wanted = np.concatenate([row.wanted for row in rows])  # type: ignore[attr-defined]
        known = wanted != UNKNOWN
        rank, logs, wanted = outputs[RANK][part][known], outputs[RIGHT][part][known], wanted[known]
        hits = [np.sum(rank <= 1), np.sum(rank <= 5), np.sum(np.isin(wanted, frequent[:1])), np.sum(np.isin(wanted, frequent))]
        numbers.append([len(rank), logs.sum(dtype=np.float64), *hits])
    return np.array(numbers, dtype=np.float64)


def _per_token(items: np.ndarray, column: int) -> float:
    tokens = items[:, 0].sum()
    return float(items[:, column].sum() / tokens) if tokens else float("nan")


def accuracy(items: np.ndarray) -> float:
    """Share of the masked tokens that are the most likely one."""
    return _per_token(items, 2)


def top5_accuracy(items: np.ndarray) -> float:
    """Share of the masked tokens that are among the five most likely ones."""
    return _per_token(items, 3)


def log_likelihood(items: np.ndarray) -> float:
    """Mean log-probability of the masked tokens in nats."""
    return _per_token(items, 1)


def pseudo_perplexity(items: np.ndarray) -> float:
    """Exponential of the negative mean log-probability; lower is better (Salazar et al. 2020, with `mask: each`)."""
    return float(np.exp(-_per_token(items, 1)))


METRICS: Mapping[str, Metric] = {
    "accuracy": accuracy,
    "top5_accuracy": top5_accuracy,
    "log_likelihood": log_likelihood,
    "pseudo_perplexity": pseudo_perplexity,
}


def chance(items: np.ndarray) -> Mapping[str, float]:
    """Accuracies of a model that always gives the tokens that were masked most often."""
    if not items[:, 0].sum():
        return {}
    return {"accuracy": _per_token(items, 4), "top5_accuracy": _per_token(items, 5)}


def divergence(ours: Outputs, reference: Outputs) -> np.ndarray:
    """[masked] Kullback-Leibler divergence of the reference's distribution from ours, in nats.

    Taken over the tokens that both keep, with all others as one event. Merging events never raises a divergence, so this is a
    lower bound; the 100 most likely tokens of both hold nearly all of the probability of a trained model.
    """
    found = np.zeros(len(reference[IDS]))
    for i in range(len(found)):
        _, first, second = np.intersect1d(reference[IDS][i], ours[IDS][i], assume_unique=True, return_indices=True)
        p, q = reference[LOGS][i][first].astype(np.float64), ours[LOGS][i][second].astype(np.float64)
        rest = [max(1 - float(np.exp(each).sum()), 1e-12) for each in (p, q)]
        found[i] = np.sum(np.exp(p) * (p - q)) + rest[0] * np.log(rest[0] / rest[1])
    return np.maximum(found, 0.0)


def log_error(ours: Outputs, reference: Outputs) -> float:
    """Root mean square difference of the log-probabilities of the tokens that both keep."""
    squares, count = 0.0, 0
    for i in range(len(reference[IDS])):
        _, first, second = np.intersect1d(reference[IDS][i], ours[IDS][i], assume_unique=True, return_indices=True)
        squares += float(np.sum(np.square(reference[LOGS][i][first].astype(np.float64) - ours[LOGS][i][second])))
        count += len(first)
    return float(np.sqrt(squares / max(count, 1)))


def firsts(outputs: Outputs, rows: Sequence[Sequence[Encoded]]) -> list[list[int]]:
    """Of each text, the most likely token of each mask."""
    ids = iter(outputs[IDS][:, 0].tolist())
    return [[next(ids) for row in own for _ in range(row.entries)] for own in rows]
