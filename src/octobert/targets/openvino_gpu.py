"""OpenVINO on Intel GPUs. It opens the files of `openvino-cpu`; operators that are not quantized run in float16."""

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
    device="Intel GPU",
    float_precisions=("f32", "f16"),
    placement="matmul",
    activations=(("uint8", False), ("int8", True), ("int8", False), ("uint8", True)),
    weights=("int8",),
    weight_axis=1,
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated=(*RESIDUAL, *OUTPUTS),
    float_parts=("float32", "float16"),
    static_lengths=True,
    opset=(13, 22),
    lowest_constant=-65504.0,
    formats=("onnx", "openvino"),
    extra="openvino",
    drivers=("intel-gpu",),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}

# The files are the same as for the CPU.
export, model_file = openvino_cpu.export, openvino_cpu.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return openvino.probe(DEVICE)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file, in float16 unless `options` name a precision."""
    return openvino.OpenvinoSession(path, options.model_copy(update={"precision": options.precision or "f16"}), DEVICE)
