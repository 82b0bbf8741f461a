"""MPNet: layers as in BERT; all layers add the same relative position bias to their scores. No segment ids."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("mpnet",),
    prefix="mpnet",
    parts={
        **BERT_PARTS,
        "query": "attention.attn.q",
        "key": "attention.attn.k",
        "value": "attention.attn.v",
        "attention": "attention.attn",
        "attention_output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    position_offset=2,
)
