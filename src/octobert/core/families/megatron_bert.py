"""Megatron-BERT: BERT with norms before attention and feed-forward, and none after the embeddings."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("megatron-bert",),
    prefix="bert",
    parts={**BERT_PARTS, "attention_norm": "attention.ln", "ffn_norm": "ln"},
    embeddings_norm="",
    final_norm="encoder.ln",
)
