"""What texts, feeds and options of others may ask for at once: not more memory than there is, said before it is tried."""

from __future__ import annotations

import sys

from octobert.core import environment
from octobert.core.errors import DataError, OctobertError, RecipeError

# Bytes. What takes less is not asked about: to look at the memory takes a part of a millisecond.
_LITTLE = 64 << 20
# Bytes of a token in a batch, at least: two states of the width of base models.
_TOKEN = 2 * 768 * 4
# Addresses that libraries reserve for threads and mapped files, beside the memory that they use.
_RESERVED = 8 << 30


def fits(needed: int) -> bool:
    """Return whether so many bytes are free, of what the machine and its control groups leave this process."""
    return needed <= _LITTLE or needed <= environment.memory().free


def check(
    kind: type[OctobertError],
    what: str,
    needed: int,
    *,
    where: str | None,
    fix: str,
    share: int = 1,
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


def check_batch(batch: int, sequence: int, *, where: str) -> None:
    """Check that there is memory for a batch of a shape that somebody states.

    Raises:
        RecipeError: there is not.
    """
    check(
        RecipeError,
        f"a batch of {batch:,} rows of {sequence:,} tokens",
        _TOKEN * batch * sequence,
        where=where,
        fix="choose a smaller one",
    )


class AttentionMemory:
    """The memory of attention in a runtime that holds scores of each pair of tokens, and what softmax makes of them.

    Measured peaks of ONNX Runtime with 12 heads: 2.1 to 2.3 × 12 numbers for each pair (BERT, 2,000 to 6,000 tokens), 2.8 × 12
    with masks of local attention (ModernBERT, 8,000 tokens). In blocks (`graph/passes/long_texts`) each token takes as much as
    1,024 of these pairs, all that is not attention included (ModernBERT, 8,192 tokens).

    Args:
        heads: of a layer; 0 where they are not known, or are not held.
        others: further numbers for each pair of tokens that are held at the same time.
        short: tokens of the longest text that is not computed in blocks; None where none is.
    """

    def __init__(self, heads: int, others: int = 0, short: int | None = None) -> None:
        # Three for masks.
        self._pair = 4 * (2 * heads + 3 * (heads > 0) + others)
        self._kept, self._short = 0, short

    def rows_at_once(self, rows: int, length: int) -> int:
        """Return how many rows of a batch may run together: all of them, or each alone where memory is short.

        Raises:
            DataError: there is not enough for one.
        """
        short = self._short
        one = self._pair * length * (length if short is None else min(length, 2 * short))
        # What has run is kept by the runtime for the next batch.
        together = rows if fits(rows * one - self._kept) else 1
        check(
            DataError,
            f"a text of {length:,} tokens",
            together * one - self._kept,
            where=None,
            fix="lower max_length, read texts in windows (windows: mean), or take "
            + (
                "the target openvino-cpu, which needs less"
                if short is None
                else "a machine with more memory"
            ),
        )
        self._kept = max(self._kept, together * one)
        return together


def limit_process() -> None:
    """Give this process as much memory as is free now: what asks for more fails, and nothing else is ended for it."""
    if sys.platform == "win32":
        return
    import resource

    import psutil

    most = psutil.Process().memory_info().vms + environment.memory().free + _RESERVED
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def size(count: float) -> str:
    """Bytes in words.

    Example:
        >>> size(7 << 30), size(3 << 20)
        ('7.0 GiB', '3 MiB')
    """
    return f"{count / 2**30:,.1f} GiB" if count >= 1 << 30 else f"{count / 2**20:,.0f} MiB"
