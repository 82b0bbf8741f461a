"""Code blocks of Markdown documents, read with markdown-it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
_NOT_RUN = re.compile(r"<!--\s*not run:\s*(.+?)\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One code block.

    Args:
        document: path of the document, relative to the repository.
        line: line of its first line of code, from 1.
        language: the word behind the opening fence.
        text: the code.
        reason: why it is not run; from a comment `<!-- not run: … -->` just before the block.
    """

    document: str
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


@cache
def documents() -> tuple[Path, ...]:
    """The documents of the repository."""
    return (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


@cache
def blocks() -> tuple[Block, ...]:
    """All code blocks of all documents."""
    return tuple(block for path in documents() for block in _blocks(path))


def _blocks(path: Path) -> list[Block]:
    result = []
    reason: str | None = None
    for token in MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8")):
        if token.type == "html_block":
            match = _NOT_RUN.search(token.content)
            reason = match.group(1) if match else None
        elif token.type == "fence":
            assert token.map is not None
            name = str(path.relative_to(ROOT))
            result.append(Block(name, token.map[0] + 2, token.info.strip(), token.content, reason))
            reason = None
        elif token.nesting == 1:
            reason = None
    return result


def commands(text: str) -> list[str]:
    """The command lines of a shell block: lines ending in a backslash are joined, comments are dropped."""
    joined = text.replace("\\\n", " ")
    return [
        line.strip()
        for line in joined.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]


def inline_commands() -> list[tuple[str, str]]:
    """(document, command) for each `octobert …` in running text and tables."""
    result = []
    for path in documents():
        for token in (
            MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
        ):
            for child in token.children or ():
                if child.type == "code_inline" and child.content.startswith("octobert "):
                    result.append((str(path.relative_to(ROOT)), child.content))
    return result


def links() -> list[tuple[Path, str]]:
    """(document, target) for each relative link and image."""
    result = []
    for path in documents():
        for token in (
            MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
        ):
            for child in token.children or ():
                target = str(child.attrs.get("href") or child.attrs.get("src") or "")
                if target and "://" not in target and not target.startswith("#"):
                    result.append((path, target.split("#")[0]))
    return result


def missing_anchors() -> list[str]:
    """Links to a heading that its document does not have; only of documents that are files."""
    found = []
    for path in documents():
        for token in (
            MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
        ):
            for child in token.children or ():
                target, mark, anchor = str(child.attrs.get("href") or "").partition("#")
                document = path.parent / target if target else path
                if (
                    mark
                    and "://" not in target
                    and document.is_file()
                    and anchor not in _anchors(document)
                ):
                    found.append(f"{path.name}: {target}#{anchor}")
    return found


@cache
def _anchors(path: Path) -> set[str]:
    """The anchors of the headings of a document, as GitHub and mkdocs make them of plain words."""
    tokens = MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8"))
    titles = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}
