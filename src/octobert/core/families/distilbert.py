"""DistilBERT: half of BERT's layers, different module names, no segment ids and no pooler."""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(
    model_types=("distilbert",),
    prefix="distilbert",
    layer="transformer.layer.{}",
    parts={
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "attention": "attention",
        "attention_output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "ffn_up": "ffn.lin1",
        "activation": "ffn.activation",
        "ffn_down": "ffn.lin2",
        "ffn_norm": "output_layer_norm",
    },
)
