"""ALBERT: all layers share one set of weights. Its embeddings are narrower than its hidden state; its GELU uses tanh."""

from octobert.core.family import EncoderFamily

_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"

FAMILY = EncoderFamily(
    model_types=("albert",),
    prefix="albert",
    layer=f"{_LAYER}.repeat.{{}}",
    parts={
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "attention": "attention",
        "attention_output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "ffn_up": "ffn",
        "activation": "activation",
        "ffn_down": "ffn_output",
        "ffn_norm": "full_layer_layer_norm",
    },
    shared_layer=_LAYER,
    requires={"num_hidden_groups": 1, "inner_group_num": 1},
)
