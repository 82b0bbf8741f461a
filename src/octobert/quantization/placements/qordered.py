"""What ONNX Runtime's fused int8 operators for CUDA take: `qdqbert-row`, and what enters the first layer where it is no norm.

Source: the patterns in `onnxruntime/transformers/fusion_qordered_*.py`. ALBERT and small ELECTRAs project the embeddings to the
width of the layers; what comes out is no output that `qdqbert-row` quantizes, and the first layer would read it in float.
Everywhere else this is `qdqbert-row`: inputs whose value is quantized where it is made are not quantized again.
"""

from octobert.core.placement import Placement
from octobert.quantization.placements import qdqbert_row

PLACEMENT = Placement(
    description="qdqbert-row, and the input of the first layer where it is no LayerNorm's output",
    kinds=(
        *qdqbert_row.PLACEMENT.kinds,
        "linear.input@query",
        "linear.input@key",
        "linear.input@value",
        "residual.skip@attention_norm",
    ),
    because=qdqbert_row.PLACEMENT.because,
)
