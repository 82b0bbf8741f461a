"""Where a model is and what it is: `resolve` turns the name that a user gives into a `ModelSource`, once for each run.

A model is named by a hub id, a folder, `package:NAME/PATH` (a folder inside an installed Python package), or an `.onnx` file
whose tokenizer lies beside it.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from octobert.config.loading import looks_local
from octobert.core import environment, model_config
from octobert.core.errors import ModelError, did_you_mean, reason
from octobert.core.family import EncoderFamily, families, family_of, longest_input
from octobert.core.files import canonical_digest, file_digest, file_stamp
from octobert.core.frozen import FrozenModel
from octobert.core.onnx_files import external_files
from octobert.models.modules import module_files, modules_of

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.model"]
_DIGESTED = ("*.json", "*.txt", "*.model")
_BESIDE = ("tokenizer.json", "config.json", "vocab.txt")


class ModelSource(FrozenModel):
    """A model on this machine, before octobert changes it.

    Args:
        path: the checkpoint folder or the `.onnx` file.
        kind: `checkpoint` (weights that transformers loads) or `onnx`.
        config: `config.json` as a dictionary; empty for an ONNX file without one.
        tokenizer_folder: the folder of the config and the tokenizer.
        longest_input: the largest number of tokens that the model has positions for, special tokens included.
        digest: sha256 over weights, config, tokenizer and modules; the same wherever the files are.
        stamp: what the file system said of these files before they were read.
    """

    path: Path
    kind: Literal["checkpoint", "onnx"]
    config: dict[str, Any]
    tokenizer_folder: Path
    longest_input: int
    digest: str
    stamp: str

    @property
    def places(self) -> tuple[Path, ...]:
        """Where it is read from (see `core/inputs.py`)."""
        return (self.path, self.tokenizer_folder)

    def summary(self, of: Callable[[Path], str]) -> str:
        """The digest of the files as they are now, or another summary of each (see `core/inputs.py`)."""
        return _summary(self.path, self.tokenizer_folder, of)

    @property
    def is_checkpoint(self) -> bool:
        """Whether transformers can load it."""
        return self.kind == "checkpoint"

    @property
    def family(self) -> EncoderFamily:
        """The encoder family of the config's model type; BERT where the config names none.

        Raises:
            ModelError: the model type, or this variant of it, is not supported.
        """
        return _family(self.config, where=str(self.tokenizer_folder / "config.json"))

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits, from the config's `id2label`."""
        names = self.config.get("id2label") or {}
        return tuple(str(names[key]) for key in sorted(names, key=int))


def resolve(name: str | Path, *, revision: str | None = None, allow_pickle: bool = False) -> ModelSource:
    """Find a model, download it if the name is a hub id, and read what it is.

    Args:
        name: a hub id, a folder, `package:NAME/PATH`, or an `.onnx` file.
        revision: branch, tag or commit on the hub.
        allow_pickle: download pickle weights if there are no others. Opening a pickle file runs code.

    Raises:
        ModelError: there is no such model, the hub does not answer, or the folder is not a checkpoint that octobert can use.
    """
    path = _locate(str(name), revision=revision, allow_pickle=allow_pickle)
    if path.is_file() and path.suffix != ".onnx":
        raise ModelError("not a model", where=str(path), got=path.suffix, expected="a checkpoint folder or an .onnx file")
    folder = path if path.is_dir() else _tokenizer_folder(path)
    stamp = _summary(path, folder, file_stamp)
    config = read_config(folder) if path.is_dir() or (folder / "config.json").is_file() else {}
    return ModelSource(
        path=path,
        kind="checkpoint" if path.is_dir() else "onnx",
        config=config,
        tokenizer_folder=folder,
        longest_input=longest_input(config),
        digest=_summary(path, folder, file_digest),
        stamp=stamp,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` of a checkpoint.

    Raises:
        ModelError: the file is missing or damaged, or asks for remote code.
    """
    path = folder / model_config.CONFIG
    if not path.is_file():
        raise ModelError("not a checkpoint folder", where=str(folder), got="no config.json", fix="check the path")
    config = model_config.read_config(folder)
    if config.get("auto_map"):
        raise ModelError(
            "the checkpoint needs its own Python code (trust_remote_code), which octobert never runs",
            where=str(path),
            got=f"auto_map to {', '.join(sorted(map(str, config['auto_map'].values())))}",
            fix="use a model that is part of transformers, or give its ONNX export",
        )
    return config


def _family(config: dict[str, Any], *, where: str) -> EncoderFamily:
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


def _locate(name: str, *, revision: str | None, allow_pickle: bool) -> Path:
    """The folder or `.onnx` file of a model, downloaded if its name is a hub id."""
    if name.startswith("package:"):
        return _in_package(name.removeprefix("package:"))
    path = Path(name).expanduser()
    # Unlike `Path.exists`, it does not raise for names that no file system takes.
    if os.path.exists(path):
        return path
    if looks_local(name, (".onnx",)):
        raise ModelError("there is no such file or folder", where=name, fix="check the path")
    try:
        from huggingface_hub import list_repo_files, snapshot_download
    except ModuleNotFoundError:
        raise ModelError(
            "a hub id needs huggingface_hub", where=name, fix=f"{environment.install('torch')}, or give a local folder"
        ) from None
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_DOWNLOADED))
        without = [own for own in _weighted_folders(folder) if not list((folder / own).glob("*.safetensors"))]
        if without:
            # Pickle weights are downloaded only when they are allowed.
            names = {str(Path(own, pickle)) for own in without for pickle in PICKLES}
            pickles = sorted(names & set(list_repo_files(name, revision=revision)))
            if pickles and not allow_pickle:
                raise pickle_only(f"{name}/{pickles[0]}")
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=[*_DOWNLOADED, "*.bin"]))
        return folder
    except ModelError:
        raise
    except Exception as error:  # the hub client raises many unrelated types: network, authorization, not found, cache
        raise ModelError(
            "there is no folder of that name, and it could not be downloaded from the hub",
            where=name,
            got=f"{type(error).__name__}: {reason(error, 0, longest=200)}",
            fix="check the name, the network and your token, or give a local folder",
        ) from error


def _weighted_folders(folder: Path) -> list[str]:
    """Folders of a model that may hold weights, relative to it: its own, and those of its modules."""
    return list(dict.fromkeys([".", *(own.relative_to(folder).as_posix() for _, own in modules_of(folder))]))


def _in_package(name: str) -> Path:
    distribution, _, inner = name.partition("/")
    package = distribution.replace("-", "_")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        what = f'the package "{distribution}" is not installed'
        raise ModelError(what, where=f"package:{name}", fix=f"pip install {distribution}")
    folder = Path(next(iter(spec.submodule_search_locations))) / inner
    if not folder.exists():
        raise ModelError("the package has no such folder", where=str(folder), fix="check the path after the package's name")
    return folder


def pickle_only(where: str) -> ModelError:
    """The error for a checkpoint that has no safetensors weights."""
    return ModelError(
        "the checkpoint has only pickle weights, and opening a pickle file runs code",
        where=where,
        expected="model.safetensors",
        fix="convert it to safetensors, or pass --allow-pickle if you trust its author",
    )


def _tokenizer_folder(file: Path) -> Path:
    """The folder of an ONNX file's config and tokenizer: its own, or the one above for `onnx/model.onnx`."""
    folders = (file.parent, file.parent.parent)
    return next((f for f in folders if any((f / name).is_file() for name in _BESIDE)), file.parent)


def _summary(path: Path, folder: Path, of: Callable[[Path], str]) -> str:
    files = [path, *external_files(path)] if path.is_file() else []
    for pattern in _DIGESTED + (() if files else ("*.safetensors", "*.bin")):
        files += sorted(folder.glob(pattern))
    named = {file.name: file for file in files} | {name: folder / name for name in module_files(folder)}
    try:
        return canonical_digest([[name, of(file)] for name, file in named.items()])
    except OSError as error:
        fix = "check its permissions"
        raise ModelError("the file cannot be read", where=str(error.filename), got=error.strerror, fix=fix) from error
