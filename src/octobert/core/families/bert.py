"""BERT, and models saved with its model type: MiniLM, TinyBERT, multilingual BERT, BGE, E5, GTE."""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(model_types=("bert",), prefix="bert")
