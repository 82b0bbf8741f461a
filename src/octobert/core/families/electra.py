"""ELECTRA: layers as in BERT, after an optional projection from narrower embeddings."""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(model_types=("electra",), prefix="electra")
