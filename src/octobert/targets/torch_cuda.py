"""PyTorch on NVIDIA GPUs: the Q/DQ graph as a compiled PyTorch module, without transformers.

Linear layers are integer products by `torch._int_mm`, with int32 sums. torch.compile fuses the operators between them,
rounding and rescaling included; in eager mode each would be a pass over memory. The first batch waits for the compilation.
All other quantized operators are rounded and computed in float.
"""

from octobert.targets import torch_cpu
from octobert.targets.runtimes import torch

CAPABILITIES = torch_cpu.CAPABILITIES.but(
    name="torch-cuda",
    description="PyTorch on NVIDIA GPUs, compiled",
    device="NVIDIA GPU",
    baseline_model="graph",
    needs={"drivers": ("nvidia",)},
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS = torch_cpu.RUNTIME_OPTIONS

_DEVICE = torch.TorchDevice("cuda", compiled=True)
probe, open_session = _DEVICE.probe, _DEVICE.open_session
# The files are the same as for the CPU.
export, model_file = torch_cpu.export, torch_cpu.model_file
