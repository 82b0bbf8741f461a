"""Copies of records: fields and types are checked, and what was set is known."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field

from octobert.core.frozen import FrozenModel


class Record(FrozenModel):
    """A record."""

    kind: Literal["a", "b"] = "a"
    count: int = Field(default=1, ge=0)
    names: tuple[str, ...] = ()


def test_a_copy_has_other_values_and_knows_what_was_set() -> None:
    record = Record(kind="b")
    other = record.replaced(count=2, names=["x"])
    assert (other, record.count) == (Record(kind="b", count=2, names=("x",)), 1)
    assert other.model_fields_set == {"kind", "count", "names"}


@pytest.mark.parametrize("changes", [{"kinds": "a"}, {"kind": "c"}, {"count": -1}, {"names": 1}])
def test_a_wrong_name_and_a_wrong_type_are_errors(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"kinds|'a' or 'b'|greater than|valid tuple"):
        Record().replaced(**changes)
