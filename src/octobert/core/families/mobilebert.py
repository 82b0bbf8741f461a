"""MobileBERT: narrow layers between bottlenecks, several feed-forward layers each, ReLU, norms that only scale and shift."""

from octobert.core.family import BERT_PARTS, EncoderFamily

# Feed-forwards before the last one of a layer; published models have three.
_STACKED = range(7)

FAMILY = EncoderFamily(
    model_types=("mobilebert",),
    prefix="mobilebert",
    parts={
        "bottleneck.input": "bottleneck.input.dense",
        "bottleneck_norm.input": "bottleneck.input.LayerNorm",
        "bottleneck.attention": "bottleneck.attention.dense",
        "bottleneck_norm.attention": "bottleneck.attention.LayerNorm",
        **{f"ffn_up.{i}": f"ffn.{i}.intermediate.dense" for i in _STACKED},
        **{f"activation.{i}": f"ffn.{i}.intermediate.intermediate_act_fn" for i in _STACKED},
        **{f"ffn_down.{i}": f"ffn.{i}.output.dense" for i in _STACKED},
        **{f"ffn_norm.{i}": f"ffn.{i}.output.LayerNorm" for i in _STACKED},
        **BERT_PARTS,
        "bottleneck": "output.bottleneck.dense",
        "bottleneck_norm": "output.bottleneck.LayerNorm",
    },
)
