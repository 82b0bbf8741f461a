"""Qualcomm's NPUs, through ONNX Runtime's QNN provider.

The whole graph runs in integers there: 16-bit activations beside 8-bit weights, one scale a weight, no range below 1e-4, one
shape. Linear layers become Gemm, which it computes faster than MatMul and Add. `session.json` holds the options that a session
wants, and those with which one writes the context binary, so that later starts need no compiler.

On x86 the package onnxruntime-qnn brings a simulator of the NPU, which runs these files whole; with batches of several rows it
computed padded rows wrong (2.7.0), so a shape of one row is what is written unless another one is asked for.
"""

import json
import platform
from pathlib import Path

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import WHOLE
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.graph.passes import contrib, gemm
from octobert.targets.runtimes import ort
from octobert.targets.shared import files
from octobert.targets.shared.static_shape import FixedSession

PROVIDER = "QNNExecutionProvider"
PACKAGE = "onnxruntime_qnn"
SESSION = "session.json"
# Inputs and outputs are quantized on the NPU too; `burst` is the mode of published latencies.
PROVIDER_OPTIONS = {
    "backend_type": "htp",
    "htp_performance_mode": "burst",
    "htp_graph_finalization_optimization_mode": "3",
    "offload_graph_io_quantization": "0",
    "enable_htp_fp16_precision": "1",
}
# The simulator has to be told which chip to be: the first with a 45-TOPS NPU.
SIMULATED = {"soc_model": "60", "htp_arch": "73", "vtcm_mb": "8"}
CONTEXT = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": "model_context.onnx"}

CAPABILITIES = Capabilities(
    name="qnn",
    runtime="ort",
    description="Qualcomm NPUs, ONNX Runtime's QNN provider; on x86 its simulator, which is what runs here",
    placement="whole",
    activations=(("uint16", False), ("uint8", False)),
    weights=("uint8", "int8"),
    weight_axis=None,
    roles=WHOLE,
    least_range=1e-4,
    float_parts=("float32", "float16"),
    shapes="fixed",
    opset=(13, 21),
    refuses=("DynamicQuantizeLinear", "MatMulInteger"),
    integer_operators=("MatMul", "Gemm", "Add", "Mul", "Softmax", "LayerNormalization", "Gelu", "Tanh"),
    whole_graph=True,
    lowest_constant=-3.0e30,
    formats=("onnx",),
    written_anywhere=True,
    status="run here",
)
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return ort.plugin_probe(PACKAGE, "pip install onnxruntime-qnn")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The ONNX file with its shape fixed, its linear layers as Gemm and GELU as one operator, and the options of a session."""
    path = files.put_fixed(quantized, folder, options, contrib.fuse_gelu_, gemm.matmul_add_to_gemm_)
    (path.parent / SESSION).write_text(json.dumps({"provider": PROVIDER_OPTIONS, "write_context": CONTEXT}, indent=1))


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return files.model_file(package)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file."""
    chosen = PROVIDER_OPTIONS | (SIMULATED if platform.machine() == "x86_64" else {})
    devices = ort.plugin_devices(PACKAGE, PROVIDER)
    return FixedSession(ort.OrtSession(path, options, PROVIDER, chosen, devices=devices, whole=True))
