"""Which files the name of a model stands for.

A model is named by a folder, an `.onnx` file whose tokenizer lies beside it, a zip file of either, a name that one of `sources`
knows by its beginning (`https://…`, `package:NAME/PATH`, `azureml://…`), or a hub id.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from octobert.core import archives, environment
from octobert.core.errors import ModelError, hub_error
from octobert.core.files import canonical_digest, content_of, looks_local, remove
from octobert.core.model_config import MODULES, QUERY_TABLE, read_object
from octobert.models import sources
from octobert.models.sentence_transformers import ABOUT, entries, modules_of, tabled
from octobert.models.sources import PICKLES

# Of a tokenizer, as transformers saves it.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "*.model"),
)
_TOKENIZER = TOKENIZER_FILES[0]
# What of it makes tokens of a text; special tokens around it may differ.
_MAKE_TOKENS = ("model", "normalizer", "pre_tokenizer", "added_tokens")
_DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.model"]


def locate(name: str, *, revision: str | None, allow_pickle: bool) -> Path:
    """The folder or `.onnx` file of a model, downloaded and unpacked where its name asks for that.

    Args:
        name: as users give it.
        revision: branch, tag or commit on the hub.
        allow_pickle: download pickle weights from the hub if there are no others.

    Raises:
        ModelError: there is no such model, or it cannot be downloaded or unpacked.
    """
    source = sources.of(name)
    path = source.fetch(name) if source is not None else Path(os.path.expanduser(name))
    # Unlike `Path.exists`, it does not raise for names that no file system takes.
    if os.path.exists(path):
        if path.suffix.lower() == archives.SUFFIX and path.is_file():
            return sources.model_in(archives.unpacked(path), str(path))
        return _snapshot(path) if (path / "snapshots").is_dir() else path
    if looks_local(name, (".onnx", archives.SUFFIX)):
        raise ModelError("there is no such file or folder", where=name, fix="check the path")
    from huggingface_hub import list_repo_files, snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_DOWNLOADED))
        route = tabled(folder)
        modules = [*route[0], ("", route[1])] if route else modules_of(folder)
        # Its own folder, and those of its modules.
        places = [folder, *(place for _, place in modules)]
        without = [place for place in places if not list(place.glob("*.safetensors"))]
        # Pickle weights are downloaded only when they are allowed.
        names = {
            (place / pickle).relative_to(folder).as_posix()
            for place in without
            for pickle in PICKLES
        }
        pickles = sorted(names & set(list_repo_files(name, revision=revision))) if without else []
        if pickles:
            if not allow_pickle:
                raise pickle_only(f"{name}/{pickles[0]}")
            folder = Path(
                snapshot_download(name, revision=revision, allow_patterns=[*_DOWNLOADED, "*.bin"])
            )
        return folder
    except ModelError:
        raise
    except Exception as error:  # the hub client raises many unrelated types: network, authorization, not found, cache
        raise hub_error(ModelError, error, name) from error


def _snapshot(folder: Path) -> Path:
    """The snapshot of the branch main in a folder of the hub's cache, `models--ORG--NAME`.

    Raises:
        ModelError: there is none.
    """
    main = folder / "refs" / "main"
    try:
        return (folder / "snapshots" / content_of(main).decode().strip()).resolve(strict=True)
    except (OSError, ValueError) as error:
        raise ModelError(
            "the folder of the hub's cache does not say which snapshot is meant",
            where=str(main),
            fix="give the folder of one, snapshots/COMMIT, or the name of the model on the hub",
        ) from error


def flat(folder: Path) -> Path:
    """The folder of a sparse encoder whose queries need no model (see `tabled`) as that of its encoder; any other as it is.

    Raises:
        ModelError: its files cannot be read, or queries have another tokenizer than documents.
    """
    route = tabled(folder)
    if route is None:
        return folder
    ((kind, encoder), *others), table = route
    ours, theirs = (read_object(place / _TOKENIZER) for place in (encoder, table))
    if any(ours.get(key) != theirs.get(key) for key in _MAKE_TOKENS):
        raise ModelError(
            "queries have another tokenizer than documents",
            where=str(table / _TOKENIZER),
            fix="download the model again",
        )
    # Several may have one name.
    named = {
        f"{number}_{place.name}": (other, place) for number, (other, place) in enumerate(others, 1)
    }
    modules = entries({"": kind, **{name: other for name, (other, _) in named.items()}})
    linked = {name: place for name, (_, place) in named.items()} | {QUERY_TABLE: table}
    if (folder / ABOUT).is_file():
        linked[ABOUT] = folder / ABOUT
    return completed(encoder, {MODULES: json.dumps(modules, indent=2), **linked})


def completed(
    folder: Path, others: Mapping[str, str | Path], tokenizer: Path | None = None
) -> Path:
    """A folder in octobert's cache folder with the files of a checkpoint, and with other ones or another tokenizer.

    Args:
        folder: the checkpoint. Its files are linked, or copied where links are not possible.
        others: name → content of a file, or a file or folder that is linked.
        tokenizer: the folder of another tokenizer; None for that of the checkpoint.
    """
    places = [str(path.resolve()) for path in (folder, tokenizer) if path is not None]
    named = {name: str(other) for name, other in others.items()}
    with environment.place_in_cache(
        "checkpoints", canonical_digest([*places, named])[:16]
    ) as place:
        place.mkdir(exist_ok=True)
        files = {path.name: path for path in folder.iterdir()}
        if tokenizer is not None:
            files = {name: path for name, path in files.items() if not _of_tokenizer(path)}
            files |= {path.name: path for path in filter(_of_tokenizer, tokenizer.iterdir())}
        files |= {name: other for name, other in others.items() if isinstance(other, Path)}
        written = {name: other for name, other in others.items() if isinstance(other, str)}
        files = {name: path for name, path in files.items() if name not in written}
        for path in place.iterdir():
            if path.name not in {*files, *written} or not path.exists():
                remove(path)
        for name, path in files.items():
            # What was copied may have changed since.
            if not (place / name).is_symlink():
                remove(place / name)
                _link(path.resolve(), place / name)
        for name, content in written.items():
            if not (place / name).exists():
                (place / name).write_text(content, encoding="utf-8")
    return place


def _of_tokenizer(path: Path) -> bool:
    return any(path.match(pattern) for pattern in TOKENIZER_FILES)


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source, target_is_directory=source.is_dir())
    except OSError:  # Windows lets only some users make links
        shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)


def pickle_only(where: str) -> ModelError:
    """The error for a checkpoint that has no safetensors weights."""
    return ModelError(
        "the checkpoint has only pickle weights, and opening a pickle file runs code",
        where=where,
        expected="model.safetensors",
        fix="convert it to safetensors, or pass --allow-pickle if you trust its author",
    )
