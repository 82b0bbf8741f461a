"""Qualcomm NPUs, through ONNX Runtime's QNN provider.

The whole graph runs in integers: 16-bit activations and 8-bit weights, one scale per weight, no range below 1e-4, one
static shape. Linear layers are written as Gemm, which is faster there than MatMul and Add. `session.json` holds the
provider options for a session, and those for a session that writes the context binary, with which later starts need no
compilation.

On x86 the package onnxruntime-qnn contains a simulator of the NPU, which runs these files completely. With batches of
several rows it computed padded rows incorrectly (2.7.0), so the default shape is one row.
"""

import json
import platform
from pathlib import Path

from octobert.core.capability import (
    Activations,
    Capabilities,
    FloatParts,
    Needs,
    OnnxRules,
    Weights,
)
from octobert.core.plan import WHOLE
from octobert.core.session import ExportOptions
from octobert.graph.passes import npu
from octobert.targets import Target
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

# Names of the 64-bit x86 architecture on Linux and Windows.
X86 = ("x86_64", "AMD64")
SESSION = "session.json"
# Inputs and outputs are quantized on the NPU too. Published latencies use the mode `burst`.
PROVIDER_OPTIONS = {
    "backend_type": "htp",
    "htp_performance_mode": "burst",
    "htp_graph_finalization_optimization_mode": "3",
    "offload_graph_io_quantization": "0",
    "enable_htp_fp16_precision": "1",
}
# The simulator needs to know which chip to simulate: this is the first one with a 45-TOPS NPU.
SIMULATED = {"soc_model": "60", "htp_arch": "73", "vtcm_mb": "8"}
CONTEXT = {
    "ep.context_enable": "1",
    "ep.context_embed_mode": "0",
    "ep.context_file_path": "model_context.onnx",
}

CAPABILITIES = Capabilities(
    name="qnn",
    runtime="ort",
    description="Qualcomm NPUs, ONNX Runtime's QNN provider; on x86 its simulator, which is what was run",
    device="Qualcomm NPU",
    baseline_precisions=(),
    placement="whole",
    activations=Activations(computed=(("uint16", False), ("uint8", False)), smallest_range=1e-4),
    weights=Weights(types=("uint8", "int8"), axis=None, zero_points="preferred"),
    float_parts=FloatParts(in_files=("float32", "float16"), computed="float16"),
    roles=WHOLE,
    integer_operators=(
        "MatMul",
        "Gemm",
        "Add",
        "Mul",
        "Softmax",
        "LayerNormalization",
        "Gelu",
        "Tanh",
    ),
    integer_only=True,
    onnx=OnnxRules(
        opset=(13, 21), refuses=("DynamicQuantizeLinear", "MatMulInteger"), lowest_constant=-3.0e30
    ),
    shapes="fixed",
    needs=Needs(extra="qnn"),
    written_anywhere=True,
    status="run here",
)
PASSES = (npu.STATIC, npu.OWN_GELU, npu.GEMM)
_PROVIDER = ort.Provider(
    "QNNExecutionProvider",
    "pip install onnxruntime-qnn",
    lambda path, options: PROVIDER_OPTIONS | (SIMULATED if platform.machine() in X86 else {}),
    refuse_fallback=True,
    plugin="onnxruntime_qnn",
)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the graph with a static shape, linear layers as Gemm and GELU as one operator; and the provider options."""
    path = files.write(quantized, folder, options, PASSES)
    (path.parent / SESSION).write_text(
        json.dumps({"provider": PROVIDER_OPTIONS, "write_context": CONTEXT}, indent=1)
    )


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    export=export,
    open_session=_PROVIDER.open_session,
)
