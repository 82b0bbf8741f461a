"""Encoder family: ERNIE, whose modules have BERT's names."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("ernie",),
    prefix="ernie",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=0,
)
