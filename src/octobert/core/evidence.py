"""`evidence.json`: what the page of a report shows beyond the figures of `report.json`: rows, activations, operators, training.

Rows have the texts of the user's data. The file lies beside `report.json`, and `octobert report` makes the page from both.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from octobert.core.frozen import FrozenModel
from octobert.core.measurements import OfCandidate

EVIDENCE = "evidence.json"


class Mark(FrozenModel):
    """A marked part of a text of a row, such as the span of an answer or an entity.

    Args:
        text: index of the text in the row.
        start, end: of the part, in characters of the text as it is stored here.
        label: such as `PER`; empty for answers.
    """

    text: int
    start: int
    end: int
    label: str = ""


class Answer(FrozenModel):
    """The answer of one model to a row.

    Args:
        text: the answer: a class, a span, entities, a rank; as `Comparison.changed` has it.
        score: probability of the answer, or the score that ranks it; None where the task has none.
        scores: class → probability, the highest first, at most five; empty where there are no classes.
        marks: where the answer is in the texts.
        neighbours: of embeddings: (beginning of the text, cosine similarity), the nearest first, at most five.
    """

    text: str
    score: float | None = None
    scores: dict[str, float] = Field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    neighbours: tuple[tuple[str, float], ...] = ()


class ChangedRow(FrozenModel):
    """A row with another answer than the float model's.

    Args:
        row: index of the evaluation row, from 0.
        texts: of the row, as they were written, without prompts. Long ones are cut around the marks, with an ellipsis.
        whole: no text was cut.
        expected: the expected answer; empty without labels.
        before: answer of the float model.
        after: answer of the quantized model.
        outcome: `lost`: the quantized model's answer is worse than the float model's, by the task's own measure on this row;
            `gained`: it is better; `other`: as good, or there are no labels.
        marks: where the expected answer is in the texts.
        change: how much worse the answer is, to sort by: the loss of the row's measure, then of a probability or a score.
        transitions: (from, to) in words that many rows share, such as two classes; several for tags, none for filled masks.
    """

    row: int
    texts: tuple[str, ...]
    whole: bool = True
    expected: str
    before: Answer
    after: Answer
    outcome: Literal["lost", "gained", "other"]
    marks: tuple[Mark, ...] = ()
    change: float = 0.0
    transitions: tuple[tuple[str, str], ...] = ()


class Transition(FrozenModel):
    """How often an answer became another one.

    Args:
        before, after: the two, as in `ChangedRow.transitions`; equal where, for example, an entity has other words.
        count: how often.
        lost, gained: in how many rows with that outcome.
    """

    before: str
    after: str
    count: int
    lost: int
    gained: int


class ChangedRows(OfCandidate):
    """The rows that a quantized model answers otherwise than its float baseline.

    Args:
        candidate: name of the quantized model.
        reference: name of the float baseline.
        total: how many rows changed; `rows` has at most 5,000 of them, those that changed most.
        rows: the rows, those that lost most first.
        lost, gained: how many of all that changed have this outcome.
        transitions: of all rows that changed, the most frequent first, at most fifty.
        sentence: what they have in common, where something stands out, such as "All 8 changes went from equivalent to not
            equivalent"; empty where nothing does.
    """

    reference: str
    total: int
    rows: tuple[ChangedRow, ...]
    lost: int = 0
    gained: int = 0
    transitions: tuple[Transition, ...] = ()
    sentence: str = ""

    @model_validator(mode="after")
    def _rows_of_the_total(self) -> ChangedRows:
        if len(self.rows) > self.total or bool(self.rows) != bool(self.total):
            raise ValueError(f"{self.total} rows changed, and {len(self.rows)} are listed")
        return self


class Histogram(FrozenModel):
    """A histogram with equal bins.

    Args:
        low: where the first bin begins.
        high: where the last bin ends.
        counts: of the bins.
    """

    low: float
    high: float
    counts: tuple[int, ...]


class Activation(FrozenModel):
    """The calibrated values of one activation.

    Args:
        value: name in the graph.
        module, role, part, layer: of the first site that reads it, as in plans.
        minimum, maximum: of all observed values.
        histogram: of the observed values.
        intervals: target → ends of the interval that the quantizer of its plan covers, 0 included; float and dynamic
            activations have none.
        clipped: target → share of the observed values outside of the interval.
    """

    value: str
    module: str
    role: str
    part: str
    layer: int | None
    minimum: float
    maximum: float
    histogram: Histogram
    intervals: dict[str, tuple[float, float]] = Field(default_factory=dict)
    clipped: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _of_the_same_targets(self) -> Activation:
        if self.intervals.keys() != self.clipped.keys():
            raise ValueError("intervals and clipped are of other targets")
        return self


class Smoothed(FrozenModel):
    """The effect of a graph transform on the channels of one activation.

    Args:
        transform: its name, such as `smoothquant`.
        module: of the group of layers.
        kind: of the group.
        before: largest magnitude of each channel before, the largest first, at most 128 of equal distance in rank.
        after: of the same channels after.
    """

    transform: str
    module: str
    kind: str
    before: tuple[float, ...] = Field(min_length=1)
    after: tuple[float, ...] = Field(min_length=1)


class Curve(FrozenModel):
    """How a training went.

    Args:
        name: recipe key of the training: `finetune` or `qat`.
        steps: numbers of the steps.
        values: name, such as `loss` or `learning rate` → value at each step.
    """

    name: str
    steps: tuple[int, ...]
    values: dict[str, tuple[float, ...]]


class Executed(FrozenModel):
    """One part of a model as the runtime executed it.

    Args:
        layer: index of the encoder layer; None outside the layers.
        part: of the layer, as in plans; outside the layers, the module.
        ms: smallest time over the profiled runs.
        integer: share of this time in operators that compute in integers.
        types: the runtime's types of operators, such as `FullyConnected int8`, with their numbers: `2 × …`.
        why: why a product that is 8-bit in the file was computed in float; empty where none was.
    """

    layer: int | None
    part: str
    ms: float
    integer: float
    types: tuple[str, ...]
    why: str = ""


class OperatorType(FrozenModel):
    """The operators of one type and precision that a runtime executed.

    Args:
        type: the runtime's, such as `FullyConnected`.
        precision: `int8`, `f32`, `mixed`, or the runtime's name.
        count: of the operators.
        ms: of all of them.
        integer: they compute in integers.
    """

    type: str
    precision: str
    count: int
    ms: float
    integer: bool


class Execution(OfCandidate):
    """The operators of one model that a runtime executed, by its profiler.

    Args:
        candidate: name of the model.
        runtime: name and version.
        batch, sequence: of the profiled inputs.
        total_ms: of all operators.
        products: matrix products of the file that are 8-bit there.
        integer_products: of these, how many were computed in integers.
        sentences: what stands out, as `octobert inspect --runtime` says it.
        parts: by layer and part. Empty where the profiler failed; a sentence says how.
        types: by type of operator, the slowest first.
    """

    runtime: str
    batch: int
    sequence: int
    total_ms: float
    products: int
    integer_products: int
    sentences: tuple[str, ...]
    parts: tuple[Executed, ...]
    types: tuple[OperatorType, ...] = ()


class Evidence(FrozenModel):
    """`evidence.json`.

    Args:
        changed: of each quantized model, the rows with another answer.
        lengths: tokens of each evaluation row.
        activations: the calibrated activations, in the order of the graph; at most 200 of them.
        observed: how many activations were calibrated.
        smoothed: what graph transforms did.
        curves: of trainings.
        executions: of models that ran under a profiler.
    """

    changed: tuple[ChangedRows, ...] = ()
    lengths: tuple[int, ...] = ()
    activations: tuple[Activation, ...] = ()
    observed: int = 0
    smoothed: tuple[Smoothed, ...] = ()
    curves: tuple[Curve, ...] = ()
    executions: tuple[Execution, ...] = ()

    def without_texts(self) -> Evidence:
        """The same without texts of the user's data."""
        return self.replaced(changed=())
