"""ModernBERT: norms before attention and feed-forward, Q, K and V in one linear layer, rotary positions, a gated feed-forward,
and layers that see a window of the text only. The first layer has no norm of its own."""

from octobert.encoder import Encoder

ENCODER = Encoder(
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
        "vocab_size": 120,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
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
