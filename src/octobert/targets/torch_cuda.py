"""PyTorch on NVIDIA GPUs: the Q/DQ graph as a PyTorch module (`graph.torched`), compiled, without transformers.

Linear layers are integer products by `torch._int_mm`, with int32 sums; torch.compile fuses what lies between them, rounding
and rescaling included. Eager, each of those steps would be a pass over memory of its own: it is compiled by default, and the
first batch waits for that. Everything else 8-bit is rounded and computed in float.
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
        "written_anywhere": True,
        "status": "structurally checked, not run",
    }
)
# Its files are those of the CPU.
export, model_file = torch_cpu.export, torch_cpu.model_file
RUNTIME_OPTIONS = torch_cpu.RUNTIME_OPTIONS


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return torch.probe(DEVICE)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file; it is compiled if `options.compile` says so, or says nothing and `COMPILED` does."""
    compiled = COMPILED if options.compile is None else options.compile
    return torch.TorchGraphSession(path, options, DEVICE, compiled=compiled)
