"""The threat model: every line of it names tests, and these exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from octobert.config.recipe import PERMISSIONS
from octobert.config.schema import recipe_schema
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "security.md"
# Lines that no test can show.
WITHOUT_TEST = ("machines of a distributed training",)


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 30
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"\ndef {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_every_line_of_the_page_names_a_test() -> None:
    threats = PAGE.read_text(encoding="utf-8").partition("## Keys of a recipe")[0]
    rows = [line.split("|") for line in threats.splitlines() if line.startswith("| ")][2:]
    assert [row[1].strip() for row in rows if "::" not in row[4]] == list(WITHOUT_TEST)


def texts_in(part: dict[str, Any], path: str, definitions: dict[str, Any]) -> Iterator[str]:
    """The keys of a recipe whose value may be any text, or anything; names of plugins, targets and options are `*`."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        yield from texts_in(definitions[name], path, definitions)
    if part.get("type") == "string" and not {"enum", "const"} & part.keys():
        yield path
    for each in (
        *part.get("anyOf", ()),
        *part.get("oneOf", ()),
        *part.get("allOf", ()),
        *part.get("prefixItems", ()),
    ):
        yield from texts_in(each, path, definitions)
    for key, value in part.get("properties", {}).items():
        # `{name: {option: value}}` of a plugin.
        is_plugin = (
            len(part.get("required", ())) == 1
            and value.keys() == {"$ref"}
            and "." in value["$ref"].rpartition("/")[2]
        )
        if not value.get("deprecated"):
            yield from texts_in(
                value, f"{path}.{'*' if is_plugin else key}".removeprefix("."), definitions
            )
    inner = [(f"{path}.*", part.get("additionalProperties")), (path, part.get("items"))]
    for place, value in inner:
        if isinstance(value, dict) and value.keys() - {"description", "title", "default"}:
            yield from texts_in(value, place, definitions)
        elif value is True or isinstance(value, dict):
            yield place


def test_every_text_in_a_recipe_has_a_rule() -> None:
    """A new key that could name a file, a server or code is thought about."""
    schema = recipe_schema()
    found = set(texts_in(schema, "", schema["$defs"]))
    rows = re.findall(
        r"^\| (`.*?) \|(.*)",
        PAGE.read_text(encoding="utf-8").partition("## Keys of a recipe")[2],
        re.MULTILINE,
    )
    listed = [key for keys, _ in rows for key in re.findall(r"`([^`]+)`", keys)]
    assert sorted(listed) == sorted(found)
    refused = {
        key
        for keys, rule in rows
        for key in re.findall(r"`([^`]+)`", keys)
        if "Never in a recipe file" in rule
    }
    assert refused == {key for key in PERMISSIONS if key in found}
