"""AMD Ryzen AI NPUs, through ONNX Runtime's Vitis AI provider.

As for `qnn`: 16-bit activations and 8-bit weights, one scale per weight, one static shape. The provider recommends opset
17, where ONNX has no 16-bit Q/DQ: the graph uses ONNX Runtime's own operators of the domain com.microsoft. The provider
reads from the file's metadata how it was quantized.
"""

import functools

import onnx_ir as ir

from octobert.graph.passes import Pass, npu
from octobert.targets import Target, qnn
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

CAPABILITIES = qnn.CAPABILITIES.but(
    name="vitisai",
    description="AMD Ryzen AI NPUs, ONNX Runtime's Vitis AI provider",
    device="AMD NPU",
    activations={
        "computed": (("uint16", False), ("uint8", False), ("int8", True)),
        "smallest_range": 0.0,
    },
    weights={"types": ("int8", "uint8")},
    float_parts={"in_files": ("float32",), "computed": None},
    onnx={"opset": (13, 20), "domains": ("com.microsoft",)},
    needs={"extra": "", "drivers": ("ryzen-ai",)},
    status="structurally checked, not run",
)
_PROVIDER = ort.Provider(
    "VitisAIExecutionProvider",
    "install AMD's Ryzen AI software",
    lambda path, options: (
        {"cache_dir": options.cache, "cache_key": "octobert"} if options.cache else {}
    ),
    refuse_fallback=True,
)


def _describe_(model: ir.Model) -> int:
    """Add the metadata that the provider reads: types by the names of onnxruntime's quantizer. Capture wrote the model type."""
    model.metadata_props.update(npu.pair_types(model), quant_type="OnnxStaticQuantization")
    return 1


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    # The graph with a static shape, with ONNX Runtime's own operators where ONNX has none, and with metadata.
    export=functools.partial(
        files.write, passes=(npu.STATIC, npu.GELU, npu.PAIRS, Pass(_describe_))
    ),
    open_session=_PROVIDER.open_session,
)
