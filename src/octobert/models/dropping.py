"""Leave encoder layers out of a checkpoint: which ones are kept, and the smaller model, which its config describes.

The kept layers are numbered anew, so that the result is saved and loaded as any checkpoint of its family.
Source: Sajjad et al., On the Effect of Dropping Layers of Pre-trained Transformer Models, 2020 (arXiv 2004.03844).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octobert.core.errors import ModelError, RecipeError
from octobert.core.family import EncoderFamily
from octobert.models.source import ModelSource

_KEY = "finetune.layers"


def kept_layers(source: ModelSource, layers: int | Sequence[int]) -> tuple[int, ...]:
    """Return which layers of a checkpoint are kept.

    Args:
        source: the checkpoint.
        layers: how many, evenly chosen from the first to the last; or their indices, ascending.

    Raises:
        ModelError: the layers of this family share their weights.
        RecipeError: the model has fewer layers.

    Example:
        >>> kept_layers(resolve("./bert-base"), 4)                                       # doctest: +SKIP
        (0, 4, 7, 11)
    """
    family, count = source.family, layer_count(source.config)
    if family.shared_layer:
        raise ModelError(
            f"the layers of {family.model_types[0]} models share one set of weights, so none can be left out",
            where=_KEY,
            fix="leave layers out, or start from a model whose layers have weights of their own",
        )
    if isinstance(layers, int):
        if layers > count:
            raise RecipeError(
                "the model has fewer layers",
                where=_KEY,
                got=str(layers),
                expected=f"1 to {count}",
                fix="keep as many or fewer",
            )
        return tuple(int(index) for index in np.rint(np.linspace(0, count - 1, layers)))
    if max(layers) >= count:
        raise RecipeError(
            "the model has no such layer",
            where=_KEY,
            got=str(max(layers)),
            expected=f"indices from 0 to {count - 1}",
        )
    return tuple(layers)


def layer_count(config: Mapping[str, Any]) -> int:
    """Return the number of encoder layers that a config states, or that is the default of its model type."""
    import transformers

    kind: Any = transformers.CONFIG_MAPPING[config["model_type"]]
    return int(kind.from_dict(dict(config)).num_hidden_layers)


def without_layers(model: Any, family: EncoderFamily, kept: Sequence[int]) -> Any:
    """Return a model of transformers with only these encoder layers.

    Args:
        model: a model with a head.
        family: its family.
        kept: indices of the layers, ascending.

    Raises:
        ModelError: the config cannot describe the model that is left.
    """
    config = copy.deepcopy(model.config)
    count = config.num_hidden_layers
    # Lists with one entry per layer, such as the kinds of attention of ModernBERT.
    for key, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == count:
            setattr(config, key, [value[index] for index in kept])
    config.num_hidden_layers = len(kept)
    smaller = type(model)(config)
    path = family.layer.partition("{}")[0]
    new = {str(old): str(index) for index, old in enumerate(kept)}
    state = {}
    for name, tensor in model.state_dict().items():
        before, found, rest = name.partition(path)
        index, _, inside = rest.partition(".")
        if not found:
            state[name] = tensor
        elif index in new:
            state[f"{before}{found}{new[index]}.{inside}"] = tensor
    try:
        smaller.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            "without these layers the model is not one of its type",
            where=_KEY,
            got=str(list(kept)),
            fix="keep the first layer too",
        ) from error
    return smaller
