"""RemBERT: layers as in BERT, after a projection from narrower embeddings; a wider decoder over the vocabulary."""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(model_types=("rembert",), prefix="rembert")
