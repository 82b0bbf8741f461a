"""What an evaluation compares: the quantized model of each target, and float baselines. Both are opened by name.

A float baseline is the float graph in a precision, opened by a target's own session on the target's own device; or the user's
checkpoint in PyTorch. A device that cannot run the float model is compared with the CPU target of the same runtime.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from octobert import targets
from octobert.core.capability import Capabilities
from octobert.core.errors import RecipeError, TargetError, did_you_mean
from octobert.core.frozen import FrozenModel
from octobert.core.session import Session, SessionEntries, SessionOptions
from octobert.evaluation.torch_session import TorchSession
from octobert.inference.opened import FinishedModel
from octobert.inference.package_files import files_of
from octobert.models import weights
from octobert.targets import runtimes
from octobert.targets.runtimes import Runtime

Source = Literal["checkpoint", "graph", "package"]


class FloatBaseline(FrozenModel, ABC):
    """A float model that quantized models are compared with.

    Args:
        precision: of its operators.

    Attributes:
        source: what it opens in a run.
    """

    precision: str = "f32"
    source: ClassVar[Source]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in recipes and reports."""

    @property
    @abstractmethod
    def device(self) -> str:
        """The device that it runs on, in words."""

    @property
    @abstractmethod
    def is_on_cpu(self) -> bool:
        """True if it is the float model of a runtime on the CPU."""

    @property
    def is_plain(self) -> bool:
        """True if it computes in float32 on the CPU, as `REFERENCE` does. Capture has compared that one with PyTorch."""
        return self.is_on_cpu and self.precision == "f32" and self != REFERENCE

    @property
    @abstractmethod
    def packages(self) -> tuple[str, ...]:
        """The Python packages that run it."""

    @abstractmethod
    def entries(self, session: Mapping[str, SessionEntries]) -> SessionEntries:
        """Return what it is opened with.

        Args:
            session: of a recipe: target → what is set for its sessions.
        """

    @abstractmethod
    def why_not(self, *, is_checkpoint: bool) -> str | None:
        """Return why it cannot run on this machine, or None if it can.

        Args:
            is_checkpoint: whether the model is a checkpoint, not an ONNX file.
        """

    @abstractmethod
    def open(self, candidate: Candidate, options: SessionOptions) -> Session:
        """Open the model of a candidate.

        Raises:
            OctobertError: it cannot be opened.
        """


class TargetBaseline(FloatBaseline):
    """The captured float graph, opened by a target's own session on the target's own device.

    Args:
        target: plugin name.
        precision: one of the target's `baseline_precisions`.
    """

    target: str
    source: ClassVar[Source] = "graph"

    @property
    def capabilities(self) -> Capabilities:
        """The table of its target."""
        return targets.load(self.target).capabilities

    @property
    def runtime(self) -> Runtime:
        """The runtime of its target."""
        return runtimes.load(self.capabilities.runtime)

    @property
    def name(self) -> str:
        """The name: `ort-f32` for the CPU target of a runtime, `ort-cuda-f32` for other targets."""
        return f"{self.capabilities.runtime if self.is_on_cpu else self.target}-{self.precision}"

    @property
    def device(self) -> str:
        """The device of the target."""
        return self.capabilities.device

    @property
    def is_on_cpu(self) -> bool:
        """True if its target is the CPU target of its runtime."""
        return self.target == self.runtime.cpu_target

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of its runtime."""
        return self.runtime.packages

    def entries(self, session: Mapping[str, SessionEntries]) -> SessionEntries:
        """Return what is set for the target."""
        return session.get(self.target, SessionEntries())

    def why_not(self, *, is_checkpoint: bool) -> str | None:
        """Return what the target lacks here."""
        probe = targets.load(self.target).probe()
        return self.runtime.precision_problem(self.precision) if probe.available else probe.missing

    def open(self, candidate: Candidate, options: SessionOptions) -> Session:
        """Open the file of a candidate."""
        return targets.load(self.target).open_session(Path(candidate.path), options)


class CheckpointBaseline(FloatBaseline):
    """The user's checkpoint in PyTorch, as transformers runs it. No target opens it, so a recipe sets nothing for it."""

    source: ClassVar[Source] = "checkpoint"

    @property
    def name(self) -> str:
        """The name: `torch-f32`."""
        return f"torch-{self.precision}"

    @property
    def device(self) -> str:
        """The CPU."""
        return "CPU"

    @property
    def is_on_cpu(self) -> bool:
        """True."""
        return True

    @property
    def packages(self) -> tuple[str, ...]:
        """PyTorch, and the library that has the model's class."""
        return ("torch", "transformers")

    def entries(self, session: Mapping[str, SessionEntries]) -> SessionEntries:
        """Return no entries."""
        return SessionEntries()

    def why_not(self, *, is_checkpoint: bool) -> str | None:
        """Return that there is no checkpoint, or what is not installed."""
        if not is_checkpoint:
            return "the model came as ONNX, so there is no checkpoint for PyTorch to run"
        missing = [p for p in self.packages if importlib.util.find_spec(p) is None]
        return f"{' and '.join(missing)} not installed" if missing else None

    def open(self, candidate: Candidate, options: SessionOptions) -> Session:
        """Open the folder of a candidate."""
        return TorchSession(
            Path(candidate.path), options, candidate.head, allow_pickle=candidate.allow_pickle
        )


# The float model that other baselines are compared with. ONNX Runtime is always installed.
REFERENCE = TargetBaseline(target="ort-cpu")
# The float model as users know it.
CHECKPOINT = CheckpointBaseline()


def float_baselines() -> dict[str, FloatBaseline]:
    """Return all float baselines by name: `CHECKPOINT`, `REFERENCE`, those of other CPU targets, and of the rest."""
    baselines = [
        TargetBaseline(target=name, precision=precision)
        for name, target in sorted(targets.each())
        for precision in target.capabilities.baseline_precisions
    ]
    baselines.sort(key=lambda baseline: (baseline != REFERENCE, not baseline.is_on_cpu))
    return {baseline.name: baseline for baseline in (CHECKPOINT, *baselines)}


def baseline_of(target: str, measured: Collection[str] | None = None) -> TargetBaseline:
    """Return the float baseline that a target's model is compared with.

    Args:
        target: plugin name.
        measured: names of the candidates that were measured; `REFERENCE` takes the place of a baseline that was not, because
            its device is not here.
    """
    capabilities = targets.load(target).capabilities
    if capabilities.baseline_precisions:
        baseline = TargetBaseline(target=target, precision=capabilities.baseline_precisions[0])
    else:
        baseline = TargetBaseline(target=runtimes.load(capabilities.runtime).cpu_target)
    return baseline if measured is None or baseline.name in measured else REFERENCE


def reference_of(name: str, measured: Collection[str]) -> str | None:
    """Return the name of what a candidate is compared with: a target with its baseline, other baselines with `REFERENCE`.

    Args:
        name: of a target or a baseline.
        measured: names of the candidates that were measured.

    Returns:
        None if there is nothing to compare it with.
    """
    reference = REFERENCE if name in float_baselines() else baseline_of(name, measured)
    return reference.name if reference.name in measured and reference.name != name else None


def float_forms(target: str) -> tuple[str, ...]:
    """Return the names of the float models that a target's package can be timed against here: its baseline first, then that
    model in other precisions."""
    forms = _forms(baseline_of(target))
    return tuple(
        form.name for form in forms if form == forms[0] or form.why_not(is_checkpoint=False) is None
    )


def rivals_of(target: str, measured: Collection[str]) -> tuple[str, ...]:
    """Return the names of the float models that a target's speed is compared with: its baseline first, then that model in
    other precisions on the same runtime and device.

    Args:
        target: plugin name.
        measured: names of the candidates that were measured.
    """
    baseline = baseline_of(target, measured)
    forms = tuple(form.name for form in _forms(baseline) if form.name in measured)
    return forms if baseline.name in measured else ()


def _forms(baseline: TargetBaseline) -> list[TargetBaseline]:
    """A float model on its target, and then in the other precisions."""
    precisions = dict.fromkeys((baseline.precision, *baseline.capabilities.baseline_precisions))
    return [baseline.replaced(precision=precision) for precision in precisions]


def baselines_of(
    measured: Sequence[str], names: Sequence[str] | None = None
) -> tuple[FloatBaseline, ...]:
    """Return the float baselines of a run: those that it asks for, that of each target, and `REFERENCE`.

    Args:
        measured: targets that will be measured.
        names: of baselines; None for those of all CPU targets.

    Raises:
        RecipeError: there is no baseline of such a name.
    """
    baselines = float_baselines()
    for name in names or ():
        if name not in baselines:
            raise RecipeError(
                f'there is no float baseline "{name}"',
                where="baselines",
                fix=did_you_mean(name, tuple(baselines)),
            )
    needed = {REFERENCE, *(baseline_of(target) for target in measured)}
    return tuple(
        baseline
        for name, baseline in baselines.items()
        if baseline in needed or (baseline.is_on_cpu if names is None else name in names)
    )


def source_of(name: str) -> Source:
    """Return what a candidate opens in a run: the user's checkpoint, the captured float graph, or its target's package."""
    baseline = float_baselines().get(name)
    return "package" if baseline is None else baseline.source


class Candidate(FrozenModel):
    """One model on one runtime.

    Args:
        name: a baseline (`ort-f32`) or a target (`ort-cpu`).
        path: the file or folder to open; a folder is a checkpoint.
        head: of the model; needed to open a checkpoint.
        allow_pickle: allow pickle weights in a checkpoint. Opening them runs code.
        label: its name in results, where `name` alone would be ambiguous.
        content: digest of the model, if it is known.
        options: how to open it; None for the target's defaults.
        entries: what the recipe sets for its target.
        chosen: device of the runtime's own to open it on, such as `AUTO`; None for the target's.
        cache: folder for compiled models.
        outputs: name of an output in results → its name in the file; empty for files of octobert.
    """

    name: str
    path: str
    head: str
    allow_pickle: bool = False
    label: str | None = None
    content: str | None = None
    options: SessionOptions | None = None
    entries: SessionEntries = SessionEntries()
    chosen: str | None = None
    cache: str | None = None
    outputs: Mapping[str, str] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name in results."""
        return self.label or self.name

    @property
    def baseline(self) -> FloatBaseline | None:
        """The float baseline that it is, or None for a quantized model."""
        return float_baselines().get(self.name)

    @property
    def opener(self) -> FloatBaseline:
        """What opens it: the baseline that it is, or its target, which opens float models as it opens quantized ones."""
        return self.baseline or TargetBaseline(target=self.name)

    @property
    def device(self) -> str:
        """The device that it runs on, in words."""
        return self.opener.device

    @property
    def size_bytes(self) -> int:
        """Size of the files that are opened."""
        path = Path(self.path)
        if path.is_dir():
            return sum(
                f.stat().st_size for f in weights.weight_files(path, allow_pickle=self.allow_pickle)
            )
        return sum(file.stat().st_size for file in files_of(path))


def import_runtime(candidate: Candidate) -> None:
    """Import the packages that a candidate runs on, so that its load time is that of the model alone."""
    for package in candidate.opener.packages:
        importlib.import_module(package)


def open_candidate(
    candidate: Candidate, threads: int, streams: int = 1, *, heads: int = 0
) -> Session:
    """Open a candidate.

    Args:
        threads: threads of one inference; 0 lets the runtime choose.
        streams: inferences at the same time; 0 lets the runtime choose.
        heads: attention heads of a layer, where they are known.

    Raises:
        TargetError: there is no such candidate, or its runtime cannot open the model.
    """
    baseline = candidate.baseline
    if baseline is None and candidate.name not in targets.names():
        raise TargetError(
            f'there is no candidate "{candidate.name}"',
            fix=did_you_mean(candidate.name, (*float_baselines(), *targets.names())),
        )
    plain = SessionOptions(
        threads=threads,
        streams=streams,
        precision=None if baseline is None else baseline.precision,
        device=candidate.chosen,
    )
    options = (candidate.options or plain).replaced(
        entries=candidate.entries, outputs=candidate.outputs, cache=candidate.cache, heads=heads
    )
    return candidate.opener.open(candidate, options)


def candidate_of(
    model: FinishedModel, label: str | None = None, device: str | None = None
) -> Candidate:
    """Return a finished model as a candidate.

    Args:
        label: its name in results.
        device: of the runtime's own to open it on; None for the target's.
    """
    return Candidate(
        name=model.target,
        path=str(model.file),
        head=model.head,
        label=label,
        entries=model.entries_on(device),
        chosen=device,
        outputs=model.outputs,
    )


def float_of(
    model: FinishedModel,
    name: str | None = None,
    label: str | None = None,
    device: str | None = None,
) -> Candidate | None:
    """Return the float model of a finished model as a candidate; None if there is none.

    Args:
        name: of the float baseline that opens it; None for that of the target.
        label: its name in results.
        device: of the runtime's own to open it on; None for the target's.
    """
    floating = floating_of(model)
    if model.floating is None or floating is None:
        return None
    float_model, baseline = floating
    opened = candidate_of(float_model, label, device)
    return opened.replaced(name=name or baseline.name, content=model.floating.content)


def floating_of(model: FinishedModel) -> tuple[FinishedModel, TargetBaseline] | None:
    """Return the float model of a finished model as a model of its own, and the baseline that it is; None if there is none."""
    if model.floating is None:
        return None
    baseline, file = baseline_of(model.target), model.floating.path
    float_model = replace(
        model,
        path=file,
        file=file,
        target=baseline.target,
        outputs=model.floating.outputs,
        entries=model.entries if baseline.target == model.target else SessionEntries(),
        floating=None,
        manifest=None,
    )
    return float_model, baseline


def open_float(
    target: str,
    path: Path,
    head: str,
    entries: SessionEntries = SessionEntries(),
) -> Session:
    """Open the float graph as the baseline of a target, on the target's device where that runs float.

    Args:
        target: plugin name.
        path: the float ONNX file.
        head: of the model.
        entries: what the recipe sets for the target.
    """
    baseline = baseline_of(target)
    entries = entries if baseline.target == target else SessionEntries()
    return open_candidate(
        Candidate(name=baseline.name, path=str(path), head=head, entries=entries), 0
    )
