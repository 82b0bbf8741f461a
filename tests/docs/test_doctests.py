"""Examples in docstrings run. Only modules that hold one are imported, so that collecting costs nothing."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import octobert

SOURCE = Path(octobert.__file__).parent
MODULES = sorted(
    ".".join(("octobert", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    tests = doctest.DocTestFinder().find(importlib.import_module(name))
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
    assert any(test.examples for test in tests), (
        f"{name} holds an example that doctest does not see"
    )
