"""The accuracy criterion of a search: models are judged on growing parts of the tuning rows, against the float model.

Texts are tokenized once, the float model runs once, and no text runs twice for one model.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octobert.config.recipe import Accuracy
from octobert.core.errors import DataError, RecipeError
from octobert.core.files import read_sealed, write_sealed
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


class AccuracyJudge:
    """Compares models with the criterion.

    Args:
        criterion: what a model must reach.
        task: with its metrics.
        parts: growing parts of the tuning rows; the last has all of them.
        tokenizer: of the model.
        open_float: opens the float model on the target's runtime.
        cache: file for the float model's outputs, so that an interrupted search does not run it again.
        seed: of the resamples.

    Raises:
        DataError: the tuning rows have no gold.
        RecipeError: the float model itself misses `at_least`.
    """

    def __init__(
        self,
        criterion: Accuracy,
        task: Task,
        parts: Sequence[TuningPart],
        tokenizer: Tokenizer,
        *,
        open_float: Callable[[], Session],
        cache: Path,
        seed: int,
    ) -> None:
        if not len(parts[-1].gold):
            fix = "give labelled rows, or leave out accuracy"
            raise DataError("the rows to search on have no gold", where="data.tune", fix=fix)
        self._criterion, self._task, self._parts, self._seed = criterion, task, parts, seed
        self._pad_id = tokenizer.pad_id
        self.metric = criterion.metric or str(task.primary)
        distinct = list(dict.fromkeys(text for part in parts for text in part.texts))
        encoded = task.encode(tokenizer, distinct)
        self._rows: dict[Text, Sequence[Encoded]] = dict(zip(distinct, encoded.rows, strict=True))
        self.rows = len(parts[-1].gold)
        self.median_tokens = int(np.median([len(row) for row in encoded.flat]))
        self._float = self._float_outputs(distinct, open_float, cache)
        self.float_value = self._value(parts[-1], self._float)
        floor = criterion.at_least
        if floor is not None and self.float_value < floor:
            raise RecipeError(
                "the float model itself misses the criterion",
                where="accuracy.at_least",
                got=f"{self.metric} {self.float_value:.4f} on {self.rows} tuning rows",
                expected=f"at least {floor:g}",
                fix="lower it, or fine-tune the model first",
            )

    def judge(self, session: Session) -> tuple[int, float, float]:
        """(Rows judged, value, drop) of a model; fewer than all rows when it is clear that it fails."""
        outputs: Outputs = {}
        value = drop = 0.0
        rows = 0
        for number, part in enumerate(self._parts):
            self._run(session, [text for text in dict.fromkeys(part.texts) if text not in outputs], outputs)
            value, rows = self._value(part, outputs), len(part.gold)
            drop = self._value(part, self._float) - value
            if number < len(self._parts) - 1 and self._hopeless(part, outputs):
                break
        return rows, value, drop

    def meets(self, value: float, drop: float) -> bool:
        """Whether figures on all rows meet the criterion."""
        within = self._criterion.max_drop is None or drop <= self._allowed(self.float_value) + 1e-12
        return within and (self._criterion.at_least is None or value >= self._criterion.at_least)

    def in_words(self) -> str:
        """The criterion as a sentence."""
        parts = []
        if self._criterion.max_drop is not None:
            share = " of the float figure" if self._criterion.relative else ""
            parts.append(f"{self.metric} drops by at most {self._criterion.max_drop:g}{share}")
        if self._criterion.at_least is not None:
            parts.append(f"{self.metric} is at least {self._criterion.at_least:g}")
        return " and ".join(parts)

    def _allowed(self, float_value: float) -> float:
        return (self._criterion.max_drop or 0.0) * (abs(float_value) if self._criterion.relative else 1.0)

    def _hopeless(self, part: TuningPart, outputs: Outputs) -> bool:
        """Whether even the upper end of the interval of the difference is below what is allowed."""
        metric = self._task.metrics[self.metric]
        ours, theirs = (self._items(part, each) for each in (outputs, self._float))
        _, _, high, _ = paired(metric, ours, theirs, seed=self._seed)
        return self._criterion.max_drop is not None and high < -self._allowed(metric(theirs))

    def _value(self, part: TuningPart, outputs: Outputs) -> float:
        return float(self._task.metrics[self.metric](self._items(part, outputs)))

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
