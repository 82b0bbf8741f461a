"""ModernBERT: norms before attention and feed-forward, Q, K and V in one linear layer, rotary positions, a gated feed-forward,
and layers that see a window of the text only. The first layer has no norm of its own."""

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
    position_offset=0,
    final_norm="final_norm",
    windowed=True,
)
