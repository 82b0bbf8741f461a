"""ModernBERT: norms before attention and feed-forward, Q, K and V in one linear layer, rotary positions, a gated feed-forward,
and layers that see a window of the text only. The first layer has no norm of its own."""

from octobert.core.family import TINY, EncoderFamily

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
    tiny_config=lambda: {
        **TINY,
        "intermediate_size": 48,
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    final_norm="final_norm",
    windowed=True,
)
