"""Models are judged by limits on metrics, on growing parts of the tuning rows, against the float model.

Texts are tokenized once, the float model runs once, and no text runs twice for one model.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ConfigDict

from octobert.core.arrays import arrays_in
from octobert.core.errors import DataError, RecipeError, did_you_mean
from octobert.core.estimate import Estimate
from octobert.core.files import read_sealed, write_sealed
from octobert.core.frozen import FrozenModel
from octobert.core.limits import Limit, check, metric_named
from octobert.core.session import Session
from octobert.data.encoded import Encoded
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer, TuningPart
from octobert.evaluation.statistics import paired
from octobert.inference.batching import run_rows
from octobert.tasks import Result, Task

Outputs = dict[Text, dict[str, np.ndarray]]


class MetricChange(FrozenModel):
    """A metric of a model on tuning rows.

    Args:
        value: of the model.
        drop: value of the float model on the same rows minus `value`.
    """

    # Correlations of one value with others are not defined.
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float
    drop: Estimate

    @property
    def reference(self) -> float:
        """The value of the float model on the same rows."""
        return self.value + self.drop.value

    @property
    def figure(self) -> Estimate:
        """The value, with the interval that comes from comparing the same rows."""
        ends = (self.reference - self.drop.high, self.reference - self.drop.low)
        return Estimate(value=self.value, low=ends[0], high=ends[1])


class TuningJudgement(NamedTuple):
    """The judgement of a model on the tuning rows.

    Args:
        rows: tuning rows that were judged; fewer than all where it was clear by then that the model fails.
        metrics: metric → how it changed on these rows.
        met: whether all limits are kept on all rows.
    """

    rows: int
    metrics: dict[str, MetricChange]
    met: bool


class AccuracyJudge:
    """Compares models with the float model.

    Args:
        limits: on metrics, that a model must keep.
        task: with its metrics.
        parts: growing parts of the tuning rows; the last has all of them.
        tokenizer: of the model.
        open_float: opens the float model.
        cache: file for the float model's outputs, so that it does not run again; None to run it.
        seed: of the resamples.
        main: measure the main metric too, where no limit is on it.

    Raises:
        DataError: the tuning rows have no gold.
        RecipeError: there is no such metric.
    """

    def __init__(
        self,
        limits: Sequence[Limit],
        task: Task,
        parts: Sequence[TuningPart],
        tokenizer: Tokenizer,
        *,
        open_float: Callable[[], Session],
        cache: Path,
        seed: int,
        main: bool = False,
    ) -> None:
        if not len(parts[-1].gold):
            raise DataError(
                "the rows to search on have no gold",
                where="data.tune",
                fix="give labelled rows: models are judged on them",
            )
        self._task, self._parts, self._seed = task, parts, seed
        self._limits = [(metric_named(limit.of, task.primary), limit) for limit in limits]
        self.metrics = list(
            dict.fromkeys(
                [*([str(task.primary)] if main else []), *(name for name, _ in self._limits)]
            )
        )
        for name in self.metrics:
            if name not in task.metrics:
                raise RecipeError(
                    f'the task has no metric "{name}"', fix=did_you_mean(name, tuple(task.metrics))
                )
        self._tokenizer = tokenizer
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
            where: recipe key of the limits, for the error.

        Raises:
            RecipeError: it has not.
        """
        for name, limit in self._limits:
            floor, value = limit.at_least, self.float_values[name]
            if floor is not None and value < floor:
                raise RecipeError(
                    "the float model itself misses the criterion",
                    where=where,
                    got=f"{name} {value:.4f} on {self.rows} tuning rows",
                    expected=f"at least {floor:g}",
                    fix="lower it, or fine-tune the model first",
                )

    def judge(self, session: Session) -> TuningJudgement:
        """Judge a model, on fewer than all rows when it is clear that it fails."""
        outputs: Outputs = {}
        for part in self._parts:
            self._run(
                session,
                [text for text in dict.fromkeys(part.texts) if text not in outputs],
                outputs,
            )
            metrics = self._changes(part, outputs)
            if any(self._hopeless(limit, metrics[name]) for name, limit in self._limits):
                break
        rows = len(part.gold)
        return TuningJudgement(
            rows,
            metrics,
            rows == self.rows
            and self.met({name: change.value for name, change in metrics.items()}),
        )

    def met(self, values: Mapping[str, float]) -> bool:
        """Return whether values of the metrics, on all rows, keep all limits."""
        checks = (
            part
            for name, limit in self._limits
            for part in check(
                limit,
                Estimate.exactly(values[name]),
                drop=Estimate.exactly(self.float_values[name] - values[name]),
                reference=self.float_values[name],
            )
        )
        return all(part.state != "missed" for part in checks)

    @staticmethod
    def _hopeless(limit: Limit, change: MetricChange) -> bool:
        """Return whether what is accepted beside the float model is missed by the whole interval."""
        checks = check(limit, change.figure, drop=change.drop, reference=change.reference)
        # Of a few rows, a value says less of all rows than a difference.
        return any(part.is_clear for part in checks if part.limit.at_least is None)

    def _changes(self, part: TuningPart, outputs: Outputs) -> dict[str, MetricChange]:
        ours, theirs = (
            self._items(part, model_outputs) for model_outputs in (outputs, self._float)
        )
        changes = {}
        for name in self.metrics:
            metric = self._task.metrics[name]
            difference, low, high, _ = paired(
                metric, ours, theirs, self._task.extremes(theirs), seed=self._seed
            )
            # Without an interval the value decides.
            low, high = (difference, difference) if low is None or high is None else (low, high)
            drop = Estimate(value=-difference, low=-high, high=-low)
            changes[name] = MetricChange(value=float(metric(ours)), drop=drop)
        return changes

    def _values(self, part: TuningPart, outputs: Outputs) -> dict[str, float]:
        items = self._items(part, outputs)
        return {name: float(self._task.metrics[name](items)) for name in self.metrics}

    def _items(self, part: TuningPart, outputs: Outputs) -> np.ndarray:
        rows = [self._rows[text] for text in part.texts]
        encoded = EncodedTexts(part.texts, rows, self._tokenizer)
        return self._task.items(Result(_joined(outputs, part.texts), encoded, part.gold))

    def _run(self, session: Session, texts: Sequence[Text], outputs: Outputs) -> None:
        rows = [row for text in texts for row in self._rows[text]]
        pad_id, per_token = self._tokenizer.pad_id, self._task.per_token
        joined = run_rows(session, rows, pad_id, per_token=per_token) if rows else {}
        outputs.update(self._by_text(joined, texts))

    def _by_text(self, joined: Mapping[str, np.ndarray], texts: Sequence[Text]) -> Outputs:
        per_token = self._task.per_token
        sizes = [
            sum(row.entries for row in self._rows[t]) if per_token else len(self._rows[t])
            for t in texts
        ]
        parts = {name: np.split(array, np.cumsum(sizes)[:-1]) for name, array in joined.items()}
        return {text: {name: parts[name][i] for name in parts} for i, text in enumerate(texts)}

    def _float_outputs(
        self, texts: list[Text], open_float: Callable[[], Session], cache: Path
    ) -> Outputs:
        if (stored := read_sealed(cache)) is not None:
            return self._by_text(arrays_in(io.BytesIO(stored)), texts)
        outputs: Outputs = {}
        self._run(open_float(), texts, outputs)
        buffer = io.BytesIO()
        np.savez(buffer, **_joined(outputs, texts))  # type: ignore[arg-type]
        write_sealed(cache, buffer.getvalue())
        return outputs


def _joined(outputs: Outputs, texts: Sequence[Text]) -> dict[str, np.ndarray]:
    """Return the outputs of texts, one behind the other; those that no model reads have none."""
    found = [outputs[text] for text in texts if outputs[text]]
    names = found[0] if found else ()
    return {name: np.concatenate([each[name] for each in found]) for name in names}
