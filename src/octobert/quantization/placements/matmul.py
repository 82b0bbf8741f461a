"""The six linear layers of every encoder layer, which do nearly all of the arithmetic, and a decoder over the vocabulary.

The decoder of a masked language model takes a quarter of the arithmetic of BERT-base. In 8 bits it changed no figure that float
weights did not change: MiniLM with such a head, trained on IMDB for the purpose, on 400 reviews cut at 128 tokens (2026-11-22):
accuracy of masked tokens 0.2773 in float, 0.2766 with a float decoder, 0.2773 with 8 bits; log-likelihood -4.5112, -4.5172 and
-4.5174; the file has 138, 71 and 36 MB.
"""

from octobert.core.plan import (
    ATTENTION_FLOAT,
    DECODER,
    HEAD_FLOAT,
    LINEAR,
    OUTPUTS_FLOAT,
    RESIDUAL_FLOAT,
    Placement,
)

PLACEMENT = Placement(
    description="inputs and weights of the linear layers, a decoder over the vocabulary included; everything else float",
    kinds=(*LINEAR, *DECODER),
    because={**ATTENTION_FLOAT, **RESIDUAL_FLOAT, **HEAD_FLOAT, **OUTPUTS_FLOAT},
)
