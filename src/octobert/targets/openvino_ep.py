"""OpenVINO as an execution provider of ONNX Runtime, on the CPU.

It takes what `openvino-cpu` takes, and opens the ONNX file. The package onnxruntime-openvino contains its own build of
onnxruntime, which replaces the ordinary one: install it in a separate environment.
"""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.targets import openvino_cpu
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

PROVIDER = "OpenVINOExecutionProvider"

CAPABILITIES: Capabilities = openvino_cpu.CAPABILITIES.model_copy(
    update={
        "name": "openvino-ep",
        "runtime": "ort",
        "description": "OpenVINO as a provider of ONNX Runtime, on the CPU",
        "float_precisions": ("f32",),
        "static_lengths": False,
        "domains": ("com.microsoft",),
        "formats": ("onnx",),
        "extra": "",
        "build": "onnxruntime-openvino",
        "written_anywhere": True,
    }
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}
# The file of a package that this target opens.
model_file = files.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return ort.probe(PROVIDER, "pip install onnxruntime-openvino, in an environment without onnxruntime")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph as it is."""
    files.write(quantized, folder, options)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    settings = {"device_type": "CPU", "precision": "FP32"}
    settings |= {"cache_dir": options.cache} if options.cache else {}
    settings |= {"num_of_threads": str(options.threads)} if options.threads else {}
    # onnxruntime's own optimizer would round biases to int32 before OpenVINO gets the graph.
    return ort.OrtSession(path, options, PROVIDER, settings, optimize=False, whole=True)
