"""Arrays in files: safetensors of unknown origin, whose header and size are checked before anything is made, and `.npz`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from octobert.core.budget import check_size
from octobert.core.errors import ModelError, reason
from octobert.core.files import opened


@contextmanager
def _safetensors(file: Path, framework: Literal["numpy", "pt"]) -> Iterator[Any]:
    """Open a file; its errors are sentences."""
    try:
        from safetensors import safe_open

        with opened(file) as stream:
            check_size(ModelError, "the weights", stream.seek(0, 2), where=file)
        with safe_open(file, framework=framework) as tensors:
            yield tensors
    except ModelError:
        raise
    except Exception as error:  # safetensors has types of its own, and NumPy has others for types that it does not know
        raise ModelError(
            "the weights cannot be read, or are cut off or damaged",
            where=str(file),
            got=reason(error, longest=200),
            fix="check its permissions, or download or copy it again",
        ) from error


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the tensors in a safetensors file, by its header.

    Raises:
        ModelError: It cannot be read, is damaged, or is larger than the memory allows.
    """
    with _safetensors(file, "numpy") as tensors:
        return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118  # no mapping


def tensors_in(
    file: Path,
    names: Collection[str] | None = None,
    *,
    framework: Literal["numpy", "pt"] = "numpy",
) -> dict[str, Any]:
    """Return name → tensor of a safetensors file.

    Args:
        file: The file.
        names: Of the tensors that are read; None for all.
        framework: What they are made of.

    Raises:
        ModelError: As `shapes_in`.
    """
    with _safetensors(file, framework) as tensors:
        return {
            name: tensors.get_tensor(name)
            for name in tensors.keys()  # noqa: SIM118
            if names is None or name in names
        }


def arrays_in(file: Path | BinaryIO, most: int | None = None) -> dict[str, np.ndarray]:
    """Return name → array of an `.npz` file; pickled objects are refused.

    Args:
        file: The file, or its content.
        most: Bytes that its arrays may take, for a file of unknown origin.

    Raises:
        ValueError: The arrays take more.
        Exception: What zipfile, NumPy and its headers raise for a damaged file.
    """
    with np.load(file, allow_pickle=False) as arrays:
        # Of a compressed file, before anything is unpacked.
        size = sum(part.file_size for part in arrays.zip.infolist())
        if most is not None and size > most:
            raise ValueError(f"{size / 2**30:.0f} GiB of arrays")
        return {name: arrays[name] for name in arrays.files}
