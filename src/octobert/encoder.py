"""The Encoder noun: what the parts of one family of encoders are called.

Roles and names meet in `encoders/<family>.py` and nowhere else: `graph.structure` finds the parts of a graph by their shape
and names them by the family's table, which holds the module paths of `transformers` without the base model's prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octobert import plugins

LAYER_PARTS = (
    "query",
    "key",
    "value",
    "attention",
    "attention_output",
    "attention_norm",
    "ffn_up",
    "activation",
    "ffn_down",
    "ffn_norm",
)


@dataclass(frozen=True)
class Encoder:
    """The names of one family.

    Args:
        model_types: values of `model_type` in `config.json` that belong to it.
        prefix: attribute of the base model inside a model with a head, such as `bert`.
        layer: name of one layer, with `{}` for its index.
        parts: role (`LAYER_PARTS`) → module path inside the layer. `attention` is the module that computes the context.
        embeddings_norm: module path of the LayerNorm after the embeddings.
        position_offset: rows of the position table before the first token's.
        tiny_config: keyword arguments for `AutoConfig.for_model(model_types[0], **...)` that give a model of a few kilobytes.
    """

    model_types: tuple[str, ...]
    prefix: str
    layer: str
    parts: dict[str, str]
    embeddings_norm: str
    position_offset: int
    tiny_config: Callable[[], dict[str, Any]]

    def part(self, index: int, role: str) -> str:
        """`part(3, "query")` → `encoder.layer.3.attention.self.query`."""
        return f"{self.layer.format(index)}.{self.parts[role]}"

    def strip_prefix(self, path: str) -> str:
        """A module path without the base model's own name."""
        return path.removeprefix(f"{self.prefix}.")


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
    return {t: name for name in plugins.names("encoders") for t in plugins.load("encoders", name).ENCODER.model_types}


def family_of(model_type: str) -> Encoder | None:
    """The family of a model type, or None."""
    name = families().get(model_type)
    return plugins.load("encoders", name).ENCODER if name else None
