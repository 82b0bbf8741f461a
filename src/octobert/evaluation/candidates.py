"""What is compared: the float baselines of every runtime and the quantized model of every target, by name."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection
from pathlib import Path

from octobert.config.recipe import BASELINES
from octobert.core import plugins
from octobert.core.capability import Capabilities
from octobert.core.errors import TargetError, did_you_mean
from octobert.core.frozen import FrozenModel
from octobert.core.session import Session, SessionOptions
from octobert.models import checkpoint


class Candidate(FrozenModel):
    """One model on one runtime.

    Args:
        name: a baseline (`ort-f32`) or a target (`ort-cpu`).
        path: the file or folder to open.
        head: of the model; PyTorch needs it.
        allow_pickle: open pickle weights; PyTorch needs it.
        label: what it is called in results, where `name` alone would be ambiguous.
        content: digest of the model, where one is known.
        options: how to open it; None for the target's defaults.
    """

    name: str
    path: str
    head: str
    allow_pickle: bool = False
    label: str | None = None
    content: str | None = None
    options: SessionOptions | None = None

    @property
    def title(self) -> str:
        """What it is called in results."""
        return self.label or self.name

    @property
    def is_baseline(self) -> bool:
        return self.name in BASELINES

    @property
    def size_bytes(self) -> int:
        """Size of the files that are opened."""
        path = Path(self.path)
        if path.is_dir():
            return sum(f.stat().st_size for f in checkpoint.weight_files(path, allow_pickle=self.allow_pickle))
        stem = path.name.removesuffix(".xml")
        return sum(f.stat().st_size for f in path.parent.iterdir() if f.name.startswith(stem))


def import_runtime(candidate: Candidate) -> None:
    """Import what a candidate runs on, so that its load time is the model's alone."""
    runtime = candidate.name.rpartition("-")[0] if candidate.is_baseline else _capabilities(candidate.name).runtime
    modules = {"torch": ("torch",), "ort": ("onnxruntime",), "openvino": ("openvino",)}[runtime]
    for module in (*modules, "transformers") if Path(candidate.path).is_dir() else modules:
        importlib.import_module(module)


def _capabilities(target: str) -> Capabilities:
    return plugins.load("targets", target).CAPABILITIES


def open_candidate(candidate: Candidate, threads: int) -> Session:
    """Open a candidate.

    Raises:
        TargetError: unknown, or its runtime fails.
    """
    runtime, _, precision = candidate.name.rpartition("-")
    plain = SessionOptions(threads=threads, precision=precision if candidate.is_baseline else "f32")
    options = candidate.options or plain
    path = Path(candidate.path)
    if candidate.name == "torch-f32":
        from octobert.targets.runtimes.torch import TorchGraphSession, TorchSession

        # In a package there is no checkpoint, but the float graph.
        if path.is_file():
            return TorchGraphSession(path, options, "cpu")
        return TorchSession(path, options, candidate.head, allow_pickle=candidate.allow_pickle)
    name = f"{runtime}-cpu" if candidate.is_baseline else candidate.name
    if name not in plugins.names("targets"):
        raise TargetError(f'there is no candidate "{candidate.name}"', fix=did_you_mean(name, plugins.names("targets")))
    return plugins.load("targets", name).open_session(path, options)


def float_baseline(target: str, measured: Collection[str] | None = None) -> str:
    """The baseline that a target's model is compared with: the same runtime in true float32.

    Args:
        measured: what there is. Where a model came as ONNX there is no PyTorch form, and ONNX Runtime's takes its place.
    """
    name = f"{_capabilities(target).runtime}-f32"
    return name if measured is None or name in measured else "ort-f32"


def open_float(target: str, path: Path, head: str) -> Session:
    """The float graph that a target's model is compared with, opened on the same runtime."""
    return open_candidate(Candidate(name=float_baseline(target), path=str(path), head=head), 0)


def why_not(baseline: str, *, is_checkpoint: bool) -> str | None:
    """Why a baseline cannot be run here, or None."""
    if baseline == "torch-f32":
        if not is_checkpoint:
            return "the model came as ONNX, so there is no PyTorch form of it"
        missing = [p for p in ("torch", "transformers") if importlib.util.find_spec(p) is None]
        return f"{' and '.join(missing)} not installed" if missing else None
    target = f"{baseline.rpartition('-')[0]}-cpu"
    probe = plugins.load("targets", target).probe()
    if not probe.available:
        return probe.missing
    if baseline == "openvino-bf16":
        from octobert.targets.runtimes.openvino import has_bf16

        return None if has_bf16() else "this CPU does not compute in bfloat16"
    return None
