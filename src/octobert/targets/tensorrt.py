"""TensorRT, through ONNX Runtime's provider or by itself.

Its networks are strongly typed now: precision is what the graph says, by Q/DQ pairs and explicit float16, and there is neither
a calibrator nor a flag for it. It wants symmetric int8 with zero point 0 (or FP8 on both sides of a product), weights as floats
behind a pair of their own, no quantized outputs and no int32 biases. Beside the model lie `build.sh`, a call of `trtexec` with
the profile of shapes, and the same profile as options of ONNX Runtime's provider.
"""

import json
from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, HEAD, LINEAR, RESIDUAL
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

PROVIDER = "TensorrtExecutionProvider"
OPTIONS = "provider_options.json"
BUILD = "build.sh"

CAPABILITIES = Capabilities(
    name="tensorrt",
    runtime="ort",
    description="TensorRT on NVIDIA GPUs, strongly typed",
    placement="tensorrt",
    activations=(("int8", True), ("float8e4m3", True)),
    weights=("int8", "float8e4m3"),
    weight_form="pair",
    weight_axis=1,
    roles=(*LINEAR, *ATTENTION, *RESIDUAL, *HEAD),
    float_parts=("float16", "bfloat16", "float32"),
    shapes="profiles",
    opset=(13, 21),
    refuses=("DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul"),
    int32_bias=False,
    integer_operators=("MatMul", "Gemm", "Add"),
    lowest_constant=-65504.0,
    formats=("onnx",),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS = {**ort.RUNTIME_OPTIONS, "trt_builder_optimization_level": ("3", "5"), "trt_cuda_graph_enable": ("0", "1")}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return ort.probe(PROVIDER, "pip install onnxruntime-gpu tensorrt")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The ONNX file, a call of `trtexec` that builds an engine, and options for ONNX Runtime's provider."""
    assert options.shape is not None
    shape, path = options.shape, files.put(quantized, folder, options)
    inputs = files.inputs_of(path)
    ends = {"min": (1, 1), "opt": (shape.batch, shape.sequence), "max": (shape.batch, shape.sequence)}
    shapes = {end: ",".join(f"{name}:{batch}x{length}" for name in inputs) for end, (batch, length) in ends.items()}
    profile = {f"trt_profile_{end}_shapes": text for end, text in shapes.items()}
    (path.parent / OPTIONS).write_text(json.dumps({**profile, "trt_engine_cache_enable": "1"}, indent=1))
    lines = [f"--{end}Shapes={text}" for end, text in shapes.items()]
    command = ["trtexec", f"--onnx={path.name}", "--stronglyTyped", *lines, "--saveEngine=model.plan"]
    script = "#!/bin/sh\n# Builds model.plan for the GPU of this machine. Precision is in the graph: no --int8, no --fp16.\n"
    (path.parent / BUILD).write_text(script + 'cd "$(dirname "$0")" && exec ' + " \\\n  ".join(command) + "\n")


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return files.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    given = json.loads((path.parent / OPTIONS).read_text())
    return ort.OrtSession(path, options, PROVIDER, {**given, "trt_engine_cache_path": options.cache or str(path.parent)})
