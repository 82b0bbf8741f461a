"""The sites of ONNX Runtime's fused int8 operators for CUDA: `qdqbert-row`, and the first layer's input if no norm outputs it.

ALBERT and small ELECTRA models project the embeddings to the width of the layers. `qdqbert-row` does not quantize the output of
that projection, so the first layer would read it in float. For all other models this equals `qdqbert-row`.

Source: the patterns in `onnxruntime/transformers/fusion_qordered_*.py`.
"""

from octobert.core.plan import Placement
from octobert.quantization.placements import qdqbert_row

PLACEMENT = Placement(
    description="qdqbert-row, and the input of the first layer where no LayerNorm outputs it",
    kinds=(
        *qdqbert_row.PLACEMENT.kinds,
        "linear.input@query",
        "linear.input@key",
        "linear.input@value",
        "residual.skip@attention_norm",
    ),
    because=qdqbert_row.PLACEMENT.because,
)
