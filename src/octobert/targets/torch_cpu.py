"""PyTorch on the CPU: the Q/DQ graph as a PyTorch module (`graph.torched`), without transformers.

Linear layers are exact integer products, by `torch._int_mm` where the CPU has instructions for 8-bit products (not measured).
Where it has not, that is 50 to 70 times slower than float32, and float32 units compute the same integers, which gains no time:
the target is for those who deploy in PyTorch, and for seeing what a GPU will answer. It runs eager unless asked to compile.
"""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.targets.runtimes import torch
from octobert.targets.shared import files

DEVICE = "cpu"
COMPILED = False

CAPABILITIES = Capabilities(
    name="torch-cpu",
    runtime="torch",
    description="PyTorch on the CPU",
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
    status="run here",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return torch.probe(DEVICE)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The ONNX file itself."""
    files.put(quantized, folder, options)


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return files.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file; it is compiled if `options.compile` says so, or says nothing and `COMPILED` does."""
    compiled = COMPILED if options.compile is None else options.compile
    return torch.TorchGraphSession(path, options, DEVICE, compiled=compiled)
