"""PyTorch: probe it, open a checkpoint as `transformers` runs it, or an ONNX file of octobert's own, run.

`TorchSession` is the baseline that most users come from; `TorchGraphSession` opens ONNX files, and needs no transformers.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core import environment
from octobert.core.capability import INTEGER_UNITS, Probe
from octobert.core.errors import TargetError
from octobert.core.session import Feeds, SessionOptions

INSTALL = "pip install 'octobert[torch]'"
_WORDS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def probe(device: str) -> Probe:
    """Whether torch is installed and has a device."""
    if importlib.util.find_spec("torch") is None:
        return Probe(available=False, missing="the package torch is not installed", install=INSTALL)
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        missing = "torch sees no CUDA device" if torch.version.cuda else "this build of torch has no CUDA"
        return Probe(available=False, version=torch.__version__, missing=missing, install="pip install torch, built for CUDA")
    return Probe(available=True, version=torch.__version__)


def _set_threads(options: SessionOptions) -> None:
    """Threads of one inference; a setting of the whole process."""
    import torch

    if options.threads or options.streams > 1:
        torch.set_num_threads(options.threads or max(1, environment.cores() // options.streams))


class TorchSession:
    """A checkpoint folder run by `transformers`, attention as the library chooses it, no compilation."""

    def __init__(self, folder: Path, options: SessionOptions, head: str, *, allow_pickle: bool = False) -> None:
        import torch

        from octobert.models import checkpoint

        self._torch = torch
        _set_threads(options)
        self.streams, self.prepares_shapes = options.streams, False
        self.model = checkpoint.load_torch(folder, head, attention=None, allow_pickle=allow_pickle)
        self._head = head
        self._pooling = checkpoint.pooling_of(folder)
        self.inputs = ("input_ids", "attention_mask", "token_type_ids")
        self.outputs = checkpoint.OUTPUTS[head]
        self.precision = "f32"
        self.threads = torch.get_num_threads()
        self._accepts = checkpoint.inputs_of(self.model)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        torch = self._torch
        tensors = {name: torch.from_numpy(array) for name, array in feeds.items() if name in self._accepts}
        with torch.inference_mode():
            result = self.model(**tensors)
        if self._head != "embedding":
            return {name: result[name].numpy() for name in self.outputs}
        from octobert.models import checkpoint

        states = result["last_hidden_state"]
        return {"sentence_embedding": checkpoint.pool(states, tensors["attention_mask"], self._pooling).numpy()}


class TorchGraphSession:
    """A float or quantized ONNX file as a PyTorch module on one device, eager or compiled.

    Args:
        device: `cpu` or `cuda`.
        compiled: by torch.compile, at the first run; sizes are dynamic, so that few others compile again.
        mode: of torch.compile, such as `max-autotune`.

    Raises:
        TargetError: the device is not there.
        ModelError: the graph has an operator that `graph.torched` does not know.
    """

    def __init__(
        self, path: Path, options: SessionOptions, device: str, *, compiled: bool = False, mode: str | None = None
    ) -> None:
        found = probe(device)
        if not found.available:
            raise TargetError(f"torch cannot run on {device} here", where=str(path), got=found.missing, fix=found.install)
        if options.precision not in _WORDS:
            words = ", ".join(_WORDS)
            raise TargetError("torch has no such precision", where=str(path), got=options.precision, expected=words)
        import torch

        from octobert.targets.shared import torch_graph

        self._torch, self._device, self._path = torch, device, path
        _set_threads(options)
        self.streams, self.prepares_shapes = options.streams, False
        model = ir.load(path)
        # With AVX2 alone `torch._int_mm` is 50 to 70 times slower than float32.
        units = device == "cuda" or bool(set(INTEGER_UNITS) & set(environment.current().features))
        dtype = getattr(torch, _WORDS[options.precision])
        module: Any = torch_graph.to_torch(model, dtype, int_mm=units).to(device)
        self._module = torch.compile(module, dynamic=True, fullgraph=True, mode=mode) if compiled else module
        self.inputs = tuple(str(value.name) for value in model.graph.inputs)
        self.outputs = tuple(str(value.name) for value in model.graph.outputs)
        self.precision = "f16" if options.precision == "f32" and torch_graph.is_half(model) else options.precision
        self.threads = torch.get_num_threads()

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        torch = self._torch
        tensors = [torch.from_numpy(feeds[name]).to(self._device) for name in self.inputs]
        try:
            with torch.inference_mode():
                results = self._module(*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:
            got = str(error).strip().splitlines()[0][:300]
            fix = "open it eager (compile: false in SessionOptions)"
            raise TargetError("torch cannot compile the model here", where=str(self._path), got=got, fix=fix) from error
        return {name: result.cpu().numpy() for name, result in zip(self.outputs, results, strict=True)}
