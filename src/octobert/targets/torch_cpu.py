"""PyTorch on the CPU: the Q/DQ graph as a PyTorch module, without transformers.

Linear layers are exact integer products. With VNNI or AMX they run in `torch._int_mm`, several times as fast as float32.
Without, that is 50 to 70 times slower than float32, so float32 units compute the same integers, which is not faster than
the float model. Models run eagerly.
"""

from octobert.core.capability import Activations, Capabilities, FloatParts, Needs, OnnxRules
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.targets.runtimes import NO_OPTIONS, torch
from octobert.targets.shared import files

CAPABILITIES = Capabilities(
    name="torch-cpu",
    runtime="torch",
    description="PyTorch on the CPU",
    baseline_model="checkpoint",
    placement="matmul",
    activations=Activations(
        computed=(("int8", True), ("int8", False), ("uint8", False), ("uint8", True)),
        simulated=(("uint16", False), ("int16", True)),
    ),
    float_parts=FloatParts(in_files=("float32", "float16", "bfloat16")),
    roles=(*LINEAR, *HEAD, *EMBEDDING),
    simulated_roles=(*ATTENTION, *RESIDUAL, *OUTPUTS),
    onnx=OnnxRules(opset=(13, 25)),
    needs=Needs(extra="torch"),
    status="run here",
)
RUNTIME_OPTIONS = NO_OPTIONS

_DEVICE = torch.TorchDevice("cpu", compiled=False)
probe, open_session = _DEVICE.probe, _DEVICE.open_session
export, model_file = files.write, files.model_file
