"""NVIDIA's QDQBERT: linear layers, both attention products and both inputs of each residual add; 20 quantizers per layer.

Source: `BertLayer` of QDQBERT (transformers 4), where embeddings, LayerNorm, softmax, GELU, pooler and heads stay float.
"""

from octobert.core.plan import ATTENTION, HEAD_FLOAT, LINEAR, OUTPUTS_FLOAT, RESIDUAL, Placement

PLACEMENT = Placement(
    description="QDQBERT's 20 quantizers per layer: linear inputs and weights, Q, K, probabilities, V, inputs of residual adds",
    kinds=(*LINEAR, *ATTENTION, *RESIDUAL),
    because={**HEAD_FLOAT, **OUTPUTS_FLOAT},
)
