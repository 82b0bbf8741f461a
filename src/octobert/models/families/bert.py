"""BERT, and models saved with its model type: MiniLM, TinyBERT, multilingual BERT, BGE, E5, GTE."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("bert",),
    prefix="bert",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=0,
)
