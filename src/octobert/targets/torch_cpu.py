"""PyTorch on the CPU: the Q/DQ graph as a PyTorch module, without transformers.

Linear layers are exact integer products. With VNNI or AMX they run in `torch._int_mm`, several times as fast as float32.
Without, that is 50 to 70 times slower than float32, so float32 units compute the same integers, which is not faster than
the float model. Models run eagerly unless `SessionOptions.compile` is set.
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
    float_model="checkpoint",
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
    extra="torch",
    status="run here",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}
# The file of a package that this target opens.
model_file = files.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return torch.probe(DEVICE)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph as it is."""
    files.write(quantized, folder, options)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file; `options.compile` says whether it is compiled, else `COMPILED` does."""
    compiled = COMPILED if options.compile is None else options.compile
    return torch.TorchGraphSession(path, options, DEVICE, compiled=compiled)
