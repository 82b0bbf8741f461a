"""The budget for what others ask for follows from the memory that this process may use."""

from __future__ import annotations

import pytest

from octobert.core import budget, environment
from octobert.core.errors import DataError


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch) -> None:
    free = 2 << 30
    monkeypatch.setattr(
        environment, "memory", lambda: environment.Memory(total=2 * free, free=free)
    )
    assert budget.most_bytes() == free // 2
    budget.check_size(DataError, "the row", free // 2, where="row 1")
    with pytest.raises(
        DataError,
        match=r"row 1: the row would take too much memory \(got about 1.0 GiB, expected at most 2.0 GiB, which are free / 2\); check",
    ):
        budget.check_size(DataError, "the row", free // 2 + 1, where="row 1")
