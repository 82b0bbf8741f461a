"""ELECTRA: BERT's layers behind an optional projection from a narrower embedding."""

from octobert.encoder import BERT_PARTS, TINY, Encoder

ENCODER = Encoder(
    model_types=("electra",),
    prefix="electra",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=0,
    tiny_config=lambda: {
        **TINY,
        "embedding_size": 16,
    },
)
