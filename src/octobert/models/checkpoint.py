"""Checkpoints in PyTorch: which files hold the weights, how transformers loads them, and how encoder layers are left out.

Weights are safetensors. Opening a pickle file runs code, so pickles are refused unless the user allows them. Remote code is
always refused. The functions that load need torch and transformers.

The layers that are kept are numbered anew, so that the result is saved and loaded as any checkpoint of its family.
Source: Sajjad et al., On the Effect of Dropping Layers of Pre-trained Transformer Models, 2020 (arXiv 2004.03844).
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import environment, model_config
from octobert.core.errors import ModelError, RecipeError, reason
from octobert.core.family import EncoderFamily
from octobert.core.files import is_disk_error
from octobert.models.heads import head_of, unused_weights
from octobert.models.locating import PICKLES, pickle_only
from octobert.models.source import ModelSource, read_config

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_LAYERS_KEY = "finetune.layers"
# Ends of keys of a config that choose code: auto_map, attn_implementation, _attn_implementation, …
_NAMES_CODE = ("auto_map", "_implementation", "_implementation_internal")


def weight_files(folder: Path, *, allow_pickle: bool) -> list[Path]:
    """The files that hold the weights of a checkpoint folder. Headers and sizes of safetensors files are checked.

    Raises:
        ModelError: there are none, they are damaged, or there are only pickle files and those are not allowed.
    """
    safe = sorted(folder.glob("*.safetensors"))
    if safe:
        _check_safetensors(folder, safe)
        return safe
    pickles = [folder / name for name in PICKLES if (folder / name).exists()]
    if pickles and allow_pickle:
        return pickles
    if pickles:
        raise pickle_only(str(pickles[0]))
    exports = sorted(folder.rglob("*.onnx"))
    raise ModelError(
        "the checkpoint has no weights",
        where=str(folder),
        expected="model.safetensors",
        fix=f"give its ONNX file instead: {exports[0]}" if exports else "check the download",
    )


def _check_safetensors(folder: Path, files: Sequence[Path]) -> None:
    """Refuse files that are cut off or damaged, and an index whose files are not all there."""
    _need("safetensors")
    from safetensors import SafetensorError, safe_open

    again = "download or copy it again"
    for file in files:
        try:
            with safe_open(file, framework="numpy") as weights:
                weights.keys()
        except OSError as error:
            raise ModelError(
                "the weights cannot be read",
                where=str(file),
                got=str(error)[:200],
                fix="check its permissions",
            ) from error
        except SafetensorError as error:
            raise ModelError(
                "the weights are cut off or damaged",
                where=str(file),
                got=f"{file.stat().st_size:,} bytes; {reason(error, longest=200)}",
                fix=again,
            ) from error
    index = folder / _INDEX
    if not index.is_file() or (folder / _WHOLE).is_file():
        return
    shards = model_config.read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(
            f"{_INDEX} cannot be read",
            where=str(index),
            expected='{"weight_map": {tensor: file}}',
            fix=again,
        )
    missing = sorted(set(shards.values()) - {file.name for file in files})
    if missing:
        raise ModelError(
            "files of the checkpoint's weights are missing",
            where=str(index),
            got=f"no {', '.join(missing[:4])}"[:200],
            fix="download the whole checkpoint",
        )


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ModelError(
                f"opening a checkpoint needs {package}", fix=environment.install("torch")
            )


def load_torch(
    folder: Path, head: str, *, attention: str | None = "eager", allow_pickle: bool = False
) -> Any:
    """Load a checkpoint as a PyTorch model in float32, in evaluation mode.

    Args:
        folder: the checkpoint.
        head: a key of `heads.HEADS`.
        attention: transformers' attention implementation; None for its default.
        allow_pickle: open pickle weights.

    Returns:
        the model of `transformers`.

    Raises:
        ModelError: torch or transformers is missing, or the checkpoint does not hold all weights of this head.
    """
    model, info = _from_pretrained(
        folder, head, allow_pickle=allow_pickle, attn_implementation=attention
    )
    missing = sorted(
        key for key in info["missing_keys"] if "pooler" not in key or head_of(head).pooler
    )
    if missing:
        raise ModelError(
            f"the checkpoint has no weights for its {head} head",
            where=str(folder),
            got=f"missing {', '.join(missing[:4])}",
            fix="fine-tune it for the task first, or choose the task that it was trained for",
        )
    _refuse_unused(folder, unused_weights(head_of(head), folder, info["unexpected_keys"]))
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
        head: a key of `heads.HEADS`.
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
    prefix = f"{model.base_model_prefix}."
    missing = sorted(
        key for key in info["missing_keys"] if key.startswith(prefix) and "pooler" not in key
    )
    if missing:
        raise ModelError(
            "the checkpoint does not hold the encoder's weights",
            where=str(folder),
            got=f"missing {', '.join(missing[:4])}",
            fix="check the checkpoint",
        )
    # Another head is replaced, but a part of the encoder is not left out.
    parts = {name for name, _ in getattr(model, model.base_model_prefix, model).named_children()}
    unused = unused_weights(head_of(head), folder, info["unexpected_keys"])
    _refuse_unused(
        folder, [key for key in unused if key.removeprefix(prefix).partition(".")[0] in parts]
    )
    return model


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
    _need("torch", "transformers")
    safe = weight_files(folder, allow_pickle=allow_pickle)[0].suffix == ".safetensors"
    if (folder / _ADAPTER).exists():
        # With peft, transformers would load the model that this file names; without, it would ignore the adapter.
        raise ModelError(
            "the checkpoint has an adapter beside its weights",
            where=str(folder / _ADAPTER),
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
        # transformers loads the type that was saved (often float16); octobert compares everything with float32.
        model, info = getattr(transformers, head_of(head).auto_class).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=safe,
            trust_remote_code=False,
            ignore_mismatched_sizes=ignore_sizes,
            output_loading_info=True,
        )
    except Exception as error:  # transformers checks little of what it reads, so damaged files give errors of any type
        if is_disk_error(error):
            raise
        raise ModelError(
            "transformers cannot load the checkpoint",
            where=str(folder),
            got=f"{type(error).__name__}: {reason(error)}",
            fix="download or copy it again, or give its ONNX file",
        ) from error
    return model, info


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
