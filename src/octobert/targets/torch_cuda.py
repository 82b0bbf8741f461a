"""PyTorch on NVIDIA GPUs: the Q/DQ graph as a PyTorch module (`graph.torched`), compiled, without transformers.

Linear layers are integer products by `torch._int_mm`, with int32 sums; torch.compile fuses what lies between them, rounding
and rescaling included. Eager, each of those steps would be a pass over memory of its own: it is compiled by default, and the
first batch waits for that. Everything else 8-bit is rounded and computed in float.
"""

from pathlib import Path

from octobert.capability import Capabilities, Probe
from octobert.session import Session, SessionOptions
from octobert.targets import _torch, torch_cpu

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


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return _torch.probe(DEVICE)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file; it is compiled if `options.compile` says so, or says nothing and `COMPILED` does."""
    compiled = COMPILED if options.compile is None else options.compile
    return _torch.TorchGraphSession(path, options, DEVICE, compiled=compiled)
