"""TensorRT for RTX, on GeForce and workstation GPUs, through ONNX Runtime's provider NvTensorRTRTX.

It compiles the graph of `tensorrt`: a typed network with symmetric int8 Q/DQ, float weights with their own, and explicit
float16 for the other operators. The package also has the profile of shapes as options of the provider, which keeps compiled
engines in `cache`. Names of options were read in the provider's documentation; the target has not been run.
"""

import json
from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.targets import tensorrt
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

PROVIDER = "NvTensorRTRTXExecutionProvider"
OPTIONS = tensorrt.OPTIONS

CAPABILITIES: Capabilities = tensorrt.CAPABILITIES.model_copy(
    update={
        "name": "tensorrt-rtx",
        "description": "TensorRT for RTX on NVIDIA GPUs, strongly typed",
        "device": "NVIDIA RTX GPU",
        "extra": "",
        "build": "",
        "drivers": ("nvidia", "tensorrt-rtx"),
    }
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {**ort.RUNTIME_OPTIONS, "enable_cuda_graph": ("0", "1")}
# The file of a package that this target opens.
model_file = files.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return ort.probe(PROVIDER, "install onnxruntime with the TensorRT RTX provider, for Windows or built from source")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph, and the options of ONNX Runtime's provider with the profile of shapes."""
    assert options.shape is not None
    path = files.write(quantized, folder, options)
    profile = {f"nv_profile_{end}_shapes": text for end, text in tensorrt.profile_of(path, options.shape).items()}
    (path.parent / OPTIONS).write_text(json.dumps(profile, indent=1))


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file, with the profile beside it if there is one. Compiled engines are kept in `cache`."""
    profile = path.parent / OPTIONS
    settings = json.loads(profile.read_text()) if profile.is_file() else {}
    kept = {"nv_runtime_cache_path": options.cache} if options.cache else {}
    return ort.OrtSession(path, options, PROVIDER, {**settings, **kept})
