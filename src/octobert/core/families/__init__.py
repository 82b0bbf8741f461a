"""Encoder families: one file each, with a value that has the module names of its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octobert.core.errors import ModelError
from octobert.core.family import GRAPH, EncoderFamily
from octobert.core.plugins import Plugins

PLUGINS = Plugins("families", EncoderFamily)
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each
# Default of `pad_token_id` of the families whose positions start after it.
_ROBERTA_PADDING = 1
# Tokens of the shortest text: one, and one before and after it.
_LEAST = 3


def model_types() -> dict[str, str]:
    """Return `model_type` of `config.json` → name of its family plugin."""
    return {t: name for name, family in each() for t in family.model_types}


def family_of(model_type: str) -> EncoderFamily | None:
    """Return the family of a `model_type`, or None."""
    if model_type in GRAPH.model_types:
        return GRAPH
    # One at a time: what octobert knows itself imports no plugin of another package.
    return next((f for _, f in each() if model_type in f.model_types), None)


def longest_input(config: Mapping[str, Any]) -> int:
    """Return the largest number of tokens that a model has positions for, special tokens included.

    Args:
        config: `config.json` of the model.

    Raises:
        ModelError: it has no positions for a text.

    Example:
        >>> longest_input({"model_type": "roberta", "max_position_embeddings": 514})
        512
    """
    family = family_of(str(config.get("model_type")))
    offset = family.position_offset if family else 0
    rows = int(config.get("max_position_embeddings", 512))
    if offset is None:
        padding = config.get("pad_token_id", _ROBERTA_PADDING)
        offset = rows if padding is None else int(padding) + 1
    if rows - offset < _LEAST:
        raise ModelError(
            "the model has no positions for a text",
            where="config.json",
            got=f"max_position_embeddings {rows}, pad_token_id {json.dumps(config.get('pad_token_id'))}",
            expected=f"positions of {config.get('model_type')} models start after the pad_token_id",
            fix="correct the two, or download the model again",
        )
    return rows - offset
