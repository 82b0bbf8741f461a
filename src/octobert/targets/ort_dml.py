"""ONNX Runtime with DirectML, on GPUs of Windows machines.

As on the CPU, ONNX Runtime makes MatMulIntegerToFloat of linear layers between Q/DQ, on x86 of uint8 activations only. Its pull
requests 19608 and 20248 added that operator, in float16 too, and this fusion for the provider. Other operators are float16 and
have no Q/DQ: an Add or a product between them would become QLinearAdd or QLinearMatMul, which take scales in float32 only.

The provider's documentation names opsets up to 20, and static shapes as the fastest. It forbids memory patterns, parallel
execution, and two calls of a session at a time. The target has not been run. In the one comparison found 8 bits were slower
than float16, but without MatMulIntegerToFloat (issue 15328).
"""

import functools
from pathlib import Path

from octobert.core.plan import EMBEDDING, HEAD, LINEAR
from octobert.core.session import Session, SessionOptions
from octobert.graph.passes import npu
from octobert.targets import Target, ort_cpu
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

CAPABILITIES = ort_cpu.CAPABILITIES.but(
    name="ort-dml",
    description="ONNX Runtime with DirectML, on GPUs of Windows machines",
    device="DirectX 12 GPU",
    activations={"simulated": (("int8", True), ("int8", False)), "dynamic": None},
    weights={"types": ("int8", "uint8")},
    float_parts={"in_files": ("float16", "float32")},
    saturates_without=(),
    roles=(*LINEAR, *HEAD, *EMBEDDING),
    simulated_roles=(),
    onnx={"opset": (13, 20)},
    rewrites={"integer_products": False, "norms_up_to_cores": 0},
    exact_rows=False,
    needs={"build": "onnxruntime-directml", "drivers": ("directx",)},
    written_anywhere=True,
    status="structurally checked, not run",
)
# What the provider forbids, or has one value of.
_FIXED = {"execution_mode": "ORT_SEQUENTIAL", "enable_mem_pattern": False}
_PROVIDER = ort.Provider("DmlExecutionProvider", "pip install onnxruntime-directml")


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file. Calls wait for each other."""
    runtime_options = {**options.runtime_options, **_FIXED}
    return _PROVIDER.open_session(
        path, options.replaced(streams=1, runtime_options=runtime_options)
    )


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    # The Q/DQ graph, with a static shape where the recipe has one.
    export=functools.partial(files.write, passes=(npu.STATIC,)),
    open_session=open_session,
    runtime_options={
        name: values for name, values in ort.RUNTIME_OPTIONS.items() if name not in _FIXED
    },
)
