"""AMD Ryzen AI NPUs, through ONNX Runtime's Vitis AI provider.

As for `qnn`: 16-bit activations and 8-bit weights, one scale per weight, one static shape. The provider recommends opset
17, where ONNX has no 16-bit Q/DQ: the graph uses ONNX Runtime's own operators of the domain com.microsoft. The provider
reads from the file's metadata how it was quantized.
"""

from pathlib import Path

import onnx_ir as ir

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import WHOLE
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.graph.passes import contrib
from octobert.targets.runtimes import ort
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import StaticShapeSession

PROVIDER = "VitisAIExecutionProvider"

CAPABILITIES = Capabilities(
    name="vitisai",
    runtime="ort",
    description="AMD Ryzen AI NPUs, ONNX Runtime's Vitis AI provider",
    device="AMD NPU",
    float_precisions=(),
    placement="whole",
    activations=(("uint16", False), ("uint8", False), ("int8", True)),
    weights=("int8", "uint8"),
    weight_axis=None,
    roles=WHOLE,
    shapes="fixed",
    opset=(13, 20),
    domains=("com.microsoft",),
    refuses=("DynamicQuantizeLinear", "MatMulInteger"),
    integer_operators=("MatMul", "Gemm", "Add", "Mul", "Softmax", "LayerNormalization", "Gelu", "Tanh"),
    whole_graph=True,
    lowest_constant=-3.0e30,
    formats=("onnx",),
    drivers=("ryzen-ai",),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}
# The file of a package that this target opens.
model_file = files.model_file


def probe() -> Probe:
    """Return whether this target can run on this machine."""
    return ort.probe(PROVIDER, "install AMD's Ryzen AI software")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the graph with a static shape, with ONNX Runtime's own operators where ONNX has none, and with metadata."""
    files.write_static(quantized, folder, options, contrib.fuse_gelu_, contrib.pairs_, _describe_)


def _describe_(model: ir.Model) -> None:
    """Add the metadata that the provider reads: types by the names of onnxruntime's quantizer. Capture wrote the model type."""
    types = contrib.pair_types(model)
    metadata = {"activation_dtype": types.activation, "weight_dtype": types.weight, "quant_type": "OnnxStaticQuantization"}
    model.metadata_props.update(metadata)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    settings = {"cache_dir": options.cache, "cache_key": "octobert"} if options.cache else {}
    return StaticShapeSession(ort.OrtSession(path, options, PROVIDER, settings, whole=True))
