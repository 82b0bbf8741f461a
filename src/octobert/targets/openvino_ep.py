"""OpenVINO as an execution provider of ONNX Runtime, on the CPU.

It takes what `openvino-cpu` takes, and opens the ONNX file. The package onnxruntime-openvino contains its own build of
onnxruntime, which replaces the ordinary one: install it in a separate environment.
"""

from pathlib import Path

from octobert.core.session import SessionOptions
from octobert.targets import Target, openvino_cpu
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

CAPABILITIES = openvino_cpu.CAPABILITIES.but(
    name="openvino-ep",
    runtime="ort",
    description="OpenVINO as a provider of ONNX Runtime, on the CPU",
    baseline_precisions=("f32",),
    # The group of channels is in the metadata of the file, which the provider does not read.
    activations={"dynamic": None},
    weights={"types": ("int8",)},
    onnx={"domains": ("com.microsoft",)},
    static_lengths=False,
    formats=("onnx",),
    needs={"extra": "", "build": "onnxruntime-openvino"},
    written_anywhere=True,
)


def _settings(path: Path, options: SessionOptions) -> dict[str, str]:
    settings = {"device_type": "CPU", "precision": "FP32"}
    settings |= {"cache_dir": options.cache} if options.cache else {}
    return settings | ({"num_of_threads": str(options.threads)} if options.threads else {})


_PROVIDER = ort.Provider(
    "OpenVINOExecutionProvider",
    "pip install onnxruntime-openvino, in an environment without onnxruntime",
    _settings,
    # onnxruntime's own optimizer would round biases to int32 before OpenVINO gets the graph.
    optimize=False,
    refuse_fallback=True,
)

TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    export=files.write,
    open_session=_PROVIDER.open_session,
)
