"""Which files the name of a model stands for.

A model is named by a folder, an `.onnx` file whose tokenizer lies beside it, a zip file of either, a name that one of `sources`
knows by its beginning (`https://…`, `package:NAME/PATH`, `azureml://…`), or a hub id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from octobert.core import archives, environment
from octobert.core.budget import check_size
from octobert.core.errors import ModelError, hub_error
from octobert.core.files import (
    atomic_folder,
    canonical_digest,
    content_of,
    file_digest,
    file_stamp,
    looks_local,
)
from octobert.core.model_config import (
    ABOUT,
    CONFIG,
    MODULES,
    QUERY_TABLE,
    READ,
    TABLE_FILES,
    TOKENIZER_FILES,
    WEIGHTS,
    read_object,
)
from octobert.core.origin import copy_file, listed
from octobert.models import sources
from octobert.models.sentence_transformers import (
    entries,
    module_files,
    modules_of,
    tabled,
)
from octobert.models.sources import PICKLES

# Of the weights of an encoder.
_WEIGHTS = ("*.safetensors", "*.bin")
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
        without = [place for place in places if not listed(place, _WEIGHTS[0], anywhere=True)]
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
        place = folder / "snapshots" / content_of(main).decode().strip()
        # The file comes from anybody, and another folder may be its reader's own.
        if place.resolve(strict=True) != folder.resolve() / "snapshots" / place.name:
            raise ValueError("no folder of snapshots")
        return place.resolve()
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
    files = _files_in(folder, encoder)
    modules = {"": kind}
    for number, (other, place) in enumerate(others, 1):
        # Several may have one name.
        name = f"{number}_{place.name}"
        modules[name] = other
        files |= _part(folder, place, (CONFIG, *WEIGHTS), name)
    names = (Path(name).name for name in TABLE_FILES)
    files |= _part(folder, table, names, QUERY_TABLE) | listed(folder, ABOUT)
    return completed(files, {MODULES: json.dumps(entries(modules), indent=2)}, folder)


def files_of(folder: Path, *, weights: bool = True) -> dict[str, Path]:
    """Return name → path of the files that are read of a model's folder.

    Args:
        folder: The folder.
        weights: With those of the encoder's weights, which may be links to other places.

    Raises:
        ModelError: Another file is a link that leaves the folder, a pipe or a device.
    """
    return _files_in(folder, folder, weights=weights) | module_files(folder)


def check_fits(files: Iterable[Path], where: Path) -> None:
    """Refuse files of a model that are larger than the memory, before they are read. A file may state any size, as a hole has.

    Raises:
        ModelError: They are.
    """
    size = sum(file.stat().st_size for file in files)
    check_size(ModelError, "the files of the model", size, where=where)


def _files_in(folder: Path, encoder: Path, *, weights: bool = True) -> dict[str, Path]:
    """The files of an encoder in a part of a folder, without those of modules."""
    found = _part(folder, encoder, _WEIGHTS, anywhere=True) if weights else {}
    return found | _part(folder, encoder, READ)


def _part(
    folder: Path, place: Path, patterns: Iterable[str], to: str = "", *, anywhere: bool = False
) -> dict[str, Path]:
    """Files of a folder that lie in one place of it: name in the folder `to` → path."""
    within = place.relative_to(folder)
    found = listed(folder, *(str(within / pattern) for pattern in patterns), anywhere=anywhere)
    return {
        (Path(to) / Path(name).relative_to(within)).as_posix(): path for name, path in found.items()
    }


def completed(files: Mapping[str, Path], written: Mapping[str, str], where: Path) -> Path:
    """Return a folder in octobert's cache folder with copies of files, and with other ones. Weights of encoders are linked.

    Args:
        files: name → path of what was listed.
        written: name → content; instead of a file of that name.
        where: the model, for errors.
    """
    copied = {name: path for name, path in files.items() if name not in written}
    weights = [
        name for name in copied if "/" not in name and name.endswith((".safetensors", ".bin"))
    ]
    linked = {name: copied.pop(name).resolve() for name in weights}
    check_fits(files.values(), where)
    digests = {name: file_digest(path) for name, path in copied.items()}
    stamps = {name: [str(path), file_stamp(path)] for name, path in linked.items()}
    key = canonical_digest([digests, stamps, dict(written)])
    with environment.place_in_cache("checkpoints", key[:16]) as place:
        if not place.is_dir():
            with atomic_folder(place) as partial:
                for name, path in copied.items():
                    copy_file(path, partial / name)
                for name, path in linked.items():
                    _link(path, partial / name)
                for name, content in written.items():
                    (partial / name).write_text(content, encoding="utf-8")
    return place


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError:  # Windows lets only some users make links
        copy_file(source, target)


def pickle_only(where: str) -> ModelError:
    """The error for a checkpoint that has no safetensors weights."""
    return ModelError(
        "the checkpoint has only pickle weights, and opening a pickle file runs code",
        where=where,
        expected="model.safetensors",
        fix="convert it to safetensors, or pass --allow-pickle if you trust its author",
    )
