"""PyTorch: probe it, open a checkpoint with transformers or an ONNX file of octobert, run it.

`TorchSession` is the float baseline in runs that start from a checkpoint. `TorchGraphSession` opens ONNX files and does not
need transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import environment
from octobert.core.capability import INTEGER_UNITS, Probe
from octobert.core.errors import RecipeError, TargetError, reason
from octobert.core.session import (
    Feeds,
    Session,
    SessionEntries,
    SessionOptions,
    read_outputs,
)
from octobert.targets.shared import sessions

TITLE = "PyTorch"
PACKAGES = ("torch",)
SUFFIXES = (".onnx",)
CPU_TARGET = "torch-cpu"

_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def precision_problem(precision: str) -> str | None:
    """Return None: PyTorch runs float32, the only baseline precision of its CPU target, on every machine."""
    return None


def check_device(device: str) -> None:
    """Refuse: a target is one device."""
    raise sessions.no_choice_of_device(TITLE, device)


def probe(device: str) -> Probe:
    """Return whether torch is installed and has a device.

    Args:
        device: as torch names it, `cpu` or `cuda`.
    """
    problem = sessions.unavailable("torch", environment.install("torch"))
    if problem is not None:
        return problem
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return Probe(
            available=False,
            version=torch.__version__,
            missing="torch finds no CUDA device"
            if torch.version.cuda
            else "this build of torch has no CUDA",
            install="install a build of torch with CUDA",
        )
    return Probe(available=True, version=torch.__version__)


def check_entries(entries: SessionEntries, device: str) -> None:
    """Check what a recipe sets for sessions: PyTorch takes nothing.

    Raises:
        RecipeError: something is set.
    """
    if settings := [*entries.options, *entries.provider]:
        raise RecipeError(
            "PyTorch models are opened without options",
            where="session",
            got=", ".join(settings)[:200],
            fix="remove it; benchmark.threads sets the threads of the timing",
        )


@dataclass(frozen=True)
class TorchDevice:
    """A device as targets have it: `probe` and `open_session`.

    Args:
        name: in torch, `cpu` or `cuda`.
        compiled: models are compiled.
    """

    name: str
    compiled: bool

    def probe(self) -> Probe:
        """Return whether torch is installed and has the device."""
        return probe(self.name)

    def open_session(self, path: Path, options: SessionOptions) -> Session:
        """Open an ONNX file."""
        return TorchGraphSession(path, options, self.name, compiled=self.compiled)


def _set_threads(options: SessionOptions) -> None:
    """Set the threads of one inference. The setting is global to the process."""
    import torch

    if options.threads or options.streams > 1:
        torch.set_num_threads(options.threads or max(1, environment.cores() // options.streams))


class TorchSession:
    """A checkpoint folder, run by transformers with its default attention, not compiled.

    Args:
        folder: the checkpoint.
        options: how to open it.
        head: the head to load, such as `sequence-classification`.
        allow_pickle: allow pickle weights. Opening them runs code.
    """

    def __init__(
        self, folder: Path, options: SessionOptions, head: str, *, allow_pickle: bool = False
    ) -> None:
        import torch

        from octobert.core.heads import head_of
        from octobert.models import checkpoint, pooling

        self._answers = pooling.answers
        options = sessions.with_streams(options)
        _set_threads(options)
        self.streams, self.prepares_shapes, self.device = options.streams, False, None
        self.model = checkpoint.load_torch(folder, head, attention=None, allow_pickle=allow_pickle)
        self._head = head_of(head)
        self._pooler = (
            pooling.pooler_of(folder, self._head, allow_pickle=allow_pickle)
            if self._head.pooled
            else None
        )
        self.outputs = read_outputs(self._head.outputs)
        self.precision = "f32"
        self.threads = torch.get_num_threads()
        self._accepts = checkpoint.inputs_of(self.model)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        taken = {name: array for name, array in feeds.items() if name in self._accepts}
        given = self._answers(self.model, taken, self._head, self._pooler)
        return {name: given[name] for name in self.outputs}


class TorchGraphSession:
    """A float or quantized ONNX file as a PyTorch module on one device, eager or compiled.

    Args:
        path: the ONNX file.
        options: how to open it.
        device: `cpu` or `cuda`.
        compiled: compile it with torch.compile at the first run. Sizes are dynamic, so other shapes rarely compile again.

    Raises:
        TargetError: torch does not have the device or the precision.
        ModelError: `torch_graph` does not support an operator of the graph.
    """

    def __init__(
        self, path: Path, options: SessionOptions, device: str, *, compiled: bool = False
    ) -> None:
        available = probe(device)
        if not available.available:
            raise TargetError(
                f"torch cannot run on {device} here",
                where=str(path),
                got=available.missing,
                fix=available.install,
            )
        precision = options.precision or "f32"
        if precision not in _DTYPES:
            raise TargetError(
                "torch has no such precision",
                where=str(path),
                got=precision,
                expected=", ".join(_DTYPES),
            )
        import torch

        from octobert.core.onnx_files import ports_of, read_onnx
        from octobert.graph import torch_graph

        self._torch, self._device, self._path = torch, device, path
        options = sessions.with_streams(options)
        _set_threads(options)
        self.streams, self.prepares_shapes, self.device = options.streams, False, None
        # Without instructions for 8-bit products `torch._int_mm` is 50 to 70 times slower than float32 on a CPU.
        int_mm = device == "cuda" or bool(set(INTEGER_UNITS) & set(environment.current().features))
        with sessions.runtime_errors("torch cannot open the model", path, line=0):
            model = read_onnx(path)
            module: Any = torch_graph.to_torch(
                model, getattr(torch, _DTYPES[precision]), int_mm=int_mm
            ).to(device)
        self._module = torch.compile(module, dynamic=True, fullgraph=True) if compiled else module
        ports = ports_of(model)
        self._inputs = sessions.Inputs(ports.inputs, path)
        self._computed = [port.name for port in ports.outputs]
        self._reads = options.outputs_of(self._computed)
        self.outputs = tuple(self._reads)
        self.precision = "f16" if precision == "f32" and torch_graph.is_half(model) else precision
        self.threads = torch.get_num_threads()

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        torch = self._torch
        inputs = self._inputs.model_feeds(feeds)
        with sessions.runtime_errors("torch cannot run the model", self._path, line=0):
            tensors = [torch.from_numpy(array).to(self._device) for array in inputs.values()]
            try:
                with torch.inference_mode():
                    results = self._module(*tensors)
            except torch._dynamo.exc.TorchDynamoException as error:
                raise TargetError(
                    "torch cannot compile the model here",
                    where=str(self._path),
                    got=reason(error, 0),
                ) from error
        computed = dict(zip(self._computed, results, strict=True))
        return {name: computed[output].cpu().numpy() for name, output in self._reads.items()}
