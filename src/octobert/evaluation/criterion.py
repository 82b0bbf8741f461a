"""The accuracy criteria of a search: models are judged on growing parts of the tuning rows, against the float model.

Texts are tokenized once, the float model runs once, and no text runs twice for one model.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from octobert.config.recipe import Accuracy
from octobert.core.errors import DataError, RecipeError, did_you_mean
from octobert.core.files import read_sealed, write_sealed
from octobert.core.frozen import FrozenModel
from octobert.core.session import Session
from octobert.data.tokenization import Encoded, EncodedTexts, Text, Tokenizer
from octobert.evaluation.statistics import paired
from octobert.inference.batching import run_rows
from octobert.tasks import Task

Outputs = dict[Text, dict[str, np.ndarray]]


@dataclass(frozen=True)
class TuningPart:
    """A part of the tuning rows.

    Args:
        texts: of the rows.
        gold: what is expected of each judged item.
    """

    texts: list[Text]
    gold: list[Any]


class Criterion(FrozenModel):
    """What a model must reach in one metric.

    Args:
        metric: its name.
        max_drop: largest accepted drop, compared with the float model; negative where the model has to be better.
        relative: `max_drop` is a fraction of the float model's metric.
        at_least: smallest accepted value.
    """

    metric: str
    max_drop: float | None = None
    relative: bool = False
    at_least: float | None = None

    @staticmethod
    def of(accuracy: Accuracy, task: Task) -> Criterion:
        """The criterion of a recipe."""
        given = accuracy.model_dump(include={"max_drop", "relative", "at_least"})
        return Criterion(metric=accuracy.metric or str(task.primary), **given)

    def allowed(self, float_value: float) -> float:
        """The largest accepted drop.

        Args:
            float_value: metric of the float model.
        """
        return (self.max_drop or 0.0) * (abs(float_value) if self.relative else 1.0)

    def meets(self, value: float, float_value: float) -> bool:
        """Whether a value on all rows meets the criterion."""
        within = self.max_drop is None or float_value - value <= self.allowed(float_value) + 1e-12
        return within and (self.at_least is None or value >= self.at_least)

    def in_words(self) -> str:
        """The criterion as a sentence."""
        parts = []
        if self.max_drop is not None:
            share = " of the float figure" if self.relative else ""
            parts.append(f"{self.metric} drops by at most {self.max_drop:g}{share}")
        if self.at_least is not None:
            parts.append(f"{self.metric} is at least {self.at_least:g}")
        return " and ".join(parts)


class Difference(NamedTuple):
    """A metric of a model on tuning rows.

    Args:
        value: of the model.
        drop: value of the float model on the same rows minus `value`.
        low, high: 95 % confidence interval of `drop`.
    """

    value: float
    drop: float
    low: float
    high: float


class Judged(NamedTuple):
    """What was found out of a model.

    Args:
        rows: tuning rows that were judged; fewer than all where it was clear by then that the model fails.
        metrics: metric of a criterion → its figures on these rows.
        met: whether all criteria are met on all rows.
    """

    rows: int
    metrics: dict[str, Difference]
    met: bool


class AccuracyJudge:
    """Compares models with criteria.

    Args:
        criteria: what a model must reach. The first one is of the main metric.
        task: with its metrics.
        parts: growing parts of the tuning rows; the last has all of them.
        tokenizer: of the model.
        open_float: opens the float model.
        cache: file for the float model's outputs, so that it does not run again; None to run it.
        seed: of the resamples.

    Raises:
        DataError: the tuning rows have no gold.
        RecipeError: there is no such metric.
    """

    def __init__(
        self,
        criteria: Sequence[Criterion],
        task: Task,
        parts: Sequence[TuningPart],
        tokenizer: Tokenizer,
        *,
        open_float: Callable[[], Session],
        cache: Path,
        seed: int,
    ) -> None:
        if not len(parts[-1].gold):
            fix = "give labelled rows: models are judged on them"
            raise DataError("the rows to search on have no gold", where="data.tune", fix=fix)
        self.criteria, self._task, self._parts, self._seed = tuple(criteria), task, parts, seed
        for criterion in criteria:
            if criterion.metric not in task.metrics:
                fix = did_you_mean(criterion.metric, tuple(task.metrics))
                raise RecipeError(f'the task has no metric "{criterion.metric}"', fix=fix)
        self._pad_id = tokenizer.pad_id
        distinct = list(dict.fromkeys(text for part in parts for text in part.texts))
        encoded = task.encode(tokenizer, distinct)
        self._rows: dict[Text, Sequence[Encoded]] = dict(zip(distinct, encoded.rows, strict=True))
        self.rows = len(parts[-1].gold)
        self.median_tokens = int(np.median([len(row) for row in encoded.flat]))
        self._float = self._float_outputs(distinct, open_float, cache)
        self.float_values = self._values(parts[-1], self._float)

    def check_float(self, where: str) -> None:
        """Check that the float model itself has the values that are asked for.

        Args:
            where: recipe key of the criteria, for the error.

        Raises:
            RecipeError: it has not.
        """
        for criterion in self.criteria:
            floor, value = criterion.at_least, self.float_values[criterion.metric]
            if floor is not None and value < floor:
                raise RecipeError(
                    "the float model itself misses the criterion",
                    where=where,
                    got=f"{criterion.metric} {value:.4f} on {self.rows} tuning rows",
                    expected=f"at least {floor:g}",
                    fix="lower it, or fine-tune the model first",
                )

    def judge(self, session: Session) -> Judged:
        """Judge a model, on fewer than all rows when it is clear that it fails."""
        outputs: Outputs = {}
        for part in self._parts:
            self._run(session, [text for text in dict.fromkeys(part.texts) if text not in outputs], outputs)
            metrics, float_values = self._differences(part, outputs), self._values(part, self._float)
            if any(self._hopeless(each, metrics[each.metric], float_values[each.metric]) for each in self.criteria):
                break
        rows = len(part.gold)
        all_met = all(each.meets(metrics[each.metric].value, self.float_values[each.metric]) for each in self.criteria)
        return Judged(rows, metrics, rows == self.rows and all_met)

    @staticmethod
    def _hopeless(criterion: Criterion, found: Difference, float_value: float) -> bool:
        """Whether even the lower end of the interval of the drop is above what is allowed."""
        return criterion.max_drop is not None and found.low > criterion.allowed(float_value)

    def _differences(self, part: TuningPart, outputs: Outputs) -> dict[str, Difference]:
        ours, theirs = (self._items(part, each) for each in (outputs, self._float))
        found = {}
        for name in dict.fromkeys(criterion.metric for criterion in self.criteria):
            metric = self._task.metrics[name]
            difference, low, high, _ = paired(metric, ours, theirs, self._task.extremes(theirs), seed=self._seed)
            # Without an interval the value decides.
            low, high = (difference, difference) if low is None or high is None else (low, high)
            found[name] = Difference(float(metric(ours)), -difference, -high, -low)
        return found

    def _values(self, part: TuningPart, outputs: Outputs) -> dict[str, float]:
        items = self._items(part, outputs)
        return {each.metric: float(self._task.metrics[each.metric](items)) for each in self.criteria}

    def _items(self, part: TuningPart, outputs: Outputs) -> np.ndarray:
        encoded = EncodedTexts(part.texts, [self._rows[text] for text in part.texts])
        joined = {name: np.concatenate([outputs[text][name] for text in part.texts]) for name in outputs[part.texts[0]]}
        return self._task.items(joined, encoded, part.gold)

    def _run(self, session: Session, texts: Sequence[Text], outputs: Outputs) -> None:
        rows = [row for text in texts for row in self._rows[text]]
        joined = run_rows(session, rows, self._pad_id, per_token=self._task.per_token)
        outputs.update(self._by_text(joined, texts))

    def _by_text(self, joined: Mapping[str, np.ndarray], texts: Sequence[Text]) -> Outputs:
        per_token = self._task.per_token
        sizes = [sum(row.entries for row in self._rows[t]) if per_token else len(self._rows[t]) for t in texts]
        parts = {name: np.split(array, np.cumsum(sizes)[:-1]) for name, array in joined.items()}
        return {text: {name: parts[name][i] for name in parts} for i, text in enumerate(texts)}

    def _float_outputs(self, texts: list[Text], open_float: Callable[[], Session], cache: Path) -> Outputs:
        if (stored := read_sealed(cache)) is not None:
            with np.load(io.BytesIO(stored)) as arrays:
                return self._by_text({name: arrays[name] for name in arrays.files}, texts)
        outputs: Outputs = {}
        self._run(open_float(), texts, outputs)
        joined = {name: np.concatenate([outputs[text][name] for text in texts]) for name in outputs[texts[0]]}
        buffer = io.BytesIO()
        np.savez(buffer, **joined)  # type: ignore[arg-type]
        write_sealed(cache, buffer.getvalue())
        return outputs
