"""ONNX Runtime on NVIDIA GPUs, with its fused int8 operators (`graph.passes.qordered`): values stay int8 from the embeddings to
the head.

Nothing is transformed: SmoothQuant rescales the residual path, which these operators read with one scale. The target has not
been run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.core.capability import (
    Activations,
    Capabilities,
    FloatParts,
    Needs,
    OnnxRules,
    Rewrites,
)
from octobert.core.plan import EMBEDDING, LINEAR, OUTPUTS
from octobert.core.session import ExportOptions, Feeds, Session, SessionOptions
from octobert.graph import operators
from octobert.graph.passes import float16, fusion, opset, qordered
from octobert.targets import Target
from octobert.targets.runtimes import ort
from octobert.targets.shared import files

CAPABILITIES = Capabilities(
    name="ort-cuda",
    runtime="ort",
    description="ONNX Runtime on NVIDIA GPUs, fused int8 operators",
    device="NVIDIA GPU",
    placement="qordered",
    activations=Activations(computed=(("int8", True),)),
    float_parts=FloatParts(in_files=("float32", "float16", "bfloat16")),
    roles=(*LINEAR, "residual.skip", *EMBEDDING, *OUTPUTS),
    qdq=False,
    onnx=OnnxRules(opset=(13, 25), domains=("com.microsoft",)),
    rewrites=Rewrites(first_token=False, smoothed=False),
    file="onnx/model_fused.onnx",
    needs=Needs(extra="gpu", build="onnxruntime-gpu", drivers=("nvidia", "cuda", "cudnn")),
    written_anywhere=True,
    status="structurally checked, not run",
)
_PROVIDER = ort.Provider("CUDAExecutionProvider", "pip install onnxruntime-gpu")


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph and the fused graph. Without quantized activations the fused operators are float.

    Raises:
        PlanError, ModelError, TargetError: the graph cannot be written with the fused operators.
    """
    files.write(quantized, folder, options)
    model = ir.load(quantized)
    if any(node.op_type == "QuantizeLinear" for node in model.graph):
        qordered.rewrite_(model)
        model = qordered.fuse(model)
    else:
        # Values that float16 cannot hold would be inside fused operators.
        model = model if options.unfit else fusion.fuse(model).model
        float16.convert_(model, options.float_parts, options.unfit)
    if options.opset is not None:
        opset.convert_(model, options.opset.opset, domains=options.opset.domains)
    operators.save(model, model_file(folder))


def model_file(package: Path) -> Path:
    """Return the path of the fused graph in a package."""
    return package / CAPABILITIES.file


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file. The fused attention needs padded sequences, a float graph does not."""
    opener = PaddedSession if path.name == Path(CAPABILITIES.file).name else ort.OrtSession
    return opener(path, options, _PROVIDER.name)


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_PROVIDER.probe,
    export=export,
    open_session=open_session,
    model_file=model_file,
    runtime_options={
        **ort.RUNTIME_OPTIONS,
        "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
        "use_tf32": ("1", "0"),
    },
)


class PaddedSession(ort.OrtSession):
    """A session that pads sequences to a multiple of `qordered.MULTIPLE`, and cuts the padding off outputs per token."""

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        length = feeds["input_ids"].shape[1]
        # Zeros in the mask hide the padding tokens, whatever the id 0 means.
        padding = ((0, 0), (0, -length % qordered.MULTIPLE))
        results = super().run({name: np.pad(array, padding) for name, array in feeds.items()})
        return {
            name: result[:, :length] if name in self.per_token else result
            for name, result in results.items()
        }
