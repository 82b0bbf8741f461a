"""What a run says of itself: the facts of a capture, the report, and the card inside a finished package."""

from __future__ import annotations

from typing import Any

from octobert.environment import Environment
from octobert.measure import Comparison, Footprint, Latency, Score
from octobert.plan import Noun, QuantPlan
from octobert.ranges import Provenance, Ranges

CARD = "octobert.json"


class Sizes(Noun):
    """Sizes of a captured encoder."""

    layers: int
    heads: int
    hidden: int


class Parity(Noun):
    """How closely a graph follows its original.

    Args:
        against: what it was compared with.
        batches: [batch size, length] of each comparison.
        largest_difference: over all outputs of real tokens, relative to the largest output (at least 1).
        tolerance: what was allowed.
    """

    against: str
    batches: tuple[tuple[int, int], ...]
    largest_difference: float
    tolerance: float


class CaptureFacts(Noun):
    """`capture.json`: the family's plugin name, the head, sizes and the proof."""

    encoder: str
    head: str
    sizes: Sizes
    parity: Parity


class DataFacts(Noun):
    """Which rows were used, and how they were kept apart."""

    calibration_rows: int
    evaluation_rows: int
    source: str
    leaked_rows: int
    dropped_rows: int


class TaskFacts(Noun):
    """A task as it can be built again."""

    name: str
    options: dict[str, Any]
    labels: tuple[str, ...]
    head: str
    primary: str | None


class RangeFacts(Noun):
    """How ranges were chosen, without the ranges."""

    calibrator: str
    options: dict[str, Any]
    provenance: Provenance


class StageFacts(Noun):
    """How one step of the run went."""

    summary: dict[str, Any]
    seconds: float
    peak_memory_bytes: int
    key: str


class Report(Noun):
    """`report.json`: everything that was decided and measured in one run.

    Args:
        recipe: as plain data.
        scores: candidate → metrics.
        absent: baseline → why it was not measured.
    """

    recipe: dict[str, Any]
    task: TaskFacts
    data: DataFacts
    model: CaptureFacts
    model_digest: str
    ranges: RangeFacts
    plans: dict[str, QuantPlan]
    scores: dict[str, tuple[Score, ...]]
    comparisons: tuple[Comparison, ...]
    latencies: tuple[Latency, ...]
    footprints: tuple[Footprint, ...]
    environment: Environment
    absent: dict[str, str]
    stages: dict[str, StageFacts]


class Card(Noun):
    """`octobert.json`: what a package is, how it came about, and what it scored.

    Args:
        octobert: version that wrote it.
        files: relative path → sha256.
    """

    octobert: str | None
    target: str
    task: TaskFacts
    recipe: dict[str, Any]
    model: CaptureFacts
    model_digest: str
    plan: QuantPlan
    ranges: Ranges
    scores: dict[str, tuple[Score, ...]]
    comparison: Comparison | None
    environment: Environment
    files: dict[str, str]
