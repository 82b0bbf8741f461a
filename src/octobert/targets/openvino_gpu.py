"""OpenVINO on Intel GPUs. It opens the files of `openvino-cpu`; operators that are not quantized run in float16."""

from octobert.core.capability import Activations, Capabilities, FloatParts, Needs, OnnxRules
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.targets import Target, openvino_cpu
from octobert.targets.runtimes import openvino

CAPABILITIES = Capabilities(
    name="openvino-gpu",
    runtime="openvino",
    description="OpenVINO on Intel GPUs",
    device="Intel GPU",
    baseline_precisions=("f32", "f16"),
    placement="matmul",
    activations=Activations(
        computed=(("uint8", False), ("int8", True), ("int8", False), ("uint8", True))
    ),
    float_parts=FloatParts(in_files=("float32", "float16"), computed="float16"),
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated_roles=(*RESIDUAL, *OUTPUTS),
    onnx=OnnxRules(opset=(13, 22), lowest_constant=-65504.0),
    static_lengths=True,
    formats=("onnx", "openvino"),
    needs=Needs(extra="openvino", drivers=("intel-gpu",)),
    written_anywhere=True,
    status="structurally checked, not run",
)
_DEVICE = openvino.OpenvinoDevice("GPU", "f16")

TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_DEVICE.probe,
    # The files are the same as for the CPU.
    export=openvino_cpu.export,
    open_session=_DEVICE.open_session,
    model_file=openvino_cpu.model_file,
)
