"""AMD's Ryzen AI NPUs, through ONNX Runtime's Vitis AI provider.

As for `qnn`: 16-bit activations beside 8-bit weights, one scale a weight, one shape. It recommends opset 17 or near, where ONNX
has no 16-bit pairs: they are ONNX Runtime's own, of the domain com.microsoft. The provider looks up in the file's metadata
what was done to it.
"""

from pathlib import Path

import onnx_ir as ir

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import WHOLE
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.graph.passes import contrib
from octobert.targets.runtimes import ort
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import FixedSession

PROVIDER = "VitisAIExecutionProvider"

CAPABILITIES = Capabilities(
    name="vitisai",
    runtime="ort",
    description="AMD Ryzen AI NPUs, ONNX Runtime's Vitis AI provider",
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
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return ort.probe(PROVIDER, "install AMD's Ryzen AI software")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The ONNX file with its shape fixed, in ONNX Runtime's own operators where ONNX has none, and its metadata."""
    files.put_fixed(quantized, folder, options, contrib.fuse_gelu_, contrib.pairs_, _describe_)


def _describe_(model: ir.Model) -> None:
    """What the provider looks for beside the model's type, which capture noted: types as onnxruntime's quantizer calls them."""
    types = contrib.pair_types(model)
    found = {"activation_dtype": types.activation, "weight_dtype": types.weight, "quant_type": "OnnxStaticQuantization"}
    model.metadata_props.update(found)


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return files.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    kept = {"cache_dir": options.cache, "cache_key": "octobert"} if options.cache else {}
    return FixedSession(ort.OrtSession(path, options, PROVIDER, kept, whole=True))
