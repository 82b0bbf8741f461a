"""ModernBERT: norms before attention and feed-forward, one linear layer for Q, K and V, rotary positions, a gated feed-forward.

Some layers attend to a window of the text only. The first layer has no attention norm.
"""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(
    model_types=("modernbert",),
    prefix="model",
    layer="layers.{}",
    parts={
        "attention_norm": "attn_norm",
        "qkv": "attn.Wqkv",
        "attention": "attn",
        "attention_output": "attn.Wo",
        "ffn_norm": "mlp_norm",
        "ffn_up": "mlp.Wi",
        "activation": "mlp.act",
        "ffn_down": "mlp.Wo",
    },
    embeddings_norm="embeddings.norm",
    final_norm="final_norm",
    windowed=True,
)
