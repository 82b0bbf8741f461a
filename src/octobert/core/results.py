"""What a run says of itself: the facts of a capture, the report, and the card inside a finished package."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from octobert.core.environment import Environment
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Comparison, Footprint, Latency, Score
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Provenance, Ranges
from octobert.core.tabular import Row, Tabular

PACKAGE_FILE = "octobert.json"
# In a checkpoint that was trained here.
TRAINED = "trained.json"


class Sizes(FrozenModel):
    """Sizes of a captured encoder."""

    layers: int
    heads: int
    hidden: int


class Parity(FrozenModel):
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


class CaptureFacts(FrozenModel):
    """`capture.json`: the family's plugin name, the head, sizes and the proof."""

    family: str
    head: str
    sizes: Sizes
    parity: Parity


class AppliedTransform(FrozenModel):
    """What one preparer did.

    Args:
        groups: what it changed, in its own words: kind, module, and what was chosen.
    """

    name: str
    options: dict[str, Any]
    groups: tuple[dict[str, Any], ...]


class TransformFacts(FrozenModel):
    """`prepared.json`: what every preparer did, and the proof that the graph still computes the same."""

    transforms: tuple[AppliedTransform, ...]
    parity: Parity


class SiteSensitivity(FrozenModel):
    """What quantizing one value costs.

    Args:
        value: its name.
        role, part, module, layer: of the first site that reads it so.
        signal_to_noise_db: of the value itself, before and after; None where it is quantized dynamically.
        output_error: mean squared error of the model's outputs with only this value quantized, relative to their variance.
    """

    value: str
    role: str
    part: str
    module: str
    layer: int | None
    signal_to_noise_db: float | None
    output_error: float


class Sensitivity(FrozenModel):
    """`sensitivity.json`: every quantized value by what it costs.

    Args:
        rows: calibration rows that it was measured on.
        together: output error with all of them quantized.
        values: the most harmful first.
    """

    rows: int
    together: float
    values: tuple[SiteSensitivity, ...]


class Trial(FrozenModel):
    """One plan that a search tried.

    Args:
        stepped_back: names of the units that were not in 8 bits.
        rows: tuning rows it was judged on; fewer than all when it was clear before that it fails.
        value: of the metric.
        drop: of the metric against the float model on the same rows.
        met: whether the criterion was met, on all rows.
        saved_ms: how much faster than with every unit stepped back, by the measured time of each kind of unit.
        seconds: that the trial took.
    """

    fallback: tuple[str, ...]
    rows: int
    value: float
    drop: float
    met: bool
    saved_ms: float
    seconds: float


class Search(FrozenModel):
    """`search.json`: what an accuracy-aware search tried and took.

    Args:
        metric: that the criterion is about.
        criterion: in words.
        float_value: of the float model of the same runtime, on the tuning rows.
        rows: tuning rows.
        met: whether the plan that was taken meets the criterion.
        taken: the trial that was taken.
        trials: all, in order.
        unit_saving_ms: kind of unit → time that 8 bits save on one of them, at batch 1 and `tokens` tokens.
        seconds: of all trials together, interrupted runs included.
        ended: why the search ended.
    """

    metric: str
    criterion: str
    float_value: float
    rows: int
    met: bool
    taken: Trial
    trials: tuple[Trial, ...]
    unit_saving_ms: dict[str, float]
    tokens: int
    seconds: float
    ended: str


class Swept(FrozenModel):
    """One calibrator in a sweep.

    Args:
        calibrator: with its options, in words.
        problem: why it could not be used, or None.
        agreement, output_error: how closely the quantized model follows the float model on rows that were not calibrated on.
        signal_to_noise_db: of every value.
    """

    calibrator: str
    problem: str | None = None
    agreement: float | None = None
    output_error: float | None = None
    signal_to_noise_db: dict[str, float] = Field(default_factory=dict)


class Sweep(Tabular):
    """`sweep.json`: calibrators side by side, from one pass over the calibration rows.

    Args:
        fidelity: what `agreement` is called.
        calibration_rows, judged_rows: of the data.
        ranges: value → [minimum, maximum] that was seen.
    """

    target: str
    fidelity: str
    calibration_rows: int
    judged_rows: int
    ranges: dict[str, tuple[float, float]]
    swept: tuple[Swept, ...]

    def to_rows(self) -> list[Row]:
        """One row per calibrator. `agreement` has the name of the task's measure."""
        return [
            {"calibrator": s.calibrator, self.fidelity: s.agreement, "output_error": s.output_error, "problem": s.problem}
            for s in self.swept
        ]


class Simulated(FrozenModel):
    """`simulation.json`: an exported model beside the PyTorch model that was trained with its values rounded.

    Args:
        name: what `agreement` is called.
        agreement, error: how closely the exported model follows, and the root mean square difference of outputs.
        rows: evaluated texts.
        scores: of the PyTorch model; none where the data has no gold.
    """

    name: str
    agreement: float
    error: float
    rows: int
    scores: tuple[Score, ...] = ()


class DataFacts(FrozenModel):
    """Which rows were used, and how they were kept apart."""

    calibration_rows: int
    evaluation_rows: int
    source: str
    leaked_rows: int
    dropped_rows: int
    tuning_rows: int = 0
    training_rows: int = 0


class Finetuned(Tabular):
    """What `octobert finetune` says of a float model.

    Args:
        trained: steps, loss and rows.
        scores: of the float model in PyTorch, on the evaluated rows.
    """

    trained: dict[str, Any]
    data: DataFacts
    scores: tuple[Score, ...]

    def to_rows(self) -> list[Row]:
        """One row per metric."""
        return [score.model_dump() for score in self.scores]


class TaskFacts(FrozenModel):
    """A task as it can be built again."""

    name: str
    options: dict[str, Any]
    labels: tuple[str, ...]
    head: str
    primary: str | None


class RangeFacts(FrozenModel):
    """How ranges were chosen, without the ranges."""

    calibrator: str
    options: dict[str, Any]
    provenance: Provenance


class StageFacts(FrozenModel):
    """How one step of the run went."""

    summary: dict[str, Any]
    seconds: float
    peak_memory_bytes: int
    key: str


class Report(Tabular):
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
    transforms: TransformFacts | None = None
    sensitivities: dict[str, Sensitivity] = Field(default_factory=dict)
    searches: dict[str, Search] = Field(default_factory=dict)
    simulations: dict[str, Simulated] = Field(default_factory=dict)
    scores: dict[str, tuple[Score, ...]]
    comparisons: tuple[Comparison, ...]
    latencies: tuple[Latency, ...]
    footprints: tuple[Footprint, ...]
    environment: Environment
    absent: dict[str, str]
    stages: dict[str, StageFacts]

    def to_rows(self) -> list[Row]:
        """One row per measured model: scores, difference from float, size, and median time of each shape."""
        metrics = list(dict.fromkeys(score.metric for scores in self.scores.values() for score in scores))
        comparisons = {comparison.candidate: comparison for comparison in self.comparisons}
        rows = []
        for footprint in self.footprints:
            name = footprint.candidate
            values = {score.metric: score.value for score in self.scores.get(name, ())}
            comparison = comparisons.get(name)
            timed = [latency for latency in self.latencies if latency.candidate == name]
            rows.append(
                {
                    "model": name,
                    "precision": footprint.precision,
                    **{metric: values.get(metric) for metric in metrics},
                    "output_error": comparison.output_error if comparison else None,
                    "size_mb": footprint.size_bytes / 1e6,
                    "peak_memory_mb": footprint.peak_memory_bytes / 1e6,
                    "load_ms": footprint.load_ms,
                    **{f"p50_ms {latency.batch}×{latency.sequence}": latency.percentile_ms(50) for latency in timed},
                }
            )
        return rows


class PackageManifest(FrozenModel):
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
    sensitivity: Sensitivity | None = None
    search: Search | None = None
    scores: dict[str, tuple[Score, ...]]
    comparison: Comparison | None
    environment: Environment
    files: dict[str, str]
