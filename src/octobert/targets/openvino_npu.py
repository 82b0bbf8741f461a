"""OpenVINO on Intel NPUs: one static shape, and the IR also as an EPContext node for ONNX Runtime's OpenVINO provider.

`openvino_model.onnx` has one EPContext node that refers to the IR. Applications that use ONNX Runtime open that file.
"""

from pathlib import Path

from octobert.core.plan import ATTENTION, HEAD, LINEAR
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.graph.passes import epcontext, static_shapes
from octobert.targets import openvino_gpu
from octobert.targets.runtimes import NO_OPTIONS, openvino
from octobert.targets.shared import files

CAPABILITIES = openvino_gpu.CAPABILITIES.model_copy(
    update={
        "name": "openvino-npu",
        "description": "OpenVINO on Intel NPUs, also as EPContext for ONNX Runtime",
        "device": "Intel NPU",
        "float_precisions": (),
        "placement": "matmul-scores",
        "roles": (*LINEAR, *ATTENTION, *HEAD),
        "shapes": "fixed",
        "static_lengths": False,
        "formats": ("onnx", "openvino", "encapsulated"),
        "drivers": ("intel-npu",),
    }
)
RUNTIME_OPTIONS = NO_OPTIONS

_DEVICE = openvino.Device("NPU")
probe, model_file = _DEVICE.probe, openvino.model_file


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph with a static shape, its IR, and an ONNX file with an EPContext node that refers to the IR."""
    openvino.convert(
        files.write(quantized, folder, options, (static_shapes.STATIC,)), model_file(folder)
    )
    epcontext.write(model_file(folder), model_file(folder).with_suffix(".onnx"), device="NPU")


def open_session(path: Path, options: SessionOptions) -> Session:
    """Compile an IR or an ONNX file, in float16 whatever `options` name: the device has no other float type."""
    return _DEVICE.open_session(path, options.model_copy(update={"precision": "f16"}))
