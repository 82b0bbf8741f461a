"""The budget for what others ask for follows from the memory that this process may use."""

from __future__ import annotations

import pytest

from octobert.core import budget, environment
from octobert.core.errors import DataError


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch) -> None:
    monkeypatch.setattr(environment, "memory", lambda: environment.Memory(total=4000, free=2000))
    assert budget.most_bytes() == 1000
    budget.check_size(DataError, "the row", 1000, where="row 1")
    with pytest.raises(
        DataError,
        match=r"row 1: the row would take more memory than there is \(got 1,001 bytes, expected at most 1,000 bytes, .*\); check",
    ):
        budget.check_size(DataError, "the row", 1001, where="row 1")
