"""How near the outputs of one model are to those of another, text by text, and to its own in other batches, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from octobert.core.frozen import FrozenModel

Measure = Literal["cosine", "1 - change of a probability", "1 - relative error"]
# The 1 % quantile below which a user should know of it: of vectors, and of other outputs.
_FAR = {"cosine": 0.98, "1 - change of a probability": 0.8, "1 - relative error": 0.7}
# Texts that are shown.
_WORST = 3


class Distant(FrozenModel):
    """A text whose outputs differ.

    Args:
        text: that the model reads, its parts joined.
        closeness: of its outputs.
    """

    text: str
    closeness: float


class Closeness(FrozenModel):
    """How near the outputs of a quantized model are to those of its float model.

    Args:
        measure: of one text; 1 where both models give the same.
        texts: how many there are.
        mean: over the texts.
        low: the 1 % quantile.
        least: of the text with the largest difference.
        worst: the three texts with the largest differences, the largest first.
    """

    measure: Measure
    texts: int
    mean: float
    low: float
    least: float
    worst: tuple[Distant, ...] = Field(min_length=1)

    @classmethod
    def of(cls, measure: Measure, values: np.ndarray, texts: Sequence[Sequence[str]]) -> Closeness:
        """From the closeness [texts] of each text."""
        order = np.argsort(values, kind="stable")[:_WORST]
        return cls(
            measure=measure,
            texts=len(values),
            mean=float(values.mean()),
            low=float(np.quantile(values, 0.01)),
            least=float(values.min()),
            worst=tuple(
                Distant(text=" ".join(texts[i]), closeness=float(values[i])) for i in order
            ),
        )

    @property
    def far(self) -> bool:
        """Whether one text in a hundred differs so much that a user should know."""
        return self.low < _FAR[self.measure]

    def __str__(self) -> str:
        worst = ", ".join(f'"{each.text[:60]}" {each.closeness:.3f}' for each in self.worst)
        found = (
            f"on {self.texts} short texts of octobert's own that nothing was fitted to (chat, code, numbers, other languages), "
            f"beside float: {self.measure} {self.mean:.4f} on average, {self.low:.3f} at 1 %, at least {self.least:.3f}; the "
            f"farthest are {worst}"
        )
        if self.far:
            found += (
                ". That is far: if users type such texts, calibrate on rows like them, or quantize with dynamic for "
                "openvino-cpu, which has a range for each token"
            )
        return found


class BatchEffect(FrozenModel):
    """What other rows and padding do to the outputs of a row.

    Args:
        state: `exact`: nothing, to the last bit. `bounded`: they change its rounding. `depends`: ranges are computed from all
            rows of a batch.
        difference: the largest that was measured, relative to the largest output.
    """

    state: Literal["exact", "bounded", "depends"]
    difference: float

    def __str__(self) -> str:
        if self.state == "exact":
            return "answers are the same to the last bit alone, padded and in any batch"
        how = "depend on the batch" if self.state == "depends" else "change by rounding in batches"
        return f"answers {how}: by up to {self.difference:.1g} of the largest output; octobert.load(…, alone=True) is exact"


class OutputCloseness(FrozenModel):
    """How near an output of a graph is to float, over all rows.

    Args:
        output: its name.
        relative_error: root mean square difference, divided by the root mean square of float.
        cosine: the mean over the rows; None for whole numbers, and for outputs of one number.
        same_largest: share of the largest numbers of the last axis that are the same ones, for outputs that are scores.
    """

    output: str
    relative_error: float
    cosine: float | None = None
    same_largest: float | None = None


class ClassChange(FrozenModel):
    """One class of a quantized model and of its float model.

    Args:
        label: its name.
        rows: that have it.
        precision, recall: of the quantized model; 0 where nothing counts.
        reference_precision, reference_recall: of the float model.
        lost, gained: rows that the float model alone gives the class, and the quantized model alone.
    """

    label: str
    rows: int
    precision: float
    recall: float
    reference_precision: float
    reference_recall: float
    lost: int
    gained: int


class Crossed(FrozenModel):
    """Rows that cross the user's threshold by quantization.

    Args:
        threshold: of a probability or of a score.
        rows: that cross it.
        fell, rose: rows that are below it now, and those that reach it now; a row may do both with several classes.
    """

    threshold: float
    rows: int
    fell: int
    rose: int
