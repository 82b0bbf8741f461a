"""Choose the fastest model of a machine that still does the task, again on another machine, and for several machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from octobert.api._arguments import path_of

if TYPE_CHECKING:
    from octobert.core.machines import Machines

PathLike: TypeAlias = "str | Path"


def merge(packages: Sequence[PathLike], out: PathLike) -> Machines:
    """Write one folder with packages that were chosen on different machines. It opens the right one on each.

    Args:
        packages: Output directories of `auto`, packages in them, or merged folders, for one model and one task. Of two for the
            same kind of machine the last one is taken.
        out: The folder to write. It must not exist.

    Returns:
        Which package is for which kind of machine, as in `machines.json` of the folder. `load` and every command that takes a
        package take the folder; where it has no package for a kind of machine, the nearest is opened, with a warning.

    Raises:
        ModelError: One of them is not such a package, was changed, or was made from another model or for another task.
        RecipeError: All packages are for one kind of machine.
        StorageError: The folder exists already.
    """
    from octobert.inference import machines

    given = [packages] if isinstance(packages, str | Path) else list(packages)
    return machines.merge([path_of(package, "packages") for package in given], path_of(out, "out"))
