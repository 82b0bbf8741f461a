"""OpenVINO on Intel NPUs: one shape, and the IR once more inside an ONNX file, for ONNX Runtime's OpenVINO provider.

`openvino/openvino_model.onnx` is one EPContext node that names the IR beside it; applications that know ONNX Runtime open that.
"""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.graph.passes import epcontext
from octobert.targets.runtimes import openvino
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import FixedSession

DEVICE = "NPU"

CAPABILITIES = Capabilities(
    name="openvino-npu",
    runtime="openvino",
    description="OpenVINO on Intel NPUs, also encapsulated for ONNX Runtime",
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
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return openvino.probe(DEVICE)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The ONNX file with its shape fixed, the IR, and the ONNX file that carries it."""
    openvino.convert(files.put_fixed(quantized, folder, options), model_file(folder))
    epcontext.encapsulate(model_file(folder), model_file(folder).with_suffix(".onnx"), device="NPU")


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return openvino.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file."""
    return FixedSession(openvino.OpenvinoSession(path, options.model_copy(update={"precision": "f16"}), DEVICE))
