"""Columns of vectors in Arrow: a list of numbers of one length for each text; for late interaction a list of such lists; for
sparse embeddings a struct of indices and values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from octobert.core.errors import DataError
from octobert.core.stored_vectors import StoredVectors


def is_sparse(column: pa.Array) -> bool:
    """Return whether a column has the vectors of sparse embeddings."""
    return bool(pa.types.is_struct(column.type))


def numbers(column: pa.Array) -> np.ndarray:
    """All vectors one after another, [vectors, width]; the values of sparse ones as vectors of one number."""
    if is_sparse(column):
        column, width = column.field("values"), 1
    elif pa.types.is_list(column.type):
        return numbers(column.flatten())
    else:
        width = column.type.list_size
    return np.asarray(column.flatten().to_numpy()).reshape(-1, width)


def encoded(column: pa.Array, form: StoredVectors) -> pa.Array:
    """A column with its vectors in a form; sparse ones have no other than their own."""
    if is_sparse(column):
        return column
    if pa.types.is_list(column.type):
        values = encoded(column.values, form)
        return pa.ListArray.from_arrays(column.offsets, values, mask=column.is_null())
    codes = form.encode(numbers(column))
    known = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), codes.shape[1])
    return spread(known, column.is_valid().to_numpy(zero_copy_only=False))


def spread(column: pa.Array, valid: np.ndarray) -> pa.Array:
    """Return a column with null for the texts that have no vector.

    Args:
        column: vectors of the others, in order.
        valid: [texts] whether each has one.
    """
    return column.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def check_form(column: pa.Array, form: StoredVectors) -> None:
    """Refuse a form that the vectors of a column cannot have.

    Raises:
        DataError: they have fewer dimensions, or are sparse.
    """
    if not is_sparse(column):
        form.cut(numbers(column))
    elif form != StoredVectors():
        raise DataError(
            "sparse vectors have no smaller form",
            where="vectors and dimensions",
            got=f"{form.type}, {form.dimensions or 'all'} dimensions",
            fix="leave them out, or keep fewer entries: the task's most_active",
        )
