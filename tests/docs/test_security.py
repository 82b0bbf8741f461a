"""The threat model: every line of it names tests, and these exist."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "security.md"
# Lines that no test can show.
WITHOUT_TEST = ("machines of a distributed training",)


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 30
    missing = [f"{file}::{name}" for file, name in named if f"\ndef {name}(" not in (ROOT / file).read_text(encoding="utf-8")]
    assert missing == []


def test_every_line_of_the_page_names_a_test() -> None:
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][2:]
    assert [row[1].strip() for row in rows if "::" not in row[4]] == list(WITHOUT_TEST)
