"""ONNX Runtime on NVIDIA GPUs, with its fused int8 operators: integers flow from the embeddings to the head.

`graph.qordered` says which they are, and what they ask for: a model that was prepared by nothing (`prepare: []`), since
SmoothQuant rescales the residual path, which they read with one scale. Biases are float, and added before rounding.
They were read in the sources of onnxruntime (`contrib_ops/cuda/quantization/qordered_ops`), and have not been run.
"""

from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.core.capability import Capabilities, Probe
from octobert.core.plan import EMBEDDING, LINEAR, OUTPUTS
from octobert.core.session import ExportOptions, Feeds, Session, SessionOptions
from octobert.graph import operators, parity
from octobert.graph.passes import float16, fusion, qordered
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

PROVIDER = "CUDAExecutionProvider"

CAPABILITIES = Capabilities(
    name="ort-cuda",
    runtime="ort",
    description="ONNX Runtime on NVIDIA GPUs, fused int8 operators",
    placement="qordered",
    activations=(("int8", True),),
    weights=("int8",),
    weight_axis=1,
    roles=(*LINEAR, "residual.skip", *EMBEDDING, *OUTPUTS),
    float_parts=("float32", "float16", "bfloat16"),
    opset=(13, 25),
    domains=("com.microsoft",),
    first_token=False,
    pairs=False,
    file="onnx/model_fused.onnx",
    formats=("onnx",),
    written_anywhere=True,
    status="structurally checked, not run",
)
RUNTIME_OPTIONS = {
    **ort.RUNTIME_OPTIONS,
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "use_tf32": ("1", "0"),
}


def probe() -> Probe:
    """Whether this target can run on this machine."""
    return ort.probe(PROVIDER, "pip install onnxruntime-gpu")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """The fused graph beside the QDQ graph; without quantized activations, that of ONNX Runtime's fused float operators.

    Raises:
        PlanError, ModelError, TargetError: the graph does not take the fused form.
    """
    files.put(quantized, folder, options)
    model = ir.load(quantized)
    if any(node.op_type == "QuantizeLinear" for node in model.graph):
        qordered.rewrite_(model)
        model = qordered.fuse(model)
    else:
        unfused = model.clone()
        fusion.fuse_(model)
        fusion.check(model, unfused, parity.sample_batches(unfused))
        float16.halve_(model, options.float_parts)
    operators.save(model, model_file(folder))


def model_file(package: Path) -> Path:
    """The file of a packaged directory that this target opens."""
    return package / "onnx" / "model_fused.onnx"


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file; sequences are padded to a length that the fused attention takes."""
    return PaddedSession(path, options, PROVIDER)


class PaddedSession(ort.OrtSession):
    """A session that pads sequences to a multiple of `qordered.MULTIPLE`, and cuts outputs of one value a token back."""

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        length = feeds["input_ids"].shape[1]
        # Zeros in the mask hide the added tokens, whatever the id 0 stands for.
        added = ((0, 0), (0, -length % qordered.MULTIPLE))
        results = super().run({name: np.pad(feeds[name], added) for name in self.inputs})
        return {name: result[:, :length] if name in self.per_token else result for name, result in results.items()}
