"""ONNX Runtime on x86 and Arm CPUs.

Linear layers run as MatMulIntegerToFloat: 8-bit inputs and weights, float output. GELU, residual adds and LayerNorm stay
fused in float. This fusion exists for uint8 activations. On x86, an int8 activation that several products read makes them
run in float.

On Arm with bfloat16 the products that stay in float can be computed in that, as those of the float model.
"""

from pathlib import Path

from octobert.core import environment
from octobert.core.capability import (
    INTEGER_UNITS,
    Activations,
    Capabilities,
    FloatParts,
    OnnxRules,
    Rewrites,
    Weights,
)
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import KEEP_FLOAT, ExportOptions
from octobert.targets import Target
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

_ARM = environment.is_arm()

CAPABILITIES = Capabilities(
    name="ort-cpu",
    runtime="ort",
    description="ONNX Runtime on the CPU",
    baseline_precisions=("f32", "bf16") if _ARM else ("f32",),
    placement="matmul",
    activations=Activations(
        computed=(("uint8", False), ("uint8", True)),
        simulated=(
            ("int8", True),
            ("int8", False),
            ("uint16", False),
            ("int16", True),
            ("float8e4m3", True),
        ),
        dynamic="batch",
        keep_float=KEEP_FLOAT,
    ),
    weights=Weights(
        types=("int8", "uint8", "float8e4m3"), int4=("token", "float"), zero_points="any"
    ),
    float_parts=FloatParts(
        in_files=("float32", "float16"),
        by_options={"bfloat16": {ort.FAST_MATH: "1"}} if _ARM else {},
    ),
    shapes="either",
    exact_rows=True,
    saturates_without=INTEGER_UNITS,
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated_roles=(*RESIDUAL, *OUTPUTS),
    onnx=OnnxRules(opset=(13, 25), domains=("com.microsoft",)),
    rewrites=Rewrites(integer_products=True, norms_up_to_cores=4),
    status="run here",
)
_PROVIDER = ort.Provider(ort.CPU)


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph as it is, with one static shape, or with products as integer operators and attention in blocks."""
    from octobert.graph.passes import cpu, long_texts, npu

    files.write(quantized, folder, options, (npu.STATIC, cpu.INTEGERS, long_texts.BLOCKS))


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    export=export,
    open_session=_PROVIDER.open_session,
    runtime_options=ort.RUNTIME_OPTIONS,
)
