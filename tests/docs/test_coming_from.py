"""Pages for those who come from other tools: every key, command and test that they name exists, and they are current."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from docs import options
from octobert.config import loading

ROOT = Path(__file__).parents[2]
ROWS = [
    (tool["recipe"], *row)
    for tool in options.tools()
    for group in tool["groups"]
    for row in group["options"]
]


def fragments(equivalent: str) -> Iterator[str]:
    """What is written as code in an equivalent."""
    return (found[1] for found in re.finditer(r"`([^`]+)`", equivalent))


@cache
def names_in(path: str) -> set[str]:
    """The names of the tests in a file below tests/."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_option_has_a_test_that_exists() -> None:
    places = [place.partition("::")[::2] for *_, place in ROWS]
    assert [f"{path}::{name}" for path, name in places if name not in names_in(path)] == []


@pytest.mark.parametrize("name", sorted({recipe for recipe, *_ in ROWS}))
def test_every_change_of_a_recipe_is_one(name: str) -> None:
    for recipe, option, _, equivalent, _ in ROWS:
        for fragment in fragments(equivalent) if recipe == name else ():
            if re.match(r"[a-z_.]+=", fragment):
                raw = yaml.safe_load(
                    (ROOT / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
                )
                # A method without calibration has no training; a plan of other options starts from static.
                raw = {
                    key: value
                    for key, value in raw.items()
                    if key not in ("qat", "finetune") or fragment.startswith(key)
                }
                loading.parse(
                    loading.changed(raw, [fragment, "allow_code=true"]),
                    where=f"{option}: {fragment}",
                )


def test_what_is_code_is_a_change_a_command_a_file_or_a_flag() -> None:
    """Commands are checked with those of all documents."""
    known = r"[a-z_.]+=|octobert[ .]|--[a-z-]+$|[\w./-]+\.(yaml|json|xml|sh|onnx|txt|jsonl|cuda)$|qnn$|qat$"
    assert [
        f for *_, equivalent, _ in ROWS for f in fragments(equivalent) if not re.match(known, f)
    ] == []


@pytest.mark.parametrize("path", list(options.pages()), ids=lambda path: path.stem)
def test_the_pages_are_current(path: Path) -> None:
    """`python docs/options.py` writes them."""
    assert path.read_text(encoding="utf-8") == options.pages()[path]
