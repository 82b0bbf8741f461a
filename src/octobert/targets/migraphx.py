"""MIGraphX on AMD GPUs, through ONNX Runtime's provider.

It compiles the graph for every new shape, so the files have a static shape; a float graph has free axes and is compiled for
each. It takes symmetric int8 only, opsets up to 19, and no dynamic quantization. Operators that are not quantized are explicit
float16. `cache` keeps compiled models.
"""

import functools

from octobert.core.capability import Activations, Capabilities, FloatParts, Needs, OnnxRules
from octobert.core.plan import ATTENTION, HEAD, LINEAR, RESIDUAL
from octobert.graph.passes import npu
from octobert.targets import Target
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

CAPABILITIES = Capabilities(
    name="migraphx",
    runtime="ort",
    description="MIGraphX on AMD GPUs",
    device="AMD GPU",
    placement="matmul-attention",
    activations=Activations(computed=(("int8", True),)),
    float_parts=FloatParts(in_files=("float16", "float32")),
    roles=(*LINEAR, *ATTENTION, *HEAD),
    # Rounded where the plan says so, as for an Add before a norm, and added in float.
    simulated_roles=RESIDUAL,
    onnx=OnnxRules(opset=(13, 19), refuses=("DynamicQuantizeLinear",), lowest_constant=-65504.0),
    shapes="fixed",
    needs=Needs(build="onnxruntime-migraphx", drivers=("rocm", "migraphx")),
    written_anywhere=True,
    status="structurally checked, not run",
)
_PROVIDER = ort.Provider(
    "MIGraphXExecutionProvider",
    "pip install onnxruntime-migraphx",
    lambda path, options: {"migraphx_model_cache_dir": options.cache} if options.cache else {},
    refuse_fallback=True,
)

TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    # The Q/DQ graph with a static shape.
    export=functools.partial(files.write, passes=(npu.STATIC,)),
    open_session=_PROVIDER.open_session,
    runtime_options={**ort.RUNTIME_OPTIONS, "migraphx_exhaustive_tune": ("0", "1")},
)
