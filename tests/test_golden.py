"""Golden files themselves: every case is that of a test, and none holds what changes from machine to machine."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.golden import Golden, fits, read, write

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("golden/*.txt"))


def test_every_case_is_that_of_a_test() -> None:
    for path in FILES:
        module = path.parents[1] / f"test_{path.name}".replace(".txt", ".py")
        nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        tests = {
            node.name
            for node in nodes
            if isinstance(node, ast.FunctionDef) and "golden" in [a.arg for a in node.args.args]
        }
        assert {re.split(r"[\[ ]", case)[0] for case in read(path)} == tests, path


def test_nothing_in_them_depends_on_the_machine() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert str(TESTS.parent) not in text, path
        assert not re.search(r"/(tmp|root|usr)/|pydantic\.dev", text), path


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    cases = {"test_a": "\n  one\n\nline", "test_a (2)": "two", "test_b[x y]": "two", "test_c": ""}
    write(tmp_path / "golden" / "file.txt", cases)
    assert read(tmp_path / "golden" / "file.txt") == cases


def test_words_of_another_program_are_anything_on_one_line() -> None:
    assert fits("a (got x) b", "a (got <…>) b")
    assert not fits("a (got x\n) b", "a (got <…>) b")
    assert not fits("a (got x) c", "a (got <…>) b")
    assert not fits("axb", "a.b")


def test_texts_are_compared_in_order_and_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write(path, {"test_a": "<tmp>/one <…>", "test_a (2)": "two"})
    golden = Golden("test_a", path, {tmp_path: "<tmp>"}, False)
    golden(f"{tmp_path}/one 1  ")
    with pytest.raises(AssertionError, match=r"no text is compared with the case 'test_a \(2\)'"):
        golden.close()
    with pytest.raises(AssertionError, match=r"\+ three"):
        golden("three")
    with pytest.raises(AssertionError, match=r"has no case 'test_a \(3\)'"):
        golden("four")


def test_renewing_keeps_what_fits_and_drops_what_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write(path, {"test_a": "one <…>", "test_a (2)": "two", "test_b": "b"})
    golden = Golden("test_a", path, {}, True)
    golden("one 1")
    golden.close()
    assert read(path) == {"test_a": "one <…>", "test_b": "b"}
    Golden("test_b", path, {}, True)("other")
    assert read(path)["test_b"] == "other"
