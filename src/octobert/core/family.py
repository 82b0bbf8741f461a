"""The Encoder noun: what the parts of one family of encoders are called.

Roles and names meet in `encoders/<family>.py` and nowhere else: `graph.structure` finds the parts of a graph by their shape
and names them by the family's table, which holds the module paths of `transformers` without the base model's prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octobert.core import plugins

# What the linear layers and the norms of an encoder layer can be. Most families have one of each but `qkv`, which is Q, K and V
# in one, and `bottleneck`, which narrows or widens the hidden state around attention and feed-forward.
LINEAR_PARTS = ("query", "key", "value", "qkv", "attention_output", "ffn_up", "ffn_down", "bottleneck")
NORM_PARTS = ("attention_norm", "ffn_norm", "bottleneck_norm")
LAYER_PARTS = (*LINEAR_PARTS, *NORM_PARTS, "attention", "activation")


@dataclass(frozen=True)
class EncoderFamily:
    """The names of one family, and the few facts about it that no graph shows.

    Args:
        model_types: values of `model_type` in `config.json` that belong to it.
        prefix: attribute of the base model inside a model with a head, such as `bert`.
        layer: name of one layer, with `{}` for its index.
        parts: role (`LAYER_PARTS`) → module path inside the layer. Where a layer has several parts of a role, all but the last
            have a word behind a dot: `ffn_up.0`. A layer need not have every part. `attention` is the module that computes
            the context.
        embeddings_norm: module path of the norm after the embeddings.
        position_offset: rows of the position table before the first token's.
        shared_layer: module path of the one layer that holds the weights, where all layers share them.
        final_norm: module path of the norm behind the last layer, where norms stand before attention and feed-forward.
        windowed: masks say more than which tokens are padding: some layers see a window around each token.
        requires: keys of `config.json` that must have these values, where they are given.
    """

    model_types: tuple[str, ...]
    prefix: str
    layer: str
    parts: dict[str, str]
    embeddings_norm: str
    position_offset: int
    shared_layer: str = ""
    final_norm: str = ""
    windowed: bool = False
    requires: dict[str, Any] = field(default_factory=dict)

    def part(self, index: int, role: str) -> str:
        """`part(3, "query")` → `encoder.layer.3.attention.self.query`, the name of a node and its value."""
        return f"{self.layer.format(index)}.{self.parts[role]}"

    def module(self, index: int, role: str) -> str:
        """The module path of a part, which its weights are named by; layers that share their weights have the same."""
        return f"{(self.shared_layer or self.layer).format(index)}.{self.parts[role]}"

    def roles(self, *parts: str) -> tuple[str, ...]:
        """The family's own keys of these parts: `roles("ffn_up")` → `("ffn_up.0", "ffn_up")`."""
        return tuple(role for role in self.parts if part_of(role) in parts)

    def strip_prefix(self, path: str) -> str:
        """A module path without the base model's own name."""
        return path.removeprefix(f"{self.prefix}.")


def part_of(role: str) -> str:
    """`ffn_up.0` → `ffn_up`, which sites and placements call it."""
    return role.partition(".")[0]


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


def families() -> dict[str, str]:
    """`model_type` of `config.json` → the plugin that knows it."""
    return {t: name for name in plugins.names("families") for t in plugins.load("families", name).FAMILY.model_types}


def family_of(model_type: str) -> EncoderFamily | None:
    """The family of a model type, or None."""
    name = families().get(model_type)
    return plugins.load("families", name).FAMILY if name else None


def longest_input(config: Mapping[str, Any]) -> int:
    """The largest number of tokens that a model has positions for, special tokens included.

    Args:
        config: `config.json` of the model.

    Example:
        >>> longest_input({"model_type": "roberta", "max_position_embeddings": 514})
        512
    """
    family = family_of(str(config.get("model_type")))
    return int(config.get("max_position_embeddings", 512)) - (family.position_offset if family else 0)
