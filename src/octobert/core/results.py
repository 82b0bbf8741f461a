"""Records of a run: the capture, transforms, sensitivity, search, the report, and the manifest of a package."""

from __future__ import annotations

import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from octobert.core.environment import Environment
from octobert.core.files import stays_inside
from octobert.core.frozen import FrozenModel, Row, Tabular
from octobert.core.limits import Check, Limit
from octobert.core.measurements import Comparison, Figures, Footprint, Latency, Load, Score
from octobert.core.model_config import Pooling, Reading, Similarity
from octobert.core.plan import QuantPlan
from octobert.core.ranges import RangeFacts, Ranges
from octobert.core.selection import Selection
from octobert.core.session import PackagedEntries, SessionEntries, Tuned

PACKAGE_FILE = "octobert.json"
CHECKPOINT = "checkpoint"  # folder of a checkpoint that octobert has trained
TUNED_FILE = "tuned.json"  # in a package or beside a model file: settings of the runtime that `octobert tune` found
TRAINED = "trained.json"  # in a checkpoint that octobert has trained


class Sizes(FrozenModel):
    """Sizes of a captured encoder.

    Args:
        layers: number of encoder layers.
        heads: attention heads of a layer.
        hidden: width of the hidden state.
    """

    layers: int
    heads: int
    hidden: int


class Parity(FrozenModel):
    """A comparison of the outputs of a graph with those of the model that it was made from.

    Args:
        against: what the graph was compared with.
        batches: (rows, tokens of a row) of each compared batch.
        largest_difference: over all outputs without padding, relative to the largest output (at least 1).
        tolerance: largest accepted difference.
    """

    against: str
    batches: tuple[tuple[int, int], ...]
    largest_difference: float
    tolerance: float


class CaptureFacts(FrozenModel):
    """`capture.json`: facts about a captured model.

    Args:
        family: the first model type of its family.
        head: such as `sequence-classification`.
        sizes: of the encoder.
        parity: comparison with the original model.
        pooling: how token states become an embedding; None for other heads, and where the user's file makes its vectors itself.
        source_bytes: size of the weights as the user gave them, in whatever type; 0 where that was not noted.
        wrapped: parts of the names of the weights that were those of a wrapper, such as `module.`, and not read.
        left_out: class of the masked language model that was read as a plain encoder; empty for all else.
        unread: tokens of the tokenizer that the model has no embedding for.
        rest: of a graph of any kind, what is not part of an encoder layer, in words.
    """

    family: str
    head: str
    sizes: Sizes
    parity: Parity
    pooling: Pooling | None = None
    source_bytes: int = 0
    wrapped: tuple[str, ...] = ()
    left_out: str = ""
    unread: tuple[str, ...] = ()
    rest: str = ""


class AppliedTransform(FrozenModel):
    """A graph transform that was applied.

    Args:
        name: of the transform.
        options: of the transform.
        groups: one record per group of layers, such as kind, module and the chosen setting.
        summary: what was done in words, or why nothing was.
    """

    name: str
    options: dict[str, Any]
    groups: tuple[dict[str, Any], ...]
    summary: str = ""


class TransformFacts(FrozenModel):
    """The applied graph transforms.

    Args:
        transforms: in the order of application.
        parity: comparison of the transformed graph with the captured graph.
    """

    transforms: tuple[AppliedTransform, ...]
    parity: Parity


class SiteSensitivity(FrozenModel):
    """The sensitivity of one quantized value.

    Args:
        value: its name.
        role: of the first site that reads it.
        part: of that site.
        module: of that site.
        layer: of that site.
        signal_to_noise_db: of the quantized value.
        output_error: expected squared error of the outputs when only this value is quantized, relative to their variance.
    """

    value: str
    role: str
    part: str
    module: str
    layer: int | None
    signal_to_noise_db: float | None
    output_error: float


class Sensitivity(FrozenModel):
    """`sensitivity.json`: the sensitivity of every quantized value, before weights are corrected.

    Args:
        rows: calibration rows of the estimate.
        together: the sum of all.
        values: in order of decreasing output error.
        fallback: names of the units that stay in float because of it.
        left: the sum of all others.
        unknown: why there are no values.
    """

    rows: int
    together: float
    values: tuple[SiteSensitivity, ...]
    fallback: tuple[str, ...] = ()
    left: float | None = None
    unknown: str = ""


class Trial(FrozenModel):
    """One plan that a search has evaluated.

    Args:
        fallback: names of the units that fell back to float or 16 bits.
        rows: tuning rows of the evaluation; fewer than all where these already showed that the criterion is missed.
        value: of the metric.
        drop: of the metric, compared with the float model on the same rows.
        met: whether the criterion is met on all rows.
        saved_ms: time saved compared with the fallback of all units, from the measured time of each kind of unit.
        seconds: duration of the trial.
    """

    fallback: tuple[str, ...]
    rows: int
    value: float
    drop: float
    met: bool
    saved_ms: float
    seconds: float


class AccuracySearch(FrozenModel):
    """`search.json`: the result of an accuracy-aware search.

    Args:
        metric: of the criterion.
        criterion: that a plan must meet.
        float_value: metric of the float model on the same runtime and the tuning rows.
        rows: tuning rows.
        met: whether the plan meets the criterion.
        taken: the trial whose plan is used.
        trials: all trials, in order.
        unit_saving_ms: kind of unit → time that 8 bits save on one unit, at batch 1 and `tokens` tokens.
        tokens: sequence length of `unit_saving_ms`.
        seconds: duration of all trials, including those of interrupted runs.
        ended: why the search ended.
    """

    metric: str
    criterion: Limit
    float_value: float
    rows: int
    met: bool
    taken: Trial
    trials: tuple[Trial, ...]
    unit_saving_ms: dict[str, float]
    tokens: int
    seconds: float
    ended: str


class Simulated(FrozenModel):
    """`simulation.json`: an exported model compared with the PyTorch model of quantization-aware training.

    Args:
        name: what `agreement` measures.
        agreement: how closely the exported model follows the PyTorch model.
        error: root mean square difference of the outputs.
        rows: evaluation rows.
        scores: of the PyTorch model; empty for data without labels.
    """

    name: str
    agreement: float
    error: float
    rows: int
    scores: tuple[Score, ...] = ()


class DataFacts(FrozenModel):
    """The rows of a run.

    Args:
        calibration_rows, evaluation_rows: number of rows.
        source: where the rows come from.
        leaked_rows, dropped_rows: calibration or training rows that are also evaluated: allowed by the recipe, and dropped.
        tuning_rows, tuning_split: rows that a search is judged on, and the split or file that they are from.
        training_rows, left_out_rows: rows of fine-tuning, and rows that the recipe's `preprocess` left out.
    """

    calibration_rows: int
    evaluation_rows: int
    source: str
    leaked_rows: int
    dropped_rows: int
    tuning_rows: int = 0
    tuning_split: str = ""
    training_rows: int = 0
    left_out_rows: int = 0


class Finetuned(Tabular):
    """The result of fine-tuning in float.

    Args:
        trained: training steps, loss and rows.
        data: the rows.
        scores: of the PyTorch model on the evaluation rows.
    """

    trained: dict[str, Any]
    data: DataFacts
    scores: tuple[Score, ...]

    def to_rows(self) -> list[Row]:
        """Return one row per metric."""
        return [score.model_dump() for score in self.scores]


Problem = Literal["single-label", "multi-label", "regression"]


class ModelMetadata(FrozenModel):
    """Metadata of a model about its texts and answers, as its files and the data state it.

    Args:
        labels: class names in the order of the logits; empty where there are none.
        problem: what the logits mean; None where the model does not say.
        activation: what makes a score from one logit, as torch.nn names it; None where the model does not say.
        prompts: name → text that is put before a text; empty texts are left out.
        default_prompt: name of the prompt that is used where none is chosen.
        texts: texts of an input: 1, or 2 for pairs; 0 where it is not known.
        similarity: how embeddings are compared; None where the model does not say, which means `cosine`, for sparse ones `dot`.
        most_active: of a sparse embedding, the largest so many entries are kept; None where the model does not say.
        reading: how a late-interaction model reads texts; None for all others.
        query_table: of a sparse embedding, queries are made of weights of their tokens, without the model.
    """

    labels: tuple[str, ...] = ()
    problem: Problem | None = None
    activation: str | None = None
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt: str | None = None
    texts: int = 0
    similarity: Similarity | None = None
    most_active: int | None = None
    reading: Reading | None = None
    query_table: bool = False


class TaskFacts(ModelMetadata):
    """A task and its options, with what the model and the data state.

    Args:
        name: of the task.
        options: of the task.
        head: of the model.
        primary: name of the main metric; None where the data has no labels.
    """

    name: str
    options: dict[str, Any]
    head: str
    primary: str | None

    @property
    def multi_label(self) -> bool:
        """Return whether every logit is a decision of its own."""
        return (self.options.get("problem") or self.problem) == "multi-label"


class StageFacts(FrozenModel):
    """A completed step of a run.

    Args:
        summary: main figures.
        seconds: duration.
        peak_memory_bytes: of the process.
        key: of the result in the store.
    """

    summary: dict[str, Any]
    seconds: float
    peak_memory_bytes: int
    key: str


class Report(Tabular):
    """`report.json`: all decisions and measurements of a run.

    Args:
        recipe: as plain data.
        task: the task.
        data: the rows.
        model: the captured model.
        model_digest: sha256 of the model.
        ranges: the calibration.
        plans: target → plan.
        transforms: the applied graph transforms; None where the recipe has none.
        sensitivities: target → sensitivity.
        searches: target → accuracy search.
        simulations: target → comparison with the model of quantization-aware training.
        tuned: target → the fastest settings found on this machine, one result per goal.
        models: what was measured of each target and float baseline, in the order of tables.
        choice: how the model was chosen, where the recipe says `choose` or `search`.
        checks: target → every limit of the recipe, checked on these figures; empty where it sets none.
        load: what else the machine did during the benchmark; None without one.
        environment: machine and software.
        date: when the models were timed, or the report was made where none was, in UTC.
        stages: step → facts.
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
    searches: dict[str, AccuracySearch] = Field(default_factory=dict)
    simulations: dict[str, Simulated] = Field(default_factory=dict)
    tuned: dict[str, tuple[Tuned, ...]] = Field(default_factory=dict)
    models: tuple[Figures, ...]
    choice: Selection | None = None
    checks: dict[str, tuple[Check, ...]] = Field(default_factory=dict)
    load: Load | None = None
    environment: Environment
    date: datetime.date
    stages: dict[str, StageFacts]

    def of(self, name: str) -> Figures:
        """Return the figures of a model; none where it is not in the report."""
        return next((each for each in self.models if each.model == name), Figures(model=name))

    @property
    def timed(self) -> list[tuple[Figures, Footprint]]:
        """Return the timed models, with size, memory and load time."""
        return [(each, each.footprint) for each in self.models if each.footprint is not None]

    @property
    def times(self) -> list[Latency]:
        """Return the times of all models at all shapes."""
        return [timed for each in self.models for timed in each.times]

    @property
    def compared(self) -> list[Comparison]:
        """Return the comparisons of all models with their float baselines."""
        return [each.against_float for each in self.models if each.against_float is not None]

    @property
    def reference(self) -> str:
        """Return the float model that others are compared with; empty where nothing was scored."""
        models = (each.model for each in self.models if each.scores and not each.against_float)
        return next(models, "")

    def to_rows(self) -> list[Row]:
        """Return one row per measured model: scores, difference from float, size, and median time of each shape."""
        metrics = dict.fromkeys(score.metric for each in self.models for score in each.scores)
        return [
            {
                "model": figures.model,
                "precision": footprint.precision,
                **dict.fromkeys(metrics),
                **{score.metric: score.value for score in figures.scores},
                "output_error": figures.against_float and figures.against_float.output_error,
                "size_mb": footprint.size_mb,
                "peak_memory_mb": footprint.peak_memory_mb,
                "load_ms": footprint.load_ms,
                **{f"p50_ms {t.batch}×{t.sequence}": t.percentile_ms(50) for t in figures.times},
            }
            for figures, footprint in self.timed
        ]


def _inside(name: str) -> str:
    if not stays_inside(name) or not PurePosixPath(name).parts or set(name) & {"\\", ":"}:
        raise ValueError("the path leaves the package")
    if set(name) & set("*?[") or not name.isprintable():
        raise ValueError("the path is a pattern, or has characters that no file of a package has")
    return name


PackagePath = Annotated[
    str, AfterValidator(_inside)
]  # relative, with slashes, and inside the folder that it is relative to


class PackageManifest(FrozenModel):
    """`octobert.json`: the contents of a package, how it was made, and its scores.

    Args:
        octobert: version of octobert that wrote it.
        files, sizes: relative path → sha256, and bytes.
        session: how it is opened, without entries that name files of the machine where it was made.
        chosen: why `octobert auto` chose it for machines as in `environment`; None for a package that was not chosen.
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
    search: AccuracySearch | None = None
    scores: dict[str, tuple[Score, ...]]
    comparison: Comparison | None
    environment: Environment
    files: dict[PackagePath, str]
    sizes: dict[PackagePath, int]
    session: PackagedEntries = SessionEntries()
    chosen: str | None = None

    def __repr__(self) -> str:
        return f"<PackageManifest: {self.target}, {self.task.name}>"


class PlannedStep(FrozenModel):
    """A step of a run, and why it would be reused or run."""

    step: str
    action: Literal["run", "reuse"]
    reason: str
