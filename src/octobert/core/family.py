"""`EncoderFamily`: the module names of the parts of an encoder.

`graph.capture.structure` finds the parts of a graph by their structure; the family gives them the module paths of
`transformers`, without the prefix of the base model. `octobert.core.families` has the families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octobert.core.model_config import Config

# Roles of the linear layers and norms of an encoder layer. `qkv` is one layer for Q, K and V; `bottleneck` layers change the
# width of the hidden state around attention and feed-forward; a `branch_norm` stands before a residual add. Most families have
# one of each of the others.
LINEAR_PARTS = (
    "query",
    "key",
    "value",
    "qkv",
    "attention_output",
    "ffn_up",
    "ffn_down",
    "bottleneck",
)
NORM_PARTS = ("attention_norm", "ffn_norm", "branch_norm", "bottleneck_norm")
LAYER_PARTS = (*LINEAR_PARTS, *NORM_PARTS, "attention", "activation")

BERT_PARTS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention": "attention.self",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "activation": "intermediate.intermediate_act_fn",
    "ffn_down": "output.dense",
    "ffn_norm": "output.LayerNorm",
}

# The modules of models with rotary positions and gated feed-forwards; the names of norms are those behind their blocks.
GATED_PARTS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention": "self_attn",
    "attention_output": "self_attn.o_proj",
    "ffn_up.gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "activation": "mlp.act_fn",
    "ffn_down": "mlp.down_proj",
    "attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_mlp_layernorm",
}


@dataclass(frozen=True)
class EncoderFamily:
    """The module names of one family, and facts that the graph does not show. What is left out is as in BERT.

    Args:
        model_types: values of `model_type` in `config.json`.
        prefix: attribute of the base model in a model with a head, such as `bert`.
        layer: module path of a layer, with `{}` for its index.
        parts: role (one of `LAYER_PARTS`) → module path inside the layer. Where a layer has several parts of one role, all but
            the last have a suffix: `ffn_up.0`. Roles may be missing. `attention` is the module that computes the context;
            `ffn_up.gate` the layer before the activation, where another one computes what it multiplies.
        embeddings_norm: module path of the norm after the embeddings; empty for none.
        position_offset: rows of the position table before the row of the first token; None where it is the row after that of
            the config's `pad_token_id`.
        shared_layer: module path of the layer that holds the weights, where all layers share them.
        final_norm: module path of the norm after the last layer, where norms precede attention and feed-forward.
        whole: the encoder and its head are the whole graph; False where layers are a part of a graph of any kind, which else
            stays as it is.
        windowed: some layers attend to a window around each token, or to what precedes it, so that masks encode more than
            padding.
        native: turns the `config.json` of a checkpoint from before transformers had the family into that of transformers. Such
            checkpoints name code of their own, which is not needed and never run.
        without_heads: heads that transformers does not have for this family.
        requires: key of `config.json` → the only supported value.
    """

    model_types: tuple[str, ...]
    prefix: str
    layer: str = "encoder.layer.{}"
    parts: dict[str, str] = field(default_factory=lambda: BERT_PARTS)
    embeddings_norm: str = "embeddings.LayerNorm"
    position_offset: int | None = 0
    shared_layer: str = ""
    final_norm: str = ""
    whole: bool = True
    windowed: bool = False
    native: Callable[[Config], Config] | None = None
    without_heads: tuple[str, ...] = ()
    requires: dict[str, Any] = field(default_factory=dict)

    def part(self, index: int, role: str) -> str:
        """Return the name of the node of a part, such as `encoder.layer.3.attention.self.query` for (3, "query")."""
        return f"{self.layer.format(index)}.{self.parts[role]}"

    def module(self, index: int, role: str) -> str:
        """Return the module path of a part, which names its weights. Layers that share weights have the same path."""
        return f"{(self.shared_layer or self.layer).format(index)}.{self.parts[role]}"

    def roles(self, *parts: str) -> tuple[str, ...]:
        """Return the keys of `parts` for these roles: `("ffn_up.0", "ffn_up")` for "ffn_up"."""
        return tuple(role for role in self.parts if part_of(role) in parts)

    def strip_prefix(self, path: str) -> str:
        """Return a module path without the prefix of the base model."""
        return path.removeprefix(f"{self.prefix}.")


# Layers in a graph of any kind: the names of its modules are not known.
GRAPH = EncoderFamily(
    model_types=("graph",),
    prefix="",
    layer="encoder.{}",
    parts={
        role: role
        for role in (
            *("query", "key", "value", "qkv", "attention", "attention_output", "attention_norm"),
            *("ffn_up.gate", "ffn_up", "activation", "ffn_down", "ffn_norm"),
            *("branch_norm.attention", "branch_norm"),
        )
    },
    embeddings_norm="",
    whole=False,
)


def part_of(role: str) -> str:
    """Return a role without its suffix.

    Example:
        >>> part_of("ffn_up.0")
        'ffn_up'
    """
    return role.partition(".")[0]
