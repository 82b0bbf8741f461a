"""OpenVINO on x86 CPUs.

Its low-precision transformations take Q/DQ on the inputs of matrix products, in any 8-bit type, and fuse the rest. Its
attention kernel takes Q and K in 8 bits if they are symmetric, and is slower with 8-bit probabilities; without VNNI their
product saturates, while that of asymmetric ones is computed in float. The float parts run in true f32: bf16 gains nothing
beside 8-bit products and costs accuracy.
"""

from pathlib import Path

from octobert.core.capability import INTEGER_UNITS, Capabilities, Probe
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets.runtimes import openvino
from octobert.targets.shared import files

DEVICE = "CPU"

CAPABILITIES = Capabilities(
    name="openvino-cpu",
    runtime="openvino",
    description="OpenVINO on the CPU",
    placement="matmul-scores",
    activations=(("uint8", False), ("uint8", True), ("int8", False), ("int8", True)),
    symmetric_int8=("scores.query", "scores.key"),
    simulated_activations=(("uint16", False), ("int16", True)),
    saturates_without=INTEGER_UNITS,
    weights=("int8",),
    weight_axis=1,
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated=(*RESIDUAL, *OUTPUTS),
    float_parts=("float32", "float16"),
    opset=(13, 22),
    formats=("onnx", "openvino"),
    status="run here",
)
RUNTIME_OPTIONS = openvino.RUNTIME_OPTIONS


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return openvino.probe(DEVICE)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The IR beside the ONNX file."""
    openvino.convert(files.put(quantized, folder, options), model_file(folder))


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return openvino.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file."""
    return openvino.OpenvinoSession(path, options, DEVICE)
