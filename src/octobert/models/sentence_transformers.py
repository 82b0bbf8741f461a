"""The folder of a sentence-transformers model: its modules are read, and the files written with which that library opens it.

modules.json                        encoder, pooling and what follows it
1_Pooling/config.json               how token states become a vector
2_Dense/…                           weights of a module after pooling, copied
sentence_bert_config.json           the longest text, in tokens
config_sentence_transformers.json   prompts, similarity

Types of modules have the names of releases before 5.4, which newer releases read as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from octobert.core.errors import ModelError
from octobert.core.files import stays_inside
from octobert.core.heads import Head
from octobert.core.model_config import (
    ABOUT,
    CONFIG,
    GLINER,
    MODE_KEYS,
    MODULES,
    QUERY_TABLE,
    ROUTER,
    SENTENCE_CONFIG,
    TABLE_FILES,
    TEMPLATE,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Normalize,
    Pooling,
    chat_template,
    read_json,
    read_object,
    write_json,
)
from octobert.core.origin import copy_files, listed
from octobert.core.plain import preview

# What a file system can take, such as `1_Pooling`.
_FOLDER = r"[\w .\-/]{0,200}"


# Keys of `ABOUT` that change what is computed; versions of other packages say nothing about these files.
_ABOUT_KEYS = (
    "prompts",
    "default_prompt_name",
    "similarity_fn_name",
    "truncate_dim",
    "max_active_dims",
)
# Of `SENTENCE_CONFIG`: what is passed on to whoever opens the encoder's file.
FILE_KEY = "model_args"
# The modules of each class up to the pooling.
_FIRST = {
    "SentenceTransformer": ("models.Transformer", "models.Pooling"),
    "SparseEncoder": (
        "sparse_encoder.models.MLMTransformer",
        "sparse_encoder.models.SpladePooling",
    ),
}
_TABLE_OF_QUERIES = "sparse_encoder.models.SparseStaticEmbedding"
# What SPLADE's pooling saturates by, once and twice.
SATURATIONS = ("relu", "log1p_relu")
_NAMES = {"normalize": "Normalize", "dense": "Dense", "layer-norm": "LayerNorm"}
_SETFIT = "model_head.pkl"
WHOLE = "export the whole model to ONNX, with its scores as the output logits, and give that file"
_DENSE = (
    "a sentence encoder, which has one vector for each text",
    "choose the task embedding",
)
_SPARSE = (
    "a sparse encoder (SPLADE), whose vectors have an entry for each token of the vocabulary",
    "choose the task sparse-embedding",
)
_SPARSE_STATES = (
    "a sparse encoder that makes entries of its own of a dense vector",
    "quantize its encoder as a SentenceTransformer with the task embedding",
)
_LATE = (
    "a late-interaction model (ColBERT), which has a vector for each token of a text",
    "choose the task late-interaction",
)
_CROSS = (
    "a cross-encoder, which scores texts",
    "choose the task reranking or text-classification",
)
_TABLE = (
    "a table of token vectors without an encoder",
    "use it as it is: there are no layers that 8 bits would make faster",
)
_ROUTES = (
    "a router between encoders",
    "save the modules of one route as a SentenceTransformer of its own",
)
_IMAGES = ("CLIP, an encoder of texts and images", "choose a model of texts")
# What a model is and which task takes it, by the class of sentence-transformers that its files name, or by its modules.
_KINDS = {
    "SentenceTransformer": (_DENSE, ("SentenceTransformer", "Pooling")),
    "SparseEncoder": (_SPARSE, ("SparseEncoder", "MLMTransformer", "SpladePooling")),
    "MultiVectorEncoder": (
        _LATE,
        ("MultiVectorEncoder", "MultiVectorMask", "ColBERT", "HF_ColBERT", "pylate"),
    ),
}
# What other models are, and what to use instead, by what their files name: a module, a class, a type of model.
_OTHERS = {
    "SparseAutoEncoder": _SPARSE_STATES,
    **dict.fromkeys(
        ("StaticEmbedding", "SparseStaticEmbedding", "BoW", "WordEmbeddings", "model2vec"), _TABLE
    ),
    **dict.fromkeys(("Router", "Asym"), _ROUTES),
    **dict.fromkeys(("CLIPModel", "clip"), _IMAGES),
    GLINER: (
        "GLiNER, which reads its labels beside the text",
        "choose a model that transformers opens for token-classification",
    ),
    "LogitScore": (
        "a reranker that compares the logits of two tokens, such as yes and no",
        WHOLE,
    ),
    _SETFIT: (
        "SetFit, a sentence encoder with a classifier of scikit-learn behind it",
        "remove the classifier's file to quantize the encoder alone, with the task embedding",
    ),
}


def modules_of(folder: Path) -> list[tuple[str, Path]]:
    """(type, folder) of the modules of a sentence-transformers model, in order; none for any other folder.

    Raises:
        ModelError: `modules.json` cannot be read.
    """
    path = folder / MODULES
    if not path.is_file():
        return []
    entries = read_json(path)
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("type"), str) for e in entries
    ):
        raise ModelError(
            "modules.json is not a list of modules", where=str(path), fix="download it again"
        )
    return [(entry["type"], _place(path, entry.get("path", ""))) for entry in entries]


def _place(file: Path, stated: Any) -> Path:
    """The folder of a module that a file beside it states.

    Raises:
        ModelError: it is no folder of the model.
    """
    if not isinstance(stated, str) or not re.fullmatch(_FOLDER, stated, re.ASCII):
        raise ModelError(
            "the path of a module is no folder",
            where=str(file),
            got=repr(stated),
            fix="download it again",
        )
    if stated and not stays_inside(stated):
        raise ModelError("a module lies outside of the model's folder", where=str(file), got=stated)
    return file.parent / stated


def tabled(folder: Path) -> tuple[list[tuple[str, Path]], Path] | None:
    """Of a sparse encoder whose queries need no model: the modules that read documents, and the table that makes queries.

    Returns:
        (type, folder) of each module, and the folder of the weights of tokens; None for any other model.

    Raises:
        ModelError: its files cannot be read, or a folder is missing.
    """
    if [_name_of(kind) for kind, _ in modules_of(folder)] != ["Router"]:
        return None
    path = folder / ROUTER
    stated = read_object(path, missing_ok=True)
    types, routes = stated.get("types"), stated.get("structure")
    sides = ("query", "document")
    if not isinstance(types, dict) or not isinstance(routes, dict) or not routes.keys() >= {*sides}:
        return None
    query, document = (_route(path, types, routes[side]) for side in sides)
    kinds = [[_name_of(kind) for kind, _ in route] for route in (query, document)]
    is_table = kinds[0] == ["SparseStaticEmbedding"] and kinds[1][:1] == ["MLMTransformer"]
    return (document, query[0][1]) if is_table else None


def _route(path: Path, types: Mapping[str, Any], names: Any) -> list[tuple[str, Path]]:
    """(type, folder) of the modules of one route.

    Raises:
        ModelError: they are no list of folders of the model.
    """
    if not isinstance(names, list):
        raise ModelError(
            "a route is not a list of modules",
            where=str(path),
            got=preview(names),
            fix="download it again",
        )
    places = [_place(path, name) for name in names]
    for place in places:
        if not place.is_dir():
            raise ModelError(
                "the folder of a module is missing",
                where=str(place),
                fix="download the model again",
            )
    return [(str(types.get(name)), place) for name, place in zip(names, places, strict=True)]


def _name_of(kind: str) -> str:
    """The name of a class without its package."""
    return kind.rpartition(".")[2]


def entries(types: Mapping[str, str]) -> list[dict[str, Any]]:
    """What `modules.json` holds of modules in order: folder → type."""
    return [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(types.items())
    ]


def modular_head(folder: Path, head: Head) -> Head | None:
    """Return a head as the modules of a cross-encoder make it; None where layers of transformers do.

    Raises:
        ModelError: the files that say so cannot be read.
    """
    about = read_object(folder / ABOUT, missing_ok=True)
    is_cross = about.get("model_type") == "CrossEncoder" and len(modules_of(folder)) > 1
    return replace(head, encoder="CrossEncoder") if head.modular and is_cross else None


def check_kind(folder: Path, head: Head | None = None) -> None:
    """Refuse a folder whose files name a kind of model that no task takes, or another one than a head is for.

    Raises:
        ModelError: with what it is, and what to use instead; or its encoder is in a folder of its own.
    """
    modules = modules_of(folder)
    about, config = (read_object(folder / name, missing_ok=True) for name in (ABOUT, CONFIG))
    # Without modules.json that library does not read the other file either.
    names = [str(about.get("model_type"))] if modules else []
    for kind, _ in modules:
        names += [kind.partition(".")[0], _name_of(kind)]
    names += [
        str(name) for name in (config.get("model_type"), *(config.get("architectures") or ()))
    ]
    names += [name for name in (GLINER, _SETFIT) if (folder / name).is_file()]
    others = dict(_OTHERS)
    for encoder, (words, own) in _KINDS.items():
        # Modules between the encoder and the scores of a cross-encoder are those of sentence encoders.
        if head is not None and head.encoder not in (encoder, "CrossEncoder"):
            others |= dict.fromkeys(own, words)
    if head is not None and head.encoder and head.encoder != "CrossEncoder":
        others["CrossEncoder"] = _CROSS
    for name in names:
        if name in others:
            what, fix = others[name]
            raise ModelError(
                f"the model is {what}",
                where=str(folder),
                got=name,
                fix=fix,
            )
    if modules and modules[0][1].resolve() != folder.resolve():
        raise ModelError(
            "the encoder is in a folder of its own",
            where=str(folder / MODULES),
            got=modules[0][1].name,
            expected="the model's folder",
            fix="save the model again with a current version of sentence-transformers",
        )


def check_template(folder: Path) -> None:
    """Refuse a plain encoder or reranker whose tokenizer has a chat template, which sentence-transformers would use.

    Raises:
        ModelError: with the file that has it.
    """
    stated = read_object(folder / TOKENIZER_CONFIG, missing_ok=True).get("chat_template")
    file = folder / (TOKENIZER_CONFIG if stated else TEMPLATE)
    if (stated or file.is_file()) and not (folder / MODULES).is_file():
        raise chat_template(file)


def module_files(folder: Path) -> dict[str, Path]:
    """Return name → path of the files that make a folder a sentence-transformers model, but for those of its encoder.

    Raises:
        ModelError: `modules.json` cannot be read, or a file is a link that leaves the folder.
    """
    places = [place.relative_to(folder) for _, place in modules_of(folder) if place != folder]
    patterns = [(place / name).as_posix() for place in places for name in (CONFIG, *WEIGHTS)]
    return listed(folder, MODULES, ABOUT, *patterns, *TABLE_FILES)


def copy_modules(source: Path, folder: Path) -> None:
    """Copy the files that make a folder a sentence-transformers model, but for those of its encoder."""
    copy_files(source, module_files(source), folder)


def write(
    folder: Path,
    source: Path,
    head: Head,
    pooling: Pooling,
    *,
    hidden: int,
    max_length: int,
    onnx_file: str | None = None,
) -> None:
    """Write the files.

    Args:
        folder: to write into.
        source: holds the folders of `pooling.steps`, and the last two files, where the model has them.
        head: of the model.
        pooling: of the model.
        hidden: width of the token states.
        max_length: the longest text, in tokens; longer ones are cut.
        onnx_file: what is opened in the folder `onnx`; None leaves it to the default, `model.onnx`.
    """
    stated, settings = (
        read_object(source / name, missing_ok=True) for name in (ABOUT, SENTENCE_CONFIG)
    )
    opened = {FILE_KEY: {"file_name": onnx_file}} if onnx_file is not None else {}
    if not pooling.modes:
        # Modules on tokens, in the form of the library that wrote them, with how it reads texts.
        copy_modules(source, folder)
        write_json(folder / SENTENCE_CONFIG, settings | {"max_seq_length": max_length} | opened)
        return
    kinds = list(_FIRST[head.encoder])
    folders = ["", f"1_{_name_of(kinds[1])}"]
    for number, step in enumerate(pooling.steps, start=2):
        kinds.append(f"models.{_NAMES[step.kind]}")
        folders.append(f"{number}_{_NAMES[step.kind]}")
        if not isinstance(step, Normalize):
            copy_files(source / step.folder, (CONFIG, *WEIGHTS), folder / folders[-1])
    types = {
        place: f"sentence_transformers.{kind}" for place, kind in zip(folders, kinds, strict=True)
    }
    modules = types
    if (source / QUERY_TABLE).is_dir():
        copy_files(source, TABLE_FILES, folder)
        modules = {"": "sentence_transformers.models.Router"}
        routes = {
            "types": types | {QUERY_TABLE: f"sentence_transformers.{_TABLE_OF_QUERIES}"},
            "structure": {"query": [QUERY_TABLE], "document": list(types)},
            "parameters": {"default_route": "document"},
        }
        write_json(folder / ROUTER, routes)
    flags = {flag: mode in pooling.modes for flag, mode in MODE_KEYS.items()}
    options: dict[str, Any] = {
        "word_embedding_dimension": hidden,
        **flags,
        "include_prompt": pooling.include_prompt,
    }
    if pooling.saturation:
        options = {
            "pooling_strategy": pooling.modes[0],
            "activation_function": SATURATIONS[pooling.saturation - 1],
        }
    if len(pooling.modes) > 1:
        # The flags do not say in which order vectors are joined.
        options["pooling_mode"] = list(pooling.modes)
    about = {key: stated[key] for key in _ABOUT_KEYS if stated.get(key) is not None}
    about["model_type"] = head.encoder
    lower = bool(settings.get("do_lower_case", False))
    for name, content in (
        (MODULES, entries(modules)),
        (f"{folders[1]}/config.json", options),
        (SENTENCE_CONFIG, {"max_seq_length": max_length, "do_lower_case": lower} | opened),
        (ABOUT, about),
    ):
        write_json(folder / name, content)
