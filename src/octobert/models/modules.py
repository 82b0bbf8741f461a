"""`modules.json`: the modules of a sentence-transformers model, in order, and the folders that hold them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from octobert.core.errors import ModelError
from octobert.core.files import stays_inside
from octobert.core.model_config import read_json

MODULES, ABOUT = "modules.json", "config_sentence_transformers.json"
# What a file system can take, such as `1_Pooling`.
_FOLDER = r"[\w .\-/]{0,200}"
# Of a module, the safe form first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


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
    modules = []
    for entry in entries:
        stated = entry.get("path", "")
        if not isinstance(stated, str) or not re.fullmatch(_FOLDER, stated, re.ASCII):
            raise ModelError(
                "the path of a module is no folder",
                where=str(path),
                got=repr(stated),
                fix="download it again",
            )
        if stated and not stays_inside(stated):
            raise ModelError(
                "a module lies outside of the model's folder", where=str(path), got=stated
            )
        modules.append((entry["type"], folder / stated))
    return modules


def module_files(folder: Path) -> list[str]:
    """The files that make a folder a sentence-transformers model, relative to it, but for those of its encoder."""
    found = [folder / MODULES, folder / ABOUT]
    for _, own in modules_of(folder):
        if own.resolve() != folder.resolve() and own.is_dir():
            found += [own / name for name in ("config.json", *WEIGHTS)]
    return [path.relative_to(folder).as_posix() for path in found if path.is_file()]


def copy_modules(source: Path, folder: Path) -> None:
    """Copy these files into another folder."""
    for name in module_files(source):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)
