"""ELECTRA: layers as in BERT, after an optional projection from narrower embeddings."""

from octobert.core.family import BERT_PARTS, EncoderFamily

FAMILY = EncoderFamily(
    model_types=("electra",),
    prefix="electra",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=0,
)
