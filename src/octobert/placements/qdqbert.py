"""NVIDIA's QDQBERT: linear layers, both attention products and both inputs of each residual add; 20 quantizers a layer.

Source: `BertLayer` of QDQBERT (transformers 4), where embeddings, LayerNorm, softmax, GELU, pooler and heads stay float.
"""

from octobert.placement import HEAD_FLOAT, OUTPUTS_FLOAT, Placement

PLACEMENT = Placement(
    description="QDQBERT's 20 quantizers a layer: linear inputs and weights, Q, K, probabilities, V, inputs of residual adds",
    kinds=(
        "linear.input",
        "linear.weight",
        "scores.query",
        "scores.key",
        "context.probs",
        "context.value",
        "residual.branch",
        "residual.skip",
    ),
    because={**HEAD_FLOAT, **OUTPUTS_FLOAT},
)
