"""Rows, and which are used for what: random samples, one file split in two, calibration rows apart from evaluation rows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from octobert.core.errors import DataError
from octobert.data.tokenization import Text

R = TypeVar("R")
Row = Mapping[str, Any]
# A column that rows read for a run carry: their place in the file they came from.
ROW_NUMBER = "__row__"


def row_digest(texts: Text) -> str:
    """The digest of a row's texts; rows that differ in white space only have the same.

    Example:
        >>> row_digest(("a  b",)) == row_digest((" a b",))
        True
    """
    return hashlib.sha256(
        json.dumps([" ".join(text.split()) for text in texts]).encode()
    ).hexdigest()


def sample(count: int, samples: int, seed: int) -> list[int]:
    """Draw indices without replacement.

    Args:
        count: number of rows.
        samples: number of rows to draw; all of them if there are fewer.
        seed: of the random order.

    Returns:
        sorted indices.

    Example:
        >>> sample(2, 5, seed=0)
        [0, 1]
    """
    if count <= samples:
        return list(range(count))
    return sorted(np.random.default_rng(seed).permutation(count)[:samples].tolist())


def split_of(name: str) -> tuple[str, str]:
    """A split, and the slice of it that a name ends in.

    Example:
        >>> split_of("validation[:5%]"), split_of("train")
        (('validation', '[:5%]'), ('train', ''))
    """
    match = re.fullmatch(r"(.*?)(\[[^\[\]]*\])", name, re.DOTALL)
    return (match[1], match[2]) if match else (name, "")


def check_slice(span: str, *, where: str) -> None:
    """Refuse a slice that is none, before anything is read.

    Raises:
        DataError: it is none.
    """
    if span:
        _rows_of(span, 0, where)


def sliced(rows: Sequence[R], span: str, *, where: str) -> list[R]:
    """The rows of a slice as `datasets` reads it: `[:10]`, `[10:20]`, `[-5:]`, or with percentages.

    Args:
        span: with its brackets; empty for all rows.
        where: the rows, for the error.

    Raises:
        DataError: it is none, or no row is in it.
    """
    if not span:
        return list(rows)
    first, end = _rows_of(span, len(rows), where)
    if first >= end:
        raise DataError(
            "no row is in the slice", where=where, got=span, expected=f"a slice of {len(rows)} rows"
        )
    return list(rows[first:end])


def _rows_of(span: str, count: int, where: str) -> tuple[int, int]:
    import datasets

    try:
        bounds = datasets.ReadInstruction.from_spec(f"all{span}").to_absolute({"all": count})[0]
    except (ValueError, AssertionError) as error:
        if count == 0 and "incompatible" in str(error):
            return 0, 0
        raise DataError(
            "the slice cannot be read",
            where=where,
            got=f"{span} of {count} rows" if count else span,
            expected="such as [:100], [10:20], [-5:] or [:5%]",
        ) from error
    return int(bounds.from_ or 0), int(count if bounds.to is None else bounds.to)


def hold_out(
    digests: Sequence[str], samples: int, seed: int, *, parts: int = 2
) -> tuple[list[int], list[int]]:
    """Split the rows of one file into calibration and evaluation rows; equal rows go to the same side.

    Args:
        digests: `row_digest` of every row.
        samples: number of distinct calibration rows.
        seed: of the random order.
        parts: at most one of so many equal parts of the distinct rows is taken.

    Returns:
        (indices of calibration rows, indices of evaluation rows).
    """
    distinct = sorted(set(digests))
    order = np.random.default_rng(seed).permutation(len(distinct))
    calibration_digests = {distinct[i] for i in order[: min(samples, len(distinct) // parts)]}
    first = [i for i, digest in enumerate(digests) if digest in calibration_digests]
    return first, [i for i, digest in enumerate(digests) if digest not in calibration_digests]


def apart(digests: Sequence[str], others: Iterable[str]) -> list[int]:
    """Indices of the digests that are not among the others.

    Example:
        >>> apart(["a", "b", "c"], ["b"])
        [0, 2]
    """
    excluded = set(others)
    return [index for index, digest in enumerate(digests) if digest not in excluded]


def refuse_leakage(
    chosen: Sequence[str],
    evaluation: Sequence[str],
    *,
    what: str = "calibration",
    where: str = "data.calibrate",
) -> None:
    """Refuse calibration or training rows that are also evaluated.

    Args:
        chosen: `row_digest` of the calibration or training rows.
        evaluation: `row_digest` of the evaluation rows.
        what: what `chosen` is, for the error.
        where: the recipe key, for the error.

    Raises:
        DataError: rows are in both; the message has their number and the first of them.
    """
    evaluated = {digest: index for index, digest in enumerate(evaluation)}
    shared = [digest for digest in chosen if digest in evaluated]
    if shared:
        raise DataError(
            f"{len(shared)} of {len(chosen)} {what} rows are also evaluated, which makes the result look better than it is",
            where=where,
            got=f"for example evaluation row {evaluated[shared[0]] + 1}",
            expected=f"{what} rows from the training split, none of them evaluated",
            fix=f"take other rows ({where}.from: SPLIT), leave these out ({where}.drop_evaluated: true), or accept them "
            "(data.allow_leakage: true), which the report mentions",
        )
