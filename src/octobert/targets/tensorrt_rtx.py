"""TensorRT for RTX, on GeForce and workstation GPUs, through ONNX Runtime's provider NvTensorRTRTX.

It compiles the graph of `tensorrt`: a typed network with symmetric int8 Q/DQ, float weights with their own, and explicit
float16 for the other operators. The package also has the profile of shapes as options of the provider, which keeps compiled
engines in `cache`. Names of options were read in the provider's documentation; the target has not been run.
"""

from pathlib import Path

from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets import Target, tensorrt
from octobert.targets.runtimes import ort

CAPABILITIES = tensorrt.CAPABILITIES.but(
    name="tensorrt-rtx",
    description="TensorRT for RTX on NVIDIA GPUs, strongly typed",
    device="NVIDIA RTX GPU",
    needs={"extra": "", "build": "", "drivers": ("nvidia", "tensorrt-rtx")},
)
_PROVIDER = ort.Provider(
    "NvTensorRTRTXExecutionProvider",
    "install onnxruntime with the TensorRT RTX provider, for Windows or built from source",
    lambda path, options: (
        tensorrt.read_profile(path)
        | ({"nv_runtime_cache_path": options.cache} if options.cache else {})
    ),
)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file. Batches larger than its profile run in parts."""
    return tensorrt.within_profile(_PROVIDER.open_session(path, options), path)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph, and the options of ONNX Runtime's provider with the profile of shapes."""
    tensorrt.write_profiled(quantized, folder, options, "nv_profile_{}_shapes", {})


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    export=export,
    open_session=open_session,
    runtime_options={**ort.RUNTIME_OPTIONS, "enable_cuda_graph": ("0", "1")},
)
