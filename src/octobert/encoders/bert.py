"""BERT and everything saved as one: MiniLM, TinyBERT, multilingual BERT, BGE, E5, GTE."""

from octobert.encoder import BERT_PARTS, Encoder

ENCODER = Encoder(
    model_types=("bert",),
    prefix="bert",
    layer="encoder.layer.{}",
    parts=BERT_PARTS,
    embeddings_norm="embeddings.LayerNorm",
    position_offset=0,
    tiny_config=lambda: {
        "vocab_size": 120,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
)
