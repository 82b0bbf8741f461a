"""PyTorch on NVIDIA GPUs: the Q/DQ graph as a compiled PyTorch module, without transformers.

Linear layers are integer products by `torch._int_mm`, with int32 sums. torch.compile fuses the operators between them,
rounding and rescaling included; in eager mode each would be a pass over memory. The first batch waits for the compilation.
All other quantized operators are rounded and computed in float.
"""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.session import Session, SessionOptions
from octobert.targets import torch_cpu
from octobert.targets.runtimes import torch

DEVICE = "cuda"
COMPILED = True

CAPABILITIES: Capabilities = torch_cpu.CAPABILITIES.model_copy(
    update={
        "name": "torch-cuda",
        "description": "PyTorch on NVIDIA GPUs, compiled",
        "device": "NVIDIA GPU",
        "float_model": "graph",
        "drivers": ("nvidia",),
        "written_anywhere": True,
        "status": "structurally checked, not run",
    }
)
# The files are the same as for the CPU.
export, model_file = torch_cpu.export, torch_cpu.model_file
RUNTIME_OPTIONS = torch_cpu.RUNTIME_OPTIONS


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return torch.probe(DEVICE)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file; `options.compile` says whether it is compiled, else `COMPILED` does."""
    compiled = COMPILED if options.compile is None else options.compile
    return torch.TorchGraphSession(path, options, DEVICE, compiled=compiled)
