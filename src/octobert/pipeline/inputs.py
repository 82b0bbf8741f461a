"""Files of the user that results depend on.

Their digest is taken when a run is planned, and stages read them later. What a stage made is only kept if they are still the
same then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from octobert.core.files import file_digest, file_stamp


@runtime_checkable
class UserFiles(Protocol):
    """Files with a digest, as a stage's options hold them."""

    @property
    def digest(self) -> str:
        """Of their content."""
        ...

    @property
    def stamp(self) -> str:
        """What the file system said of them before the digest was taken."""
        ...

    @property
    def places(self) -> tuple[Path, ...]:
        """The files and folders that are read; none of a data set on the hub."""
        ...

    def summary(self, of: Callable[[Path], str]) -> str:
        """The digest or the stamp of the files as they are now.

        Args:
            of: `file_digest` or `file_stamp`.
        """
        ...


def unchanged(files: UserFiles) -> bool:
    """Whether files still have their digest. They are read again only if the file system says that they were written."""
    try:
        return (
            files.summary(file_stamp) == files.stamp or files.summary(file_digest) == files.digest
        )
    except OSError:
        return False
