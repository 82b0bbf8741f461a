"""TensorRT, through ONNX Runtime's provider or on its own.

Its networks are strongly typed: the graph says every precision by Q/DQ and explicit float16; there is no calibrator and no
flag. It takes symmetric int8 with zero point 0 (or FP8 on both sides of a product), float weights with their own Q/DQ, no
quantized outputs and no int32 biases. The package also has `build.sh`, a call of `trtexec` with a profile of shapes, and
the same profile as options of ONNX Runtime's provider.
"""

import json
from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, HEAD, LINEAR, RESIDUAL
from octobert.core.session import ExportOptions, Session, SessionOptions, StaticShape
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

PROVIDER = "TensorrtExecutionProvider"
OPTIONS = "provider_options.json"
BUILD = "build.sh"

CAPABILITIES = Capabilities(
    name="tensorrt",
    runtime="ort",
    description="TensorRT on NVIDIA GPUs, strongly typed",
    device="NVIDIA GPU",
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
    extra="gpu",
    build="onnxruntime-gpu",
    drivers=("nvidia", "cuda", "cudnn", "tensorrt"),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS = {**ort.RUNTIME_OPTIONS, "trt_builder_optimization_level": ("3", "5"), "trt_cuda_graph_enable": ("0", "1")}
# The file of a package that this target opens.
model_file = files.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return ort.probe(PROVIDER, "pip install onnxruntime-gpu tensorrt")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph, a script that builds an engine with `trtexec`, and the options of ONNX Runtime's provider."""
    assert options.shape is not None
    path = files.write(quantized, folder, options)
    shapes = profile_of(path, options.shape)
    profile = {f"trt_profile_{end}_shapes": text for end, text in shapes.items()}
    (path.parent / OPTIONS).write_text(json.dumps({**profile, "trt_engine_cache_enable": "1"}, indent=1))
    lines = [f"--{end}Shapes={text}" for end, text in shapes.items()]
    command = ["trtexec", f"--onnx={path.name}", "--stronglyTyped", *lines, "--saveEngine=model.plan"]
    script = (
        "#!/bin/sh\n# Builds model.plan for the GPU of this machine. The graph says its precisions: no --int8, no --fp16.\n"
    )
    (path.parent / BUILD).write_text(script + 'cd "$(dirname "$0")" && exec ' + " \\\n  ".join(command) + "\n")


def profile_of(path: Path, shape: StaticShape) -> dict[str, str]:
    """Return the profile of shapes of a file: `min`, `opt` and `max` → the shape of every input, such as `input_ids:1x128`."""
    inputs = files.inputs_of(path)
    ends = {"min": (1, 1), "opt": (shape.batch, shape.sequence), "max": (shape.batch, shape.sequence)}
    return {end: ",".join(f"{name}:{batch}x{length}" for name in inputs) for end, (batch, length) in ends.items()}


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file, with the profile beside it if there is one. Engines are kept in `cache`."""
    profile = path.parent / OPTIONS
    settings = json.loads(profile.read_text()) if profile.is_file() else {}
    return ort.OrtSession(path, options, PROVIDER, {**settings, "trt_engine_cache_path": options.cache or str(path.parent)})
