"""What texts, feeds and options of others may ask for at once: not more memory than there is, said before it is tried."""

from __future__ import annotations

from octobert.core import environment
from octobert.core.errors import OctobertError

# Bytes. What takes less is not asked about: to look at the memory takes a part of a millisecond.
_LITTLE = 64 << 20


def fits(needed: int) -> bool:
    """Return whether so many bytes are free, of what the machine and its control groups leave this process."""
    return needed <= _LITTLE or needed <= environment.memory().free


def check(
    kind: type[OctobertError], what: str, needed: int, *, where: str, fix: str, share: int = 1
) -> None:
    """Check that so many bytes are free.

    Args:
        kind: of the error.
        what: would take them.
        needed: bytes.
        where, fix: of the error.
        share: how many times they have to be free, where others will ask for as much.

    Raises:
        OctobertError: of this kind: they are not.
    """
    if needed > _LITTLE and not fits(needed * share):
        free = size(environment.memory().free)
        raise kind(
            f"{what} would take too much memory",
            where=where,
            got=f"about {size(needed)}",
            expected=f"at most {free}, which are free" + f" / {share}" * (share > 1),
            fix=fix,
        )


def most_bytes() -> int:
    """Return the bytes that one file of unknown origin may ask for: half of the memory that is free for this process."""
    return environment.memory().free // 2


def check_size(kind: type[OctobertError], what: str, needed: int, *, where: object) -> None:
    """Check that a file of unknown origin asks for no more than `most_bytes`.

    Raises:
        OctobertError: of this kind: it does.
    """
    fix = "check the file, or use a machine with more memory"
    check(kind, what, needed, where=str(where), fix=fix, share=2)


def size(count: int) -> str:
    """Bytes in words.

    Example:
        >>> size(7 << 30), size(3 << 20)
        ('7.0 GiB', '3 MiB')
    """
    return f"{count / 2**30:,.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:,.0f} MiB"
