"""OpenVINO on Intel NPUs: one static shape, and the IR also as an EPContext node for ONNX Runtime's OpenVINO provider.

`openvino_model.onnx` has one EPContext node that refers to the IR. Applications that use ONNX Runtime open that file.
"""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.graph.passes import epcontext
from octobert.targets.runtimes import openvino
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import StaticShapeSession

DEVICE = "NPU"

CAPABILITIES = Capabilities(
    name="openvino-npu",
    runtime="openvino",
    description="OpenVINO on Intel NPUs, also as EPContext for ONNX Runtime",
    device="Intel NPU",
    float_precisions=(),
    placement="matmul-scores",
    activations=(("uint8", False), ("int8", True), ("int8", False), ("uint8", True)),
    weights=("int8",),
    weight_axis=1,
    roles=(*LINEAR, *ATTENTION, *HEAD),
    simulated=(*RESIDUAL, *OUTPUTS),
    float_parts=("float32", "float16"),
    shapes="fixed",
    opset=(13, 22),
    lowest_constant=-65504.0,
    formats=("onnx", "openvino", "encapsulated"),
    extra="openvino",
    drivers=("intel-npu",),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}
# The file of a package that this target opens.
model_file = openvino.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return openvino.probe(DEVICE)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph with a static shape, its IR, and an ONNX file with an EPContext node that refers to the IR."""
    openvino.convert(files.write_static(quantized, folder, options), model_file(folder))
    epcontext.write(model_file(folder), model_file(folder).with_suffix(".onnx"), device="NPU")


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file, in float16."""
    return StaticShapeSession(openvino.OpenvinoSession(path, options.model_copy(update={"precision": "f16"}), DEVICE))
