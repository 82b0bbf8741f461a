"""MIGraphX on AMD GPUs, through ONNX Runtime's provider.

It compiles anew for every shape, so files are of one shape; takes symmetric int8 only, opsets up to 19, and no dynamic
quantization. What is not quantized is explicit float16. Compiled models are kept where `cache` says.
"""

from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import ATTENTION, HEAD, LINEAR
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets.runtimes import ort
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import FixedSession

PROVIDER = "MIGraphXExecutionProvider"

CAPABILITIES = Capabilities(
    name="migraphx",
    runtime="ort",
    description="MIGraphX on AMD GPUs",
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
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS = {**ort.RUNTIME_OPTIONS, "migraphx_exhaustive_tune": ("0", "1")}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return ort.probe(PROVIDER, "pip install onnxruntime-migraphx")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The ONNX file with its shape fixed."""
    files.put_fixed(quantized, folder, options)


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return files.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    kept = {"migraphx_model_cache_dir": options.cache} if options.cache else {}
    return FixedSession(ort.OrtSession(path, options, PROVIDER, kept, whole=True))
