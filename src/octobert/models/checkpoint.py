"""Checkpoints in PyTorch: which files hold the weights, how transformers loads them, and how encoder layers are left out.

Weights are safetensors. Opening a pickle file runs code, so pickles are refused unless the user allows them. Remote code is
always refused. The functions that load need torch and transformers.

The layers that are kept are numbered anew, so that the result is saved and loaded as any checkpoint of its family.
Source: Sajjad et al., On the Effect of Dropping Layers of Pre-trained Transformer Models, 2020 (arXiv 2004.03844).
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.errors import ModelError, RecipeError, reason
from octobert.core.families import family_of
from octobert.core.family import EncoderFamily
from octobert.core.files import is_disk_error
from octobert.core.heads import head_of
from octobert.core.model_config import ADAPTER_CONFIG
from octobert.models import weights
from octobert.models.heads import unused_weights
from octobert.models.pooling import pooler_of
from octobert.models.sentence_transformers import modular_head
from octobert.models.source import ModelSource, read_config
from octobert.models.torch_pooling import with_modules

_LAYERS_KEY = "finetune.layers"
# Ends of keys of a config that choose code: auto_map, attn_implementation, _attn_implementation, …
_NAMES_CODE = ("auto_map", "_implementation", "_implementation_internal")


def load_torch(
    folder: Path, head: str, *, attention: str | None = "eager", allow_pickle: bool = False
) -> Any:
    """Load a checkpoint as a PyTorch model in float32, in evaluation mode.

    Args:
        folder: the checkpoint.
        head: a key of `core.heads.HEADS`.
        attention: transformers' attention implementation; None for its default.
        allow_pickle: open pickle weights.

    Returns:
        the model of `transformers`.

    Raises:
        ModelError: torch or transformers is missing, or the checkpoint does not hold all weights of this head.
    """
    if made := modular_head(folder, head_of(head)):
        encoder = load_torch(
            folder, "feature-extraction", attention=attention, allow_pickle=allow_pickle
        )
        whole = with_modules(encoder, pooler_of(folder, made, allow_pickle=allow_pickle))
        whole.input_names = inputs_of(encoder)
        return whole.eval()
    model, info = _from_pretrained(
        folder, head, allow_pickle=allow_pickle, attn_implementation=attention
    )
    unused = unused_weights(head_of(head), folder, info["unexpected_keys"])
    missing = sorted(
        key for key in info["missing_keys"] if "pooler" not in key or head_of(head).pooler
    )
    _refuse_missing(folder, model, missing, unused)
    if missing:
        other = ", ".join(unused[:4])
        raise ModelError(
            f"the checkpoint has no weights for its {head} head",
            where=str(folder),
            got=f"{other}, and no {missing[0]}" if other else f"missing {', '.join(missing[:4])}",
            fix="choose the task that it was trained for; if these are the head's weights, rename them, or give the ONNX "
            "file of the whole model"
            if other
            else "fine-tune it for the task first, or choose the task that it was trained for",
        )
    _refuse_unused(folder, unused)
    return model.eval()


def load_base(
    folder: Path,
    head: str,
    labels: Sequence[str],
    *,
    allow_pickle: bool = False,
    seed: int = 0,
    dropout: bool = True,
) -> Any:
    """Load a checkpoint in float32 for training. The head gets new random weights unless the checkpoint has it.

    Args:
        folder: the checkpoint.
        head: a key of `core.heads.HEADS`.
        labels: class names; empty for a head without classes.
        allow_pickle: open pickle weights.
        seed: for the weights of a new head.
        dropout: keep the dropout that the config states; False turns all of it off.

    Returns:
        the model of `transformers`.

    Raises:
        ModelError: torch or transformers is missing, or the checkpoint does not hold the encoder's weights.
    """
    classes: dict[str, Any] = {}
    if labels:
        classes = {
            "id2label": dict(enumerate(labels)),
            "label2id": {name: i for i, name in enumerate(labels)},
        }
    model, info = _from_pretrained(
        folder,
        head,
        allow_pickle=allow_pickle,
        seed=seed,
        dropout=dropout,
        ignore_sizes=True,
        **classes,
    )
    unused = unused_weights(head_of(head), folder, info["unexpected_keys"])
    _refuse_missing(folder, model, sorted(info["missing_keys"]), unused)
    # Another head is replaced, but a part of the encoder is not left out.
    prefix = f"{model.base_model_prefix}."
    parts = {name for name, _ in getattr(model, model.base_model_prefix, model).named_children()}
    _refuse_unused(
        folder, [key for key in unused if key.removeprefix(prefix).partition(".")[0] in parts]
    )
    return model


def _refuse_missing(
    folder: Path, model: Any, missing: Sequence[str], unused: Sequence[str]
) -> None:
    """Refuse a checkpoint without the encoder's weights: they have other names, or it is another model than its config says."""
    prefix = f"{model.base_model_prefix}."
    encoder = [key for key in missing if key.startswith(prefix) and "pooler" not in key]
    if encoder:
        raise ModelError(
            f"the checkpoint does not hold the encoder's weights under the names of {type(model).__name__}",
            where=str(folder),
            got=f"{', '.join(unused[:2]) or 'fewer weights'}, and no {', '.join(encoder[:2])}",
            fix="correct config.json where it describes another model, write the model again (save_pretrained), or give its "
            "ONNX file",
        )


def _refuse_unused(folder: Path, names: Sequence[str]) -> None:
    """Refuse weights that no part of the model reads: it would compute something else than what was trained."""
    if names:
        raise ModelError(
            "the checkpoint has weights that the model does not use",
            where=str(folder),
            got=", ".join(names[:4]),
            fix="correct config.json, give the ONNX file of the whole model, or save the model without them (save_pretrained)",
        )


def dropouts(config: Mapping[str, Any]) -> list[str]:
    """The keys of a model's config that are dropout probabilities.

    Example:
        >>> dropouts({"hidden_size": 768, "hidden_dropout_prob": 0.1, "classifier_dropout": None})
        ['hidden_dropout_prob']
    """
    return [
        key for key, value in config.items() if "dropout" in key and isinstance(value, (int, float))
    ]


def inputs_of(model: Any) -> tuple[str, ...]:
    """The names of the inputs that a PyTorch model reads; `token_type_ids` only where it has more than one segment type.

    A model that is not of transformers names them itself, as `input_names`.
    """
    if hasattr(model, "input_names"):
        return tuple(model.input_names)
    accepted = inspect.signature(model.forward).parameters
    segments = getattr(model.config, "type_vocab_size", 0) > 1
    names = ("input_ids", "attention_mask", "token_type_ids")
    return tuple(
        name for name in names if name in accepted and (name != "token_type_ids" or segments)
    )


def _from_pretrained(
    folder: Path,
    head: str,
    *,
    allow_pickle: bool,
    seed: int = 0,
    dropout: bool = True,
    ignore_sizes: bool = False,
    **settings: Any,
) -> tuple[Any, dict[str, list[str]]]:
    """(the model in float32, transformers' report on the weights that it loaded)."""
    weights.need("torch", "transformers")
    files = weights.weight_files(folder, allow_pickle=allow_pickle)
    if (folder / ADAPTER_CONFIG).exists():
        # With peft, transformers would load the model that this file names; without, it would ignore the adapter.
        raise ModelError(
            "the checkpoint has an adapter beside its weights",
            where=str(folder / ADAPTER_CONFIG),
            fix="merge it into the model (merge_and_unload of peft) and save that",
        )
    stated = read_config(folder)
    import torch
    import transformers
    from transformers.utils import logging

    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    torch.manual_seed(seed)
    try:
        config = _config(stated, settings, dropout=dropout)
        kind: Any = getattr(transformers, head_of(head).auto_class)
        shapes = weights.shapes_of(files)
        with torch.device("meta"):
            # Nothing is allocated for a model that a config of unknown origin states before its weights are there.
            empty = kind.from_config(config)
        parts = weights.wrappers(shapes, family_of(config.model_type))
        named = {weights.plain(name, parts): shape for name, shape in shapes.items()}
        _check_shapes(folder, named, empty, encoder_only=ignore_sizes)
        # transformers loads the type that was saved (often float16); octobert compares everything with float32.
        state = weights.read(files, parts) if parts else None
        model, info = type(empty).from_pretrained(
            folder if state is None else None,
            config=config,
            state_dict=state,
            dtype=torch.float32,
            use_safetensors=files[0].suffix == ".safetensors",
            trust_remote_code=False,
            ignore_mismatched_sizes=ignore_sizes,
            output_loading_info=True,
        )
    except ModelError:
        raise
    except Exception as error:  # transformers checks little of what it reads, so damaged files give errors of any type
        if is_disk_error(error):
            raise
        raise ModelError(
            "transformers cannot load the checkpoint",
            where=str(folder),
            got=f"{type(error).__name__}: {reason(error)}",
            fix="download or copy it again, or give its ONNX file",
        ) from error
    weights.check_finite(model.state_dict().items(), folder)
    return model, info


def _check_shapes(
    folder: Path, named: Mapping[str, tuple[int, ...]], empty: Any, *, encoder_only: bool
) -> None:
    """Refuse weights of another size than the model that a config describes.

    Args:
        named: the shapes of the weights.
        empty: the model, without memory for its weights.
        encoder_only: the head may be another one.
    """
    prefix = f"{empty.base_model_prefix}."
    expected = {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
    size, there = sum(map(math.prod, expected.values())), sum(map(math.prod, named.values()))
    problem = f"{there:,} numbers", f"{size:,} numbers"
    for name, shape in named.items():
        full = name if name in expected else f"{prefix}{name}"
        counts = not encoder_only or full.startswith(prefix)
        if counts and expected.get(full, shape) != shape:
            problem = f"{name} {list(shape)}", f"{list(expected[full])}"
            break
    else:
        if there >= size / 2:
            return
    raise ModelError(
        "the weights are not those of the model that config.json describes",
        where=str(folder),
        got=problem[0],
        expected=problem[1],
        fix="correct config.json, or download the whole checkpoint",
    )


def _config(stated: Mapping[str, Any], settings: Mapping[str, Any], *, dropout: bool) -> Any:
    """The config of a model without what can name code: the checkpoint's own, or a repository of the Hub with an attention."""
    import transformers

    plain = {key: value for key, value in stated.items() if not key.endswith(_NAMES_CODE)}
    kind: Any = transformers.CONFIG_MAPPING[plain.get("model_type", "bert")]
    config = kind.from_dict(plain, **settings)
    if getattr(config, "use_cache", False):
        # Of keys and values, for generation; exporters cannot write it.
        config.use_cache = False
    for key in () if dropout else dropouts(config.to_dict()):
        setattr(config, key, 0.0)
    return config


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
            where=_LAYERS_KEY,
            fix="leave layers out, or start from a model whose layers have weights of their own",
        )
    if isinstance(layers, int):
        if layers > count:
            raise RecipeError(
                "the model has fewer layers",
                where=_LAYERS_KEY,
                got=str(layers),
                expected=f"1 to {count}",
                fix="keep as many or fewer",
            )
        return tuple(int(index) for index in np.rint(np.linspace(0, count - 1, layers)))
    if max(layers) >= count:
        raise RecipeError(
            "the model has no such layer",
            where=_LAYERS_KEY,
            got=str(max(layers)),
            expected=f"indices from 0 to {count - 1}",
        )
    return tuple(layers)


def layer_count(config: Mapping[str, Any]) -> int:
    """Return the number of encoder layers that a config states, or that is the default of its model type."""
    import transformers

    kind: Any = transformers.CONFIG_MAPPING[config["model_type"]]
    return int(kind.from_dict(dict(config)).num_hidden_layers)


def without_layers(model: Any, family: EncoderFamily, layers: Sequence[int]) -> Any:
    """Return a model of transformers with only these encoder layers.

    Args:
        model: a model with a head.
        family: its family.
        layers: their indices, ascending.

    Raises:
        ModelError: the config cannot describe the model that is left.
    """
    config = copy.deepcopy(model.config)
    count = config.num_hidden_layers
    # Lists with one entry per layer, such as the kinds of attention of ModernBERT.
    for key, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == count:
            setattr(config, key, [value[index] for index in layers])
    config.num_hidden_layers = len(layers)
    smaller = type(model)(config)
    path = family.layer.partition("{}")[0]
    new = {str(old): str(index) for index, old in enumerate(layers)}
    state = {}
    for name, tensor in model.state_dict().items():
        before, separator, rest = name.partition(path)
        index, _, inside = rest.partition(".")
        if not separator:
            state[name] = tensor
        elif index in new:
            state[f"{before}{separator}{new[index]}.{inside}"] = tensor
    try:
        smaller.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            "without these layers the model is not one of its type",
            where=_LAYERS_KEY,
            got=str(list(layers)),
            fix="keep the first layer too",
        ) from error
    return smaller
