"""OpenVINO on Intel GPUs: the files of `openvino-cpu`, what is not quantized computed in float16."""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import RuntimeOption, Session, SessionOptions
from octobert.targets import openvino_cpu
from octobert.targets.runtimes import openvino

DEVICE = "GPU"

CAPABILITIES = Capabilities(
    name="openvino-gpu",
    runtime="openvino",
    description="OpenVINO on Intel GPUs",
    placement="matmul",
    activations=(("uint8", False), ("int8", True), ("int8", False), ("uint8", True)),
    weights=("int8",),
    weight_axis=1,
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated=(*RESIDUAL, *OUTPUTS),
    float_parts=("float32", "float16"),
    opset=(13, 22),
    lowest_constant=-65504.0,
    formats=("onnx", "openvino"),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}

# Its files are those of the CPU.
export, model_file = openvino_cpu.export, openvino_cpu.model_file


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return openvino.probe(DEVICE)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file."""
    return openvino.OpenvinoSession(path, options.model_copy(update={"precision": "f16"}), DEVICE)
