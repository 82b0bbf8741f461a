"""Data2Vec for text: RoBERTa under another name."""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(model_types=("data2vec-text",), prefix="data2vec_text", position_offset=None)
