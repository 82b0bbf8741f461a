"""Texts of other people, and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octobert.core.plain import as_json


def test_json_has_null_for_what_it_cannot_say() -> None:
    data = {"a": [float("nan"), float("inf"), -float("inf"), 1.5], "b": Path("x")}
    text = as_json(data, str)
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [None, None, None, 1.5], "b": "x"}
