"""The budget of memory for what files and values of unknown origin ask for; it follows from this machine and its quotas."""

from __future__ import annotations

from typing import TypeVar

from octobert.core import environment
from octobert.core.errors import OctobertError

E = TypeVar("E", bound=OctobertError)


def most_bytes() -> int:
    """Return the bytes that one thing of unknown origin may take: half of the memory that is free for this process."""
    return environment.memory().free // 2


def check_size(kind: type[E], what: str, size: int, *, where: object) -> None:
    """Refuse what would not fit into memory, before anything is allocated for it.

    Args:
        kind: Of the error.
        what: Name of the thing, such as `the weights`, with its article.
        size: Bytes that it would take.
        where: The file or the input that asks for it.

    Raises:
        OctobertError: It would take more than `most_bytes`, of the type `kind`.
    """
    if size > (most := most_bytes()):
        raise kind(
            f"{what} would take more memory than there is",
            where=str(where),
            got=f"{size:,} bytes",
            expected=f"at most {most:,} bytes, half of the memory that is free",
            fix="check the file, or use a machine with more memory",
        )
