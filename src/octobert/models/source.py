"""Where a model is and what it is: `resolve` turns the name that a user gives into a `ModelSource`, once for each run.

`locating` finds the files that a name stands for. What they are is read here, and what they state about texts and answers, in
the words of transformers and sentence-transformers (`read_metadata`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from octobert.core import model_config
from octobert.core.errors import ModelError, did_you_mean, unreadable
from octobert.core.families import family_of, longest_input, model_types
from octobert.core.family import EncoderFamily
from octobert.core.files import canonical_digest, file_digest, file_stamp, opened
from octobert.core.frozen import FrozenModel
from octobert.core.heads import HEADS, Head
from octobert.core.model_config import (
    ABOUT,
    MODULES,
    QUERY_TABLE,
    TOKENIZER_FILES,
    Config,
    Dense,
    Similarity,
    read_object,
)
from octobert.core.onnx_files import external_files, tables_of
from octobert.core.origin import listed
from octobert.core.results import ModelMetadata, Problem
from octobert.models.late_interaction import reading_of
from octobert.models.locating import check_fits, completed, files_of, flat, locate
from octobert.models.pooling import pooling_of
from octobert.models.sentence_transformers import check_kind, modular_head
from octobert.models.weights import other_kind

_BESIDE = ("tokenizer.json", "config.json", "vocab.txt")


# An architecture that has classes: transformers leaves the names of two out of the config, if they are its own.
_CLASSIFIER = re.compile("For(Sequence|Token)Classification$")
_PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "single-label",
    "multi_label_classification": "multi-label",
    "regression": "regression",
}


class ModelSource(FrozenModel):
    """A model on this machine, before octobert changes it.

    Args:
        path: the checkpoint folder or the `.onnx` file.
        kind: `checkpoint` (weights that transformers loads) or `onnx`.
        config: `config.json` as a dictionary, with the rows of its tables where an ONNX file has them.
        tokenizer_folder: the folder of the config and the tokenizer.
        longest_input: the largest number of tokens that the model has positions for, special tokens included.
        digest: sha256 over weights, config, tokenizer and modules; the same wherever the files are.
        stamp: what the file system said of these files before they were read.
    """

    path: Path
    kind: Literal["checkpoint", "onnx"]
    config: Config
    tokenizer_folder: Path
    longest_input: int
    digest: str
    stamp: str

    @property
    def places(self) -> tuple[Path, ...]:
        """Where it is read from (see `engine/contract.py`)."""
        return (self.path, self.tokenizer_folder)

    def summary(self, of: Callable[[Path], str]) -> str:
        """The current digest of the files, or another summary of each (see `engine/contract.py`)."""
        return _summary(self.path, self.tokenizer_folder, of)

    @property
    def is_checkpoint(self) -> bool:
        """Return whether transformers can load it."""
        return self.kind == "checkpoint"

    @property
    def family(self) -> EncoderFamily:
        """The encoder family of the config's model type; BERT where the config names none.

        Raises:
            ModelError: the model type, or this variant of it, is not supported.
        """
        where = str(self.tokenizer_folder / "config.json")
        model_type = str(self.config.get("model_type", "bert"))
        family = family_of(model_type)
        if family is None:
            raise ModelError(
                f'model type "{model_type}" is not supported',
                where=where,
                expected=", ".join(sorted(model_types())),
                fix="choose an encoder of one of these types",
            )
        for key, value in {
            "is_decoder": False,
            "is_encoder_decoder": False,
            **family.requires,
        }.items():
            if self.config.get(key, value) != value:
                raise ModelError(
                    f"this variant of {model_type} is not supported",
                    where=where,
                    got=f"{key} {json.dumps(self.config[key])}",
                    expected=f"{key} {json.dumps(value)}",
                )
        positions = str(self.config.get("position_embedding_type"))
        if self.is_checkpoint and positions.startswith("relative"):
            raise ModelError(
                "transformers 5 has no relative positions for this model, and would leave them out",
                where=where,
                got=f"position_embedding_type {positions}",
                expected="absolute",
                fix="export it with transformers 4, and give the ONNX file; or correct config.json if it was trained without",
            )
        return family

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits, from the config's `id2label`; where it has none, transformers' own."""
        names = self.config.get("id2label") or {}
        if not names and any(map(_CLASSIFIER.search, self.config.get("architectures") or ())):
            names = {index: f"LABEL_{index}" for index in range(self.config.get("num_labels") or 2)}
        return tuple(str(names[key]) for key in sorted(names, key=int))


def resolve(
    name: str | Path,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    family: str | None = None,
    tokenizer: str | None = None,
) -> ModelSource:
    """Find a model, download and unpack it where its name asks for that, and read what it is.

    Args:
        name: a hub id, a folder, an `.onnx` file, a zip file of either, a URL of such a file, or `package:NAME/PATH`.
        revision: branch, tag or commit on the hub.
        allow_pickle: download pickle weights if there are no others. Opening a pickle file runs code.
        family: the model type, for a `config.json` that names none.
        tokenizer: the folder of its tokenizer, or a hub id, where it does not lie beside the model.

    Raises:
        ModelError: there is no such model, the hub does not answer, or the folder is not a checkpoint that octobert can use.
    """
    path = locate(str(name), revision=revision, allow_pickle=allow_pickle)
    if path.is_file() and path.suffix != ".onnx":
        raise ModelError(
            "not a model",
            where=str(path),
            got=path.suffix,
            expected="a checkpoint folder or an .onnx file",
        )
    folder = path if path.is_dir() else tokenizer_folder(path)
    _check_files(folder)
    folder = flat(folder)
    path = folder if path.is_dir() else path
    config = read_config(folder) if path.is_dir() or (folder / "config.json").is_file() else {}
    if path.is_dir():
        _refuse_quantized(config, folder)
    where = str(folder / model_config.CONFIG)
    kind = _model_type(config, family, where=where, needed=path.is_dir())
    side = None if tokenizer is None else _tokenizer_at(tokenizer, revision)
    native = _native({**config, "model_type": kind} if kind or config else {}, where=where)
    if native != config or side is not None:
        config, files = native, files_of(folder)
        if side is not None:
            # The model's own tokenizer is left out.
            for name in listed(folder, *TOKENIZER_FILES):
                del files[name]
            files |= side
        folder = completed(files, {model_config.CONFIG: json.dumps(config, indent=2)}, path)
        path = folder if path.is_dir() else path
    stamp = _summary(path, folder, file_stamp)
    if path.is_file():
        config = {**config, **tables_of(path, file_stamp(path))}
    elif made := modular_head(folder, HEADS["sequence-classification"]):
        config = _of_classifier(config, folder, made)
    return ModelSource(
        path=path,
        kind="checkpoint" if path.is_dir() else "onnx",
        config=config,
        tokenizer_folder=folder,
        longest_input=longest_input(config),
        digest=_summary(path, folder, file_digest),
        stamp=stamp,
    )


def _check_files(folder: Path) -> None:
    """Refuse a folder whose files are links to nothing, pointers of Git LFS, or not for us to read."""
    read = listed(folder, *model_config.READ)
    for file in (read | listed(folder, "*.safetensors", anywhere=True)).values():
        try:
            opened(file).close()
        except OSError as error:
            raise unreadable(ModelError, error, file) from error


def _tokenizer_at(name: str, revision: str | None) -> dict[str, Path]:
    """Name → path of the files of a tokenizer that does not lie beside the model."""
    place = locate(name, revision=revision, allow_pickle=False)
    folder = place if place.is_dir() else place.parent
    files = listed(folder, *TOKENIZER_FILES)
    if not files:
        raise ModelError(
            "there is no tokenizer",
            where=str(folder),
            expected=", ".join(TOKENIZER_FILES),
            fix="name the folder in which it was saved",
        )
    return files


def _refuse_quantized(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a checkpoint whose weights another tool, such as GPTQ or bitsandbytes, has quantized."""
    stated = config.get("quantization_config") or config.get("compression_config")
    if stated:
        method = stated.get("quant_method") if isinstance(stated, dict) else None
        raise ModelError(
            "the checkpoint is quantized already",
            where=str(folder / model_config.CONFIG),
            got=f"quantization_config of {method}" if method else "a quantization_config",
            expected="weights in float",
            fix="give the float checkpoint that it was made from",
        )


def read_config(folder: Path) -> Config:
    """Read `config.json` of a checkpoint.

    Raises:
        ModelError: the file is missing or damaged, or asks for remote code.
    """
    path = folder / model_config.CONFIG
    if not path.is_file():
        check_kind(folder)
        raise other_kind(folder) or ModelError(
            "not a checkpoint folder", where=str(folder), got="no config.json", fix="check the path"
        )
    config = model_config.read_config(folder)
    family = family_of(str(config.get("model_type")))
    if config.get("auto_map") and (family is None or family.native is None):
        raise ModelError(
            "the checkpoint needs its own Python code (trust_remote_code), which octobert never runs",
            where=str(path),
            got=f"auto_map to {', '.join(sorted(map(str, config['auto_map'].values())))}",
            fix="use a model that is part of transformers, or give its ONNX export",
        )
    return config


def _native(config: Config, *, where: str) -> Config:
    """The config of transformers' own class, where the config names code from before there was one.

    Raises:
        ModelError: a key has a value that means nothing.
    """
    family = family_of(str(config.get("model_type")))
    if family is None or family.native is None:
        return config
    try:
        native = family.native(config)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            "the config cannot be read",
            where=where,
            got=f"{type(error).__name__}: {error}",
            fix="download or copy the model again",
        ) from error
    return {key: value for key, value in native.items() if key != "auto_map"}


def _of_classifier(config: Config, folder: Path, head: Head) -> Config:
    """The config of a cross-encoder's encoder as that of a classifier, with the number of classes that the last module makes.

    Raises:
        ModelError: the modules are not supported, or there are more classes than any model has.
    """
    last = pooling_of(folder, head).steps[-1]
    assert isinstance(last, Dense)
    stated = str((config.get("architectures") or ["Model"])[0])
    classifier = {
        **{key: value for key, value in config.items() if key not in ("id2label", "label2id")},
        "architectures": [re.sub(r"(For[A-Z]\w*|Model)$", head.architecture, stated)],
        "num_labels": last.out_features,
    }
    model_config.check_config(classifier, folder / last.folder / model_config.CONFIG)
    return classifier


def _model_type(config: Config, family: str | None, *, where: str, needed: bool) -> str | None:
    """The model type that a config states, or its architecture, or the user. Configs of old checkpoints do not state it.

    Args:
        needed: whether weights are loaded by it; an ONNX file without one is taken for a BERT.

    Raises:
        ModelError: nobody states it, or two state different ones.
    """
    stated = config.get("model_type")
    if stated is not None:
        if family not in (None, stated):
            raise ModelError(
                "the config names another model type",
                where=where,
                got=f"family: {family}",
                expected=str(stated),
                fix="leave family out",
            )
        return str(stated)
    architecture = re.match(r"(\w+?)(For[A-Z]\w*|Model)$", (config.get("architectures") or [""])[0])
    named = (
        {name.replace("-", ""): name for name in model_types()}.get(architecture[1].lower())
        if architecture
        else None
    )
    if family is None and named is None and needed:
        raise ModelError(
            "the config does not say of which type the model is",
            where=where,
            got="no model_type",
            fix=f"name it with family: bert, or another of {', '.join(sorted(model_types()))}",
        )
    return family or named


def tokenizer_folder(file: Path) -> Path:
    """The folder of an ONNX file's config and tokenizer: its own, or the one above for `onnx/model.onnx`."""
    folders = (file.parent, file.parent.parent)
    return next((f for f in folders if any((f / name).is_file() for name in _BESIDE)), file.parent)


def _summary(path: Path, folder: Path, of: Callable[[Path], str]) -> str:
    own = [path, *external_files(path)] if path.is_file() else []
    named = {file.name: file for file in own} | files_of(folder, weights=not own)
    check_fits(named.values(), path)
    try:
        return canonical_digest([[name, of(file)] for name, file in named.items()])
    except OSError as error:
        raise unreadable(ModelError, error, error.filename) from error


def read_metadata(source: ModelSource) -> ModelMetadata:
    """Read the metadata that a model states about its texts and answers.

    Raises:
        ModelError: a statement that cannot be followed.
    """
    config, about = source.config, _about(source)
    where = str(source.tokenizer_folder / "config.json")
    problem = config.get("problem_type")
    if problem is not None and problem not in _PROBLEMS:
        raise ModelError(
            "there is no such problem_type",
            where=where,
            got=repr(problem),
            expected=", ".join(_PROBLEMS),
        )
    texts = _object(about.get("prompts"))
    prompts = {str(name): str(text) for name, text in texts.items() if text}
    default = about.get("default_prompt_name")
    if default is not None and str(default) not in texts:
        raise ModelError(
            "the default prompt is not one of the model's prompts",
            where=str(source.tokenizer_folder / ABOUT),
            got=str(default),
            fix=did_you_mean(str(default), prompts),
        )
    similarity, reading = about.get("similarity_fn_name"), reading_of(source.tokenizer_folder)
    if reading is not None:
        # Vectors of tokens have one similarity: the best of each token of the query, added up.
        similarity = None
    if similarity not in (None, *get_args(Similarity)):
        raise ModelError(
            "there is no such similarity",
            where=str(source.tokenizer_folder / ABOUT),
            got=f"similarity_fn_name {similarity!r}",
            expected=", ".join(get_args(Similarity)),
        )
    most = about.get("max_active_dims")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ModelError(
            "not a number of entries of a sparse vector",
            where=str(source.tokenizer_folder / ABOUT),
            got=f"max_active_dims {most!r}",
            expected="1 or more",
        )
    activation = (
        about.get("activation_fn")
        or _object(config.get("sentence_transformers")).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    return ModelMetadata(
        labels=source.labels,
        problem=_PROBLEMS.get(str(problem)),
        activation=None if activation is None else str(activation),
        prompts=prompts,
        default_prompt=default if default in prompts else None,
        similarity=similarity,
        most_active=most,
        reading=reading,
        query_table=(source.tokenizer_folder / QUERY_TABLE).is_dir(),
    )


def _about(source: ModelSource) -> dict[str, Any]:
    """The metadata file of a sentence-transformers model. Without `modules.json` that library does not read it either."""
    folder = source.tokenizer_folder
    return read_object(folder / ABOUT, missing_ok=True) if (folder / MODULES).is_file() else {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
