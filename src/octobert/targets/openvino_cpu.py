"""OpenVINO on x86 CPUs.

Its low-precision transformations accept Q/DQ of any 8-bit type on the inputs of matrix products. The attention kernel takes
Q and K in 8 bits if they are symmetric, and is slower with 8-bit probabilities. Without VNNI the product of symmetric Q and
K saturates, and asymmetric ones are multiplied in float: there Q and K are not quantized. The float operators run in float32,
or with `float_parts` in bfloat16 or float16 where the CPU has units for it. In bfloat16 the file stays float32: the runtime
converts it when it opens it.
"""

from pathlib import Path

from octobert.core.capability import (
    INTEGER_UNITS,
    Activations,
    Capabilities,
    FloatParts,
    Needs,
    OnnxRules,
)
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import ExportOptions
from octobert.targets.runtimes import openvino
from octobert.targets.shared import files

CAPABILITIES = Capabilities(
    name="openvino-cpu",
    runtime="openvino",
    description="OpenVINO on the CPU",
    baseline_precisions=("f32", "bf16"),
    placement="matmul-scores",
    activations=Activations(
        computed=(("uint8", False), ("uint8", True), ("int8", False), ("int8", True)),
        symmetric_int8=("scores.query", "scores.key"),
        simulated=(("uint16", False), ("int16", True)),
    ),
    float_parts=FloatParts(
        in_files=("float32", "float16"),
        by_options={
            "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16"},
            "float16": {"INFERENCE_PRECISION_HINT": "f16"},
        },
    ),
    saturates_without=INTEGER_UNITS,
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated_roles=(*RESIDUAL, *OUTPUTS),
    onnx=OnnxRules(opset=(13, 22)),
    static_lengths=True,
    formats=("onnx", "openvino"),
    needs=Needs(extra="openvino"),
    status="run here",
)
RUNTIME_OPTIONS = openvino.RUNTIME_OPTIONS

_DEVICE = openvino.Device("CPU")
probe, open_session, model_file = _DEVICE.probe, _DEVICE.open_session, openvino.model_file


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph and its IR."""
    openvino.convert(files.write(quantized, folder, options), model_file(folder))
