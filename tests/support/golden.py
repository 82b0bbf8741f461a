"""Texts that tests expect, in files beside them: `golden/<module>.txt` holds the named cases of `test_<module>.py`.

A case is the name of a test, alone on a line, and below it the whole text, indented by four spaces. Of a test with several texts
the second is the case `name (2)`; cases that follow each other and have the same text share it. Folders of this machine are written
as `<tmp>`, `<repo>` and so on, and spaces at the ends of lines do not count. `<…>` stands for words of another program or of a
machine: anything on one line.

`pytest --update-golden` writes what the tests see now. What changed is then reviewed as a difference in git, and gets its `<…>`,
which later renewals leave where they fit.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

INDENT = "    "
ANYTHING = "<…>"
# The folders that pytest's `mktemp` makes: a name and a number that depends on the other tests of a run.
_MADE = re.compile(r"<base>/(\w+?)\d+\b")


def read(path: Path) -> dict[str, str]:
    """The cases of a file: name → text."""
    cases: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line and not line.startswith(INDENT):
            # Names that follow each other share the lines below them.
            lines = [] if lines else lines
            cases[line] = lines
        else:
            lines.append(line.removeprefix(INDENT))
    return {name: "\n".join(lines).rstrip() for name, lines in cases.items()}


def write(path: Path, cases: Mapping[str, str]) -> None:
    """Write a file of cases."""
    blocks = []
    for text, names in itertools.groupby(cases, key=cases.__getitem__):
        lines = [*names, *(f"{INDENT}{line}".rstrip() for line in text.split("\n"))]
        blocks.append("\n".join(lines) + "\n")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(blocks), encoding="utf-8")


def fits(text: str, expected: str) -> bool:
    """Whether a text is the expected one, in which `<…>` stands for anything on one line."""
    return bool(re.fullmatch(".*".join(map(re.escape, expected.split(ANYTHING))), text))


class Golden:
    """The expected texts of one test, in the order in which it makes them."""

    def __init__(self, test: str, path: Path, folders: Mapping[Path, str], update: bool) -> None:
        self._test, self._path, self._folders, self._update = test, path, folders, update
        self._count = 0

    def __call__(self, text: str) -> None:
        """Compare a text with the next case of this test."""
        __tracebackhide__ = True
        name = self._next()
        self._count += 1
        for folder, word in self._folders.items():
            text = text.replace(str(folder), word)
        text = _MADE.sub(r"<\1>", text)
        text = "\n".join(line.rstrip() for line in text.split("\n")).rstrip()
        cases = read(self._path)
        if name in cases and fits(text, cases[name]):
            return
        if self._update:
            write(self._path, {**cases, name: text})
            return
        assert name in cases, f"{self._path.name} has no case {name!r}: pytest --update-golden"
        lines = difflib.ndiff(cases[name].split("\n"), text.split("\n"))
        assert text == cases[name], f"the case {name!r} of {self._path.name}:\n" + "\n".join(lines)

    def _next(self) -> str:
        return f"{self._test} ({self._count + 1})" if self._count else self._test

    @contextlib.contextmanager
    def raises(self, kind: type[Exception]) -> Iterator[pytest.ExceptionInfo[Exception]]:
        """Expect an error, and compare its whole message with the next case of this test."""
        __tracebackhide__ = True
        with pytest.raises(kind) as caught:
            yield caught
        text = str(caught.value)
        # Its traceback holds this frame: together they would stay, and with them what the frames below have opened.
        del caught
        self(text)

    def close(self) -> None:
        """Check that the file has no more cases of this test than it has made texts."""
        __tracebackhide__ = True
        cases = read(self._path)
        while (name := self._next()) in cases:
            assert self._update, f"{self._path.name}: no text is compared with the case {name!r}"
            del cases[name]
            write(self._path, cases)
            self._count += 1
