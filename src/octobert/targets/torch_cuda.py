"""PyTorch on NVIDIA GPUs: the Q/DQ graph as a PyTorch module (`graph.torched`), compiled, without transformers.

Linear layers are integer products by `torch._int_mm`, with int32 sums; torch.compile fuses what lies between them, rounding
and rescaling included. Eager, each of those steps would be a pass over memory of its own: it is compiled by default, and the
first batch waits for that. Everything else 8-bit is rounded and computed in float.
"""

from pathlib import Path

from octobert.capability import Capabilities, Probe
from octobert.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.session import Form, Session, SessionOptions
from octobert.targets import _files, _torch

DEVICE = "cuda"
COMPILED = True

CAPABILITIES = Capabilities(
    name="torch-cuda",
    runtime="torch",
    description="PyTorch on NVIDIA GPUs, compiled",
    placement="matmul",
    activations=(("int8", True), ("int8", False), ("uint8", False), ("uint8", True)),
    simulated_activations=(("uint16", False), ("int16", True)),
    weights=("int8",),
    weight_axis=1,
    roles=(*LINEAR, *HEAD, *EMBEDDING),
    simulated=(*ATTENTION, *RESIDUAL, *OUTPUTS),
    float_parts=("float32", "float16", "bfloat16"),
    opset=(13, 25),
    formats=("onnx",),
    written_anywhere=True,
    status="structurally checked, not run",
)


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return _torch.probe(DEVICE)


def export(quantized: Path, folder: Path, form: Form) -> None:
    """The ONNX file itself."""
    _files.put(quantized, folder, form)


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return _files.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file; it is compiled if `options.compile` says so, or says nothing and `COMPILED` does."""
    compiled = COMPILED if options.compile is None else options.compile
    return _torch.TorchGraphSession(path, options, DEVICE, compiled=compiled)
