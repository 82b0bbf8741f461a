"""MIGraphX on AMD GPUs, through ONNX Runtime's provider.

It compiles the graph for every new shape, so the files have a static shape. It takes symmetric int8 only, opsets up to 19,
and no dynamic quantization. Operators that are not quantized are explicit float16. `cache` keeps compiled models.
"""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, HEAD, LINEAR
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets.runtimes import ort
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import static_if_fixed

PROVIDER = "MIGraphXExecutionProvider"

CAPABILITIES = Capabilities(
    name="migraphx",
    runtime="ort",
    description="MIGraphX on AMD GPUs",
    device="AMD GPU",
    placement="matmul-attention",
    activations=(("int8", True),),
    weights=("int8",),
    weight_axis=1,
    roles=(*LINEAR, *ATTENTION, *HEAD),
    float_parts=("float16", "float32"),
    shapes="fixed",
    opset=(13, 19),
    refuses=("DynamicQuantizeLinear",),
    lowest_constant=-65504.0,
    formats=("onnx",),
    build="onnxruntime-migraphx",
    drivers=("rocm", "migraphx"),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS = {**ort.RUNTIME_OPTIONS, "migraphx_exhaustive_tune": ("0", "1")}
# The file of a package that this target opens.
model_file = files.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return ort.probe(PROVIDER, "pip install onnxruntime-migraphx")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph with a static shape."""
    files.write_static(quantized, folder, options)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file. A float graph has free axes and is compiled for each new shape."""
    settings = {"migraphx_model_cache_dir": options.cache} if options.cache else {}
    return static_if_fixed(ort.OrtSession(path, options, PROVIDER, settings, whole=True))
