"""Vectors as a collection stores them: fewer dimensions, and float16, int8 or one bit instead of float32.

Vectors of queries stay float32. A search by bits alone is coarse: what it finds is ranked again by the query's float vector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, FiniteFloat, model_validator

from octobert.core.errors import DataError
from octobert.core.files import opened
from octobert.core.frozen import FrozenModel

VectorType = Literal["float32", "float16", "int8", "binary"]
# Key of a Parquet file's metadata.
NOTED = b"octobert.vectors"
_STEPS = 255
# As wide as a model can be.
_MOST_DIMENSIONS = 2**20


class StoredVectors(FrozenModel):
    """A form of vectors.

    What a report of retrieval says of a form is what a collection in this form loses. `octobert embed` writes it.

    Args:
        type: of an entry; `binary` keeps whether it is above zero, eight entries in a byte.
        dimensions: the first so many are kept, as Matryoshka models are trained for; None for all.
        low, high: of int8, the interval of each dimension, which `fitted` takes from vectors of the collection.

    Example:
        >>> form = octobert.StoredVectors.read("vectors.parquet")               # doctest: +SKIP
        >>> form.encode(np.array([answer["embedding"] for answer in model(new)]))  # doctest: +SKIP
    """

    type: VectorType = "float32"
    dimensions: int | None = Field(default=None, gt=0, le=_MOST_DIMENSIONS)
    low: tuple[FiniteFloat, ...] = ()
    high: tuple[FiniteFloat, ...] = ()

    @model_validator(mode="after")
    def _has_an_interval_for_each_dimension(self) -> StoredVectors:
        count = self.dimensions if self.low or self.high else 0
        if not len(self.low) == len(self.high) == count:
            raise ValueError("low and high: one number for each of the dimensions")
        if any(low > high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("low: above high")
        return self

    @classmethod
    def read(cls, path: str | Path) -> StoredVectors:
        """Return the form of the vectors in a Parquet file of `octobert embed`.

        Raises:
            DataError: it is none.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            opened(Path(path)).close()
            return cls.of_json((pq.read_schema(path).metadata or {})[NOTED])
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise DataError(
                "the form of the vectors is unknown",
                where=str(path),
                fix="name a file that octobert embed wrote",
            ) from error

    def fitted(self, vectors: np.ndarray, where: str = "dimensions") -> StoredVectors:
        """Return the form for vectors like these [n, dimensions]: their number of dimensions, and for int8 their intervals.

        Args:
            where: what the error names.

        Raises:
            DataError: they have fewer dimensions.
        """
        kept = self.cut(vectors, where)
        known: dict[str, object] = {"dimensions": kept.shape[-1]}
        if self.type == "int8":
            known |= {
                "low": tuple(kept.min(axis=0).tolist()),
                "high": tuple(kept.max(axis=0).tolist()),
            }
        return self.replaced(**known)

    def cut(self, vectors: np.ndarray, where: str = "dimensions") -> np.ndarray:
        """Return the kept dimensions of vectors.

        Args:
            where: what the error names.

        Raises:
            DataError: the vectors have fewer.
        """
        if (most := vectors.shape[-1]) < (self.dimensions or 0):
            raise DataError(
                "the model's vectors have fewer dimensions",
                where=where,
                got=str(self.dimensions),
                expected=f"at most {most}",
            )
        return vectors[..., : self.dimensions]

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Encode float vectors [n, dimensions]: as float32, float16 or int8, or bits as uint8 [n, dimensions / 8].

        Args:
            vectors: of any number; for int8 the form is a `fitted` one.

        Raises:
            DataError: they have fewer dimensions, or the form has no intervals.
        """
        kept = self.cut(vectors)
        if self.type == "binary":
            return np.packbits(kept > 0, axis=-1)
        if self.type == "int8":
            low, step = self._grid()
            kept = (np.rint((kept - low) / step) - (_STEPS + 1) // 2).clip(-128, 127)
        stored: np.ndarray = kept.astype(self.type)
        return stored

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Decode stored vectors as float32; bits as −1 and 1.

        Args:
            codes: [n, …] as `encode` gives them.

        Raises:
            DataError: they are not as wide as this form's.

        Example:
            >>> bits = StoredVectors(type="binary", dimensions=3)
            >>> bits.decode(bits.encode(np.array([[0.5, -0.1, 0.2]])))
            array([[ 1., -1.,  1.]], dtype=float32)
        """
        width = (self.dimensions or 0) / (8 if self.type == "binary" else 1)
        if width and codes.shape[-1:] != (np.ceil(width),):
            raise DataError(
                "the vectors are not as wide as those of this form",
                where="StoredVectors",
                got=f"shape {codes.shape}",
                expected=f"[n, {np.ceil(width):.0f}]",
                fix="read the form from the file of the vectors",
            )
        if self.type == "binary":
            bits = np.unpackbits(codes, axis=-1, count=self.dimensions)
            return 2 * bits.astype(np.float32) - 1
        if self.type == "int8":
            low, step = self._grid()
            codes = (codes.astype(np.float64) + (_STEPS + 1) // 2) * step + low
        decoded: np.ndarray = codes.astype(np.float32)
        return decoded

    def _grid(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first value of each dimension, and its step.

        Raises:
            DataError: the form was not fitted.
        """
        if not self.low:
            raise DataError(
                "a form of int8 has no intervals yet",
                where="StoredVectors",
                fix="form.fitted(vectors) has them",
            )
        low, high = np.array(self.low), np.array(self.high)
        return low, np.maximum(high - low, np.finfo(np.float32).tiny) / _STEPS
