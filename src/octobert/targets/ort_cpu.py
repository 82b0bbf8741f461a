"""ONNX Runtime on x86 and Arm CPUs.

Linear layers run as MatMulIntegerToFloat: 8-bit inputs and weights, float output. GELU, residual adds and LayerNorm stay
fused in float. This fusion exists for uint8 activations. On x86, an int8 activation that several products read makes them
run in float.
"""

from pathlib import Path

from octobert.core.capability import INTEGER_UNITS, Capabilities, Probe
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets.runtimes import ort
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import static_if_fixed

PROVIDER = ort.CPU

CAPABILITIES = Capabilities(
    name="ort-cpu",
    runtime="ort",
    description="ONNX Runtime on the CPU",
    placement="matmul",
    activations=(("uint8", False), ("uint8", True)),
    simulated_activations=(("int8", True), ("int8", False), ("uint16", False), ("int16", True), ("float8e4m3", True)),
    dynamic=True,
    saturates_without=INTEGER_UNITS,
    weights=("int8", "uint8", "float8e4m3"),
    weight_axis=1,
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated=(*RESIDUAL, *OUTPUTS),
    float_parts=("float32", "float16"),
    opset=(13, 25),
    domains=("com.microsoft",),
    qoperator=True,
    fast_norms=4,
    formats=("onnx",),
    status="run here",
)
RUNTIME_OPTIONS = ort.RUNTIME_OPTIONS
# The file of a package that this target opens.
model_file = files.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return ort.probe(PROVIDER)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph as it is, or its products as integer operators."""
    files.write(quantized, folder, options)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    return static_if_fixed(ort.OrtSession(path, options, PROVIDER))
