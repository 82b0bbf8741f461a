"""Where models come from beside files and the Hub: a source knows its names by how they begin, and brings the files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from octobert.core.errors import ModelError
from octobert.core.frozen import FrozenModel
from octobert.core.model_config import CONFIG
from octobert.core.origin import listed
from octobert.core.plugins import Plugins

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Source(FrozenModel, ABC, validate_default=True):
    """A place that models come from.

    Args:
        prefixes: what names of its models begin with, such as `azureml://`.
    """

    prefixes: tuple[str, ...]

    @abstractmethod
    def fetch(self, name: str) -> Path:
        """Return the folder, `.onnx` file or zip file of a model, in octobert's cache folder or in place.

        Raises:
            ModelError: there is no such model, or it cannot be had.
        """


PLUGINS = Plugins("sources", Source)
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each


def of(name: str) -> Source | None:
    """Return the source of a model's name; None for files and ids of the Hub."""
    return next((source for _, source in each() if name.startswith(source.prefixes)), None)


def model_in(folder: Path, where: str) -> Path:
    """Return the folder of a checkpoint, or the only ONNX file, wherever they lie in a folder of unknown origin."""
    exports = list(listed(folder, "**/*.onnx").values())
    places = [path.parent for path in listed(folder, f"**/{CONFIG}").values()]
    least = min((len(place.parts) for place in places), default=0)
    nearest = [place for place in places if len(place.parts) == least]
    if len(nearest) == 1 and (listed(nearest[0], "*.safetensors", *PICKLES) or not exports):
        return nearest[0]
    if len(exports) == 1:
        return exports[0]
    found = (path.relative_to(folder).as_posix() for path in (*nearest, *exports)[:8])
    raise ModelError(
        "there is not one model in it",
        where=where,
        got=", ".join(found) or "neither",
        expected=f"a folder with {CONFIG}, or one .onnx file",
        fix="give the folder or the file of the model",
    )
