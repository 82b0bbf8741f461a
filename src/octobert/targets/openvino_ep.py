"""OpenVINO as a provider of ONNX Runtime, on the CPU.

The package onnxruntime-openvino brings a build of onnxruntime of its own that shadows the ordinary one: give it an environment
of its own. What suits `openvino-cpu` suits it; the file it opens is the ONNX file.
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
        "domains": ("com.microsoft",),
        "formats": ("onnx",),
        "written_anywhere": True,
    }
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return ort.probe(PROVIDER, "pip install onnxruntime-openvino, in an environment without onnxruntime")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The ONNX file itself."""
    files.put(quantized, folder, options)


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return files.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    settings = {"device_type": "CPU", "precision": "FP32"}
    settings |= {"cache_dir": options.cache} if options.cache else {}
    settings |= {"num_of_threads": str(options.threads)} if options.threads else {}
    # onnxruntime's own optimizer would round biases to int32 before OpenVINO sees them.
    return ort.OrtSession(path, options, PROVIDER, settings, optimize=False, whole=True)
