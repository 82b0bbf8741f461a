"""A resolved run: what a recipe names as values, and what is decided before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octobert.config.measuring import Benchmark
from octobert.config.recipe import Recipe
from octobert.core import environment
from octobert.core.capability import saturates
from octobert.core.files import canonical_digest
from octobert.core.frozen import lazy
from octobert.core.heads import head_of
from octobert.core.plan import FloatType
from octobert.core.selection import Selection
from octobert.core.session import SessionEntries, StaticShape
from octobert.core.user_code import UserCode
from octobert.data import sources
from octobert.evaluation import candidates
from octobert.models.source import ModelSource
from octobert.pipeline.task import ScoredTask, TaskSpec
from octobert.quantization import calibrators, corrections, methods, transforms
from octobert.quantization.calibrators import Calibrator
from octobert.quantization.corrections import Correction
from octobert.quantization.methods import Method
from octobert.quantization.transforms import Transform
from octobert.targets import PLUGINS, Target, runtimes
from octobert.tasks import MetricSpecs
from octobert.tasks.graph import GraphOptions


@dataclass(frozen=True)
class TargetRun:
    """What is decided for one target of a run.

    Args:
        target: the target.
        method: of quantization, with all decided that depends on the CPU, as keys must have it.
        session: what the recipe sets for its sessions.
        entries: what sessions of its models are opened with.
        shape: that its files are made for, and shorter ones, or the largest one; None where it is free.
    """

    target: Target
    method: Method
    session: SessionEntries
    entries: SessionEntries
    shape: StaticShape | None

    @property
    def name(self) -> str:
        """Return the name of the target."""
        return self.target.name

    @property
    def float_parts(self) -> FloatType:
        """Return the type of the operators of its models that are not quantized."""
        return self.method.float_type(self.target.capabilities)


@dataclass(frozen=True)
class Run:
    """A recipe whose names are resolved.

    What follows from the recipe alone is computed from it, so that `replace(run, recipe=...)` is the run of another recipe on
    the same model, rows and machine.

    Args:
        model: the user's.
        absent: candidate → why it cannot run here.
        choice: why a search has chosen this run; without sentences, which have figures of the run itself.
        kinds: kinds of sites that are observed besides those that the method needs, so that several recipes share one pass.
    """

    recipe: Recipe
    model: ModelSource
    places: sources.Places
    spec: TaskSpec
    head: str
    max_length: int
    benchmark: Benchmark
    candidates: tuple[str, ...]
    absent: dict[str, str]
    here: environment.Environment
    preprocess: UserCode | None
    measures: MetricSpecs
    choice: Selection | None = None
    kinds: tuple[str, ...] = ()

    @lazy
    def method(self) -> Method:
        """Return the recipe's; `targets` have what is decided of it."""
        return methods.PLUGINS.make(self.recipe.quantize)

    @lazy
    def targets(self) -> tuple[TargetRun, ...]:
        """Return the recipe's targets, in its order."""
        return tuple(self._of_target(PLUGINS.load(name)) for name in self.recipe.targets)

    @lazy
    def calibrator(self) -> Calibrator:
        """Return the recipe's."""
        return calibrators.PLUGINS.make(self.recipe.calibrate)

    @lazy
    def transforms(self) -> tuple[Transform, ...]:
        """Return the recipe's, in order."""
        return tuple(transforms.PLUGINS.make(choice) for choice in self.recipe.transforms)

    @lazy
    def corrections(self) -> tuple[Correction, ...]:
        """Return the recipe's, in order."""
        return tuple(corrections.PLUGINS.make(choice) for choice in self.recipe.corrections)

    @lazy
    def reads(self) -> ModelSource | None:
        """Return the model, where its tokenizer has tokens that it has no embedding for."""
        task, model = self.spec.build(), self.model
        if not task.reads_texts or not task.tokenizer(model.tokenizer_folder, model.config).unread:
            return None
        return model

    @property
    def observed_kinds(self) -> tuple[str, ...]:
        """Return patterns of the kinds of sites that the method needs ranges of, for any target."""
        return self.method.observed_kinds([each.target.capabilities for each in self.targets])

    @property
    def answering(self) -> tuple[str, ...]:
        """Return the candidates whose answers are scored: all but float models that compute what the reference computes."""
        asked, reference = self.recipe.baselines or (), candidates.REFERENCE.name
        floats = candidates.float_baselines()
        # Options of a session may change what it computes, such as the type of its products.
        plain = {name for name in floats if self.entries(name) == SessionEntries()}
        if not self.reads_texts or reference not in plain.intersection(self.candidates):
            return self.candidates
        same = {name for name in plain if floats[name].is_plain}
        return tuple(name for name in self.candidates if name not in same or name in asked)

    @property
    def scored(self) -> ScoredTask:
        """Return the task with the recipe's metrics."""
        return ScoredTask(**dict(self.spec), measures=self.measures)

    @property
    def supplement(self) -> bool:
        """Return whether smoothing and ranges are calibrated on octobert's own texts, too."""
        return self.recipe.data.supplement and self.reads_texts

    @property
    def axes(self) -> dict[str, int]:
        """Return the axes of a graph of any kind that are fixed."""
        options = self.spec.options
        return options.axes if isinstance(options, GraphOptions) else {}

    @property
    def reads_texts(self) -> bool:
        """Return whether the model reads texts; a graph of any kind reads feeds."""
        return head_of(self.head).reads_texts

    @property
    def machine(self) -> str:
        """Return what figures of this machine and its runtimes are keyed by."""
        return canonical_digest(self.here.model_dump(mode="json"))

    @property
    def integer_targets(self) -> tuple[str, ...]:
        """Return the names of targets that compute in integers alone: one graph is transformed for all."""
        return tuple(each.name for each in self.targets if each.target.capabilities.integer_only)

    @property
    def simulated(self) -> tuple[TargetRun, ...]:
        """Return targets that cannot run here, whose plans are evaluated on the CPU. It has no kernels for bfloat16."""
        absent = (each for each in self.targets if each.name in self.absent)
        return tuple(each for each in absent if each.float_parts != "bfloat16")

    def entries(self, candidate: str) -> SessionEntries:
        """Return what sessions of a candidate are opened with. A float baseline keeps its precision."""
        baseline = candidates.float_baselines().get(candidate)
        if baseline is not None:
            return baseline.entries(self.recipe.session)
        return next(each.entries for each in self.targets if each.name == candidate)

    def _of_target(self, target: Target) -> TargetRun:
        capabilities, recipe = target.capabilities, self.recipe
        session = recipe.session.get(target.name, SessionEntries())
        return TargetRun(
            target=target,
            method=self.method.decide(
                saturates=saturates(capabilities, self.here.features),
                trained=recipe.qat is not None,
            ),
            session=session,
            entries=runtimes.entries_in(
                session,
                capabilities,
                self.method.float_type(capabilities),
                per_token=recipe.quantize.options.get("bits") == 4,
            ),
            shape=self._shape(target),
        )

    def _shape(self, target: Target) -> StaticShape | None:
        asked, takes = self.recipe.shape, target.capabilities.shapes
        if takes == "dynamic":
            return None
        if asked is not None and takes == "profiles":
            # One file takes all lengths up to the largest.
            return asked.of(asked.sequence)
        if asked is not None or takes == "either":
            return asked
        if takes == "fixed":
            # A graph of any kind has its own.
            shorter: Any = "auto" if self.reads_texts else ()
            return StaticShape(sequence=self.max_length, shorter=shorter)
        # A profile holds what is timed as well.
        lengths = (length for length in self.benchmark.sequence if length != "data")
        batch = max(self.benchmark.batch)
        return StaticShape(batch=batch, sequence=max(self.max_length, *lengths, 0))
