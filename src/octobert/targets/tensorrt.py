"""TensorRT, through ONNX Runtime's provider or on its own.

Its networks are strongly typed: the graph says every precision by Q/DQ and explicit float16; there is no calibrator and no
flag. It takes symmetric int8 with zero point 0 (or FP8 on both sides of a product), float weights with their own Q/DQ, no
quantized outputs and no int32 biases. The package also has `build.sh`, a call of `trtexec` with a profile of shapes, and
the same profile as options of ONNX Runtime's provider.
"""

import json
import re
from pathlib import Path

from octobert.core.capability import (
    Activations,
    Capabilities,
    FloatParts,
    Needs,
    OnnxRules,
    Weights,
)
from octobert.core.model_config import read_object
from octobert.core.onnx_files import INPUTS
from octobert.core.plan import ATTENTION, HEAD, LINEAR, RESIDUAL
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets import Target
from octobert.targets.runtimes import ort
from octobert.targets.shared import files, sessions

OPTIONS = "provider_options.json"
BUILD = "build.sh"

CAPABILITIES = Capabilities(
    name="tensorrt",
    runtime="ort",
    description="TensorRT on NVIDIA GPUs, strongly typed",
    device="NVIDIA GPU",
    placement="tensorrt",
    activations=Activations(computed=(("int8", True), ("float8e4m3", True))),
    weights=Weights(types=("int8", "float8e4m3"), form="pair", int32_bias=False),
    float_parts=FloatParts(in_files=("float16", "bfloat16", "float32")),
    roles=(*LINEAR, *ATTENTION, *RESIDUAL, *HEAD),
    integer_operators=("MatMul", "Gemm", "Add"),
    onnx=OnnxRules(
        opset=(13, 21),
        refuses=("DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul"),
        lowest_constant=-65504.0,
    ),
    shapes="profiles",
    needs=Needs(
        extra="gpu", build="onnxruntime-gpu", drivers=("nvidia", "cuda", "cudnn", "tensorrt")
    ),
    written_anywhere=True,
    status="structurally checked, not run",
)


def _settings(path: Path, options: SessionOptions) -> dict[str, str]:
    """The profile beside the file, if there is one. Engines are kept in `cache`."""
    return {**read_profile(path), "trt_engine_cache_path": options.cache or str(path.parent)}


_PROVIDER = ort.Provider(
    "TensorrtExecutionProvider", "pip install onnxruntime-gpu tensorrt", _settings
)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file. Batches larger than its profile run in parts."""
    return within_profile(_PROVIDER.open_session(path, options), path)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph, a script that builds an engine with `trtexec`, and the options of ONNX Runtime's provider."""
    path, shapes = write_profiled(
        quantized, folder, options, "trt_profile_{}_shapes", {"trt_engine_cache_enable": "1"}
    )
    lines = [f"--{end}Shapes={text}" for end, text in shapes.items()]
    command = [
        "trtexec",
        f"--onnx={path.name}",
        "--stronglyTyped",
        *lines,
        "--saveEngine=model.plan",
    ]
    script = (
        "#!/bin/sh\n# Builds model.plan for the GPU of this machine. "
        "The graph says its precisions: no --int8, no --fp16.\n"
    )
    (path.parent / BUILD).write_text(
        script + 'cd "$(dirname "$0")" && exec ' + " \\\n  ".join(command) + "\n"
    )


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    export=export,
    open_session=open_session,
    runtime_options={
        **ort.RUNTIME_OPTIONS,
        "trt_builder_optimization_level": ("3", "5"),
        "trt_cuda_graph_enable": ("0", "1"),
    },
)


def write_profiled(
    quantized: Path, folder: Path, options: ExportOptions, entry: str, others: dict[str, str]
) -> tuple[Path, dict[str, str]]:
    """Write the Q/DQ graph, and beside it the profile of its shapes as options of a provider.

    Args:
        quantized, folder, options: as for `export`.
        entry: name of the option for one end of the profile, with {} for the end.
        others: further options of the provider.

    Returns:
        The file; and the profile: `min`, `opt` and `max` → the shape of every input, such as `input_ids:1x128`.
    """
    assert options.shape is not None
    path = files.write(quantized, folder, options)
    largest = (options.shape.batch, options.shape.sequence)
    inputs = files.inputs_of(path)
    # What the axes of other graphs are is not known.
    bounds = {"min": (1, 1), "opt": largest, "max": largest} if {*inputs} <= {*INPUTS} else {}
    shapes = {
        end: ",".join(f"{name}:{batch}x{length}" for name in inputs)
        for end, (batch, length) in bounds.items()
    }
    profile = {entry.format(end): text for end, text in shapes.items()}
    (path.parent / OPTIONS).write_text(json.dumps({**profile, **others}, indent=1))
    return path, shapes


def within_profile(session: Session, path: Path) -> Session:
    """Return a session that keeps to the profile beside a file: engines refuse what lies outside.

    Args:
        session: of the file.
        path: the file.
    """
    largest = [text for name, text in read_profile(path).items() if "max" in name]
    sizes = re.search(r":(\d+)x(\d+)", largest[0]) if largest else None
    if sizes is None or not isinstance(session, ort.OrtSession):
        return session
    return sessions.StaticShapeSession(session, (int(sizes[1]), int(sizes[2])))


def read_profile(path: Path) -> dict[str, str]:
    """Return the options of a provider that lie beside a file; none if there are none."""
    stated = read_object(path.parent / OPTIONS, missing_ok=True)
    return {name: str(value) for name, value in stated.items()}
