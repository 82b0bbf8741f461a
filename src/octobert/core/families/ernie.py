"""ERNIE: layers as in BERT; all texts belong to the first of its tasks."""

from octobert.core.family import EncoderFamily

FAMILY = EncoderFamily(model_types=("ernie",), prefix="ernie")
