"""Checkpoints on disk: where a model's files are, what they are, and how PyTorch loads them.

A model is named by a hub id, a folder, `package:NAME/PATH` (a folder inside an installed package), or an `.onnx` file that
lies beside its tokenizer. Weights are safetensors; pickle files run code when they are opened, and are refused unless the
user insists. Remote code is always refused.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octobert.config.recipe import looks_local
from octobert.core.errors import ModelError, did_you_mean
from octobert.core.family import EncoderFamily, families, family_of
from octobert.core.files import canonical_digest, file_digest
from octobert.core.frozen import FrozenModel

HEADS = ("sequence-classification", "token-classification", "question-answering", "embedding")
OUTPUTS = {
    "sequence-classification": ("logits",),
    "token-classification": ("logits",),
    "question-answering": ("start_logits", "end_logits"),
    "embedding": ("sentence_embedding",),
}
_AUTO = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "embedding": "AutoModel",
}
_PATTERNS = ["*.json", "*.safetensors", "*.txt", "1_Pooling/*", "*.model"]
_DIGESTED = ("*.json", "*.txt", "*.model", "1_Pooling/config.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Pooling(FrozenModel):
    """How token states become one vector."""

    mode: str = "mean"
    normalize: bool = False


def locate(model: str, *, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """The folder or `.onnx` file that a model's name stands for, downloaded if it is a hub id.

    Raises:
        ModelError: nothing of that name; or an unreachable hub.
    """
    if model.startswith("package:"):
        return _in_package(model.removeprefix("package:"))
    path = Path(model).expanduser()
    if path.exists():
        return path
    if looks_local(model, (".onnx",)):
        raise ModelError("there is no such file or folder", where=model, fix="check the path")
    try:
        from huggingface_hub import list_repo_files, snapshot_download
    except ModuleNotFoundError:
        raise ModelError(
            "a hub id needs the hub's client", where=model, fix="pip install 'octobert[torch]', or give a local folder"
        ) from None
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=_PATTERNS))
        if not list(folder.glob("*.safetensors")):
            # Pickle weights are fetched only when they are allowed.
            files = [f for f in list_repo_files(model, revision=revision) if f in _PICKLES]
            if files and not allow_pickle:
                raise _pickle_only(f"{model}/{files[0]}")
            folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*_PATTERNS, "*.bin"]))
        return folder
    except ModelError:
        raise
    except Exception as error:  # the hub client raises many unrelated types: network, auth, not found, cache
        raise ModelError(
            "there is no folder of that name, and the hub did not give it",
            where=model,
            got=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}",
            fix="check the name, the network and your token, or give a local folder",
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint.

    Raises:
        ModelError: it is absent, is not JSON, or asks for remote code.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError("the folder is no checkpoint", where=str(folder), got="no config.json", fix="check the path")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError("config.json is not JSON", where=str(path), got=str(error)) from error
    if "auto_map" in config:
        raise ModelError(
            "the checkpoint needs Python code of its own (trust_remote_code), which octobert never runs",
            where=str(path),
            got=f"auto_map to {', '.join(sorted(map(str, config['auto_map'].values())))}",
            fix="use a model that transformers has built in, or give its ONNX export",
        )
    return config


def encoder_of(config: dict[str, Any], *, where: str) -> EncoderFamily:
    """The family of a checkpoint.

    Raises:
        ModelError: no family has this model type, or the config asks for a variant that its family has not.
    """
    model_type = str(config.get("model_type", "bert"))
    family = family_of(model_type)
    if family is None:
        raise ModelError(f'model type "{model_type}" is not supported', where=where, fix=did_you_mean(model_type, families()))
    for key, value in {"is_decoder": False, "is_encoder_decoder": False, **family.requires}.items():
        if config.get(key, value) != value:
            raise ModelError(
                f"this variant of {model_type} is not supported",
                where=where,
                got=f"{key} {json.dumps(config[key])}",
                expected=f"{key} {json.dumps(value)}",
            )
    return family


def check_head(folder: Path, head: str) -> None:
    """Refuse a checkpoint that was trained for another head, before anything is read or run.

    Raises:
        ModelError: the config names another architecture.
    """
    stated = _architecture(folder)
    wanted = _AUTO[head].removeprefix("AutoModel")
    if wanted and stated and not stated.endswith(wanted):
        raise ModelError(
            f"the checkpoint has no {head} head",
            where=str(folder / "config.json"),
            got=stated,
            expected=f"an architecture that ends in {wanted}",
            fix="fine-tune it for the task first, or choose the task it was trained for",
        )


def has_head(folder: Path, head: str) -> bool:
    """Whether a checkpoint states that it was trained for a head."""
    return _architecture(folder).endswith(_AUTO[head].removeprefix("AutoModel") or "Model")


def _architecture(folder: Path) -> str:
    return str((read_config(folder).get("architectures") or [""])[0])


def weight_files(folder: Path, *, allow_pickle: bool) -> list[Path]:
    """The files that hold the weights.

    Raises:
        ModelError: there are none, or only pickle files and those are not allowed.
    """
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return found
    pickles = [folder / name for name in _PICKLES if (folder / name).exists()]
    if pickles and allow_pickle:
        return pickles
    if pickles:
        raise _pickle_only(str(pickles[0]))
    exports = sorted(folder.rglob("*.onnx"))
    fix = f"give its ONNX file instead: {exports[0]}" if exports else "check the download"
    raise ModelError("the checkpoint has no weights", where=str(folder), expected="model.safetensors", fix=fix)


def _pickle_only(where: str) -> ModelError:
    return ModelError(
        "the checkpoint has pickle weights only, and opening a pickle runs code",
        where=where,
        expected="model.safetensors",
        fix="convert it to safetensors, or pass --allow-pickle if you trust its author",
    )


def load_torch(folder: Path, head: str, *, attention: str | None = "eager", allow_pickle: bool = False) -> Any:
    """The PyTorch model in float32, in evaluation mode.

    Args:
        attention: transformers' attention implementation; None for its default.

    Raises:
        ModelError: torch or transformers is missing, or the checkpoint does not hold all weights of this head.
    """
    extra: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    model, info = _from_pretrained(folder, head, allow_pickle=allow_pickle, **extra)
    missing = sorted(k for k in info["missing_keys"] if "pooler" not in k or head == "sequence-classification")
    if missing:
        raise ModelError(
            f"the checkpoint has no weights for its {head} head",
            where=str(folder),
            got=f"missing {', '.join(missing[:4])}",
            fix="fine-tune it for the task first, or choose the task it was trained for",
        )
    return model.eval()


def load_base(
    folder: Path, head: str, labels: Sequence[str], *, allow_pickle: bool = False, seed: int = 0, dropout: bool = True
) -> Any:
    """A PyTorch model in float32 to be trained for a head, which is new unless the checkpoint has it.

    Args:
        labels: class names, where the head has classes.
        seed: of a new head's weights.
        dropout: as the model has it; otherwise none, in no module and no function.

    Raises:
        ModelError: torch or transformers is missing, or the checkpoint does not hold the encoder's weights.
    """
    extra: dict[str, Any] = {"ignore_mismatched_sizes": True}
    if labels:
        extra |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    if not dropout:
        from transformers import AutoConfig

        extra |= dict.fromkeys(dropouts(AutoConfig.from_pretrained(folder).to_dict()), 0.0)
    model, info = _from_pretrained(folder, head, allow_pickle=allow_pickle, seed=seed, **extra)
    prefix = f"{model.base_model_prefix}."
    missing = sorted(k for k in info["missing_keys"] if k.startswith(prefix) and "pooler" not in k)
    if missing:
        what = "the checkpoint does not hold the encoder's weights"
        raise ModelError(what, where=str(folder), got=f"missing {', '.join(missing[:4])}", fix="check the checkpoint")
    return model


def dropouts(config: Mapping[str, Any]) -> list[str]:
    """The keys of a config that are probabilities of dropout."""
    return [key for key, value in config.items() if "dropout" in key and isinstance(value, (int, float))]


def _from_pretrained(folder: Path, head: str, *, allow_pickle: bool, seed: int = 0, **extra: Any) -> tuple[Any, Any]:
    """(model in float32, what transformers says about loading it).

    Raises:
        ModelError: torch or transformers is missing, or the checkpoint cannot be loaded.
    """
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"opening a checkpoint needs {package}", fix="pip install 'octobert[torch]'")
    safe = weight_files(folder, allow_pickle=allow_pickle)[0].suffix == ".safetensors"
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    try:
        # transformers loads in the dtype that was saved (often fp16); everything here is measured against float32.
        return getattr(transformers, _AUTO[head]).from_pretrained(
            folder, dtype=torch.float32, use_safetensors=safe, output_loading_info=True, **extra
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            "transformers cannot load the checkpoint", where=str(folder), got=str(error).strip().splitlines()[0][:300]
        ) from error


def inputs_of(model: Any) -> tuple[str, ...]:
    """The feeds that a PyTorch model reads; segments only where it has a table of them."""
    accepted = inspect.signature(model.forward).parameters
    segments = getattr(model.config, "type_vocab_size", 0) > 1
    names = ("input_ids", "attention_mask", "token_type_ids")
    return tuple(name for name in names if name in accepted and (name != "token_type_ids" or segments))


def pooling_of(folder: Path) -> Pooling:
    """Pooling and normalization as a sentence-transformers folder states them; mean pooling where it states nothing.

    Raises:
        ModelError: a pooling that is neither mean nor CLS.
    """
    path = folder / "1_Pooling" / "config.json"
    modules = folder / "modules.json"
    normalize = modules.is_file() and "models.Normalize" in modules.read_text(encoding="utf-8")
    if not path.is_file():
        return Pooling(normalize=normalize)
    stated = json.loads(path.read_text(encoding="utf-8"))
    active = [k for k, v in stated.items() if k.startswith("pooling_mode_") and v is True]
    names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    mode = names.get(active[0]) if len(active) == 1 else stated.get("pooling_mode")
    if mode not in ("mean", "cls"):
        got = ", ".join(active) or "none"
        raise ModelError("the pooling is not supported", where=str(path), got=got, expected="mean or cls")
    return Pooling(mode=mode, normalize=normalize)


def pool(states: Any, mask: Any, pooling: Pooling) -> Any:
    """Pooling in PyTorch: the reference that the graph is checked against. [B, S, D], [B, S] → [B, D]."""
    if pooling.mode == "cls":
        pooled = states[:, 0]
    else:
        weights = mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return pooled / pooled.norm(dim=-1, keepdim=True).clamp(min=1e-12) if pooling.normalize else pooled


def digest(path: Path) -> str:
    """sha256 over the content of a model: its weights, config, tokenizer and pooling, not its name or place."""
    folder = side_folder(path)
    files = [path, *external_files(path)] if path.is_file() else []
    for pattern in _DIGESTED + (() if files else ("*.safetensors", "*.bin")):
        files += sorted(folder.glob(pattern))
    return canonical_digest([[file.name, file_digest(file)] for file in files])


def side_folder(path: Path) -> Path:
    """Where the config and the tokenizer of a model are: its folder, or for `onnx/model.onnx` perhaps the one above."""
    if path.is_dir():
        return path
    known = ("tokenizer.json", "config.json")
    return next((f for f in (path.parent, path.parent.parent) if any((f / name).is_file() for name in known)), path.parent)


def external_files(path: Path) -> list[Path]:
    """The files beside an ONNX file that hold its weights, where it names any."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError, RuntimeError):
        return []
    names = {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}
    return [path.parent / name for name in sorted(names) if (path.parent / name).is_file()]


def _in_package(name: str) -> Path:
    given, _, inner = name.partition("/")
    package = given.replace("-", "_")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f'the package "{given}" is not installed', where=f"package:{name}", fix=f"pip install {given}")
    folder = Path(next(iter(spec.submodule_search_locations))) / inner
    if not folder.exists():
        raise ModelError("the package has no such folder", where=str(folder), fix="check the path after the package's name")
    return folder
