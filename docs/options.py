"""Writes the pages in `docs/coming-from` from `docs/coming-from.yaml`: `python docs/options.py`.

Each page keeps its own text; the tables between the two marks are written. `options.md` lists all options with their tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "coming-from.yaml"
PAGES = ROOT / "docs" / "coming-from"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"
TITLE = "Options of the reference scripts"


def tools() -> list[dict[str, Any]]:
    """The tools with their options, as in the file."""
    found: list[dict[str, Any]] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return found


def pages() -> dict[Path, str]:
    """Page → its text: those of the tools with current tables, and the page of all options."""
    texts = {PAGES / "options.md": overview()}
    for tool in tools():
        path = PAGES / f"{tool['page']}.md"
        before, rest = path.read_text(encoding="utf-8").split(BEGIN)
        texts[path] = f"{before}{BEGIN}\n\n{tables(tool, level=3, tests=False)}\n{END}{rest.split(END)[1]}"
    return texts


def overview() -> str:
    """All options of all tools, with the test that covers each."""
    parts = [
        f"# {TITLE}",
        "",
        "Each option of the tools that octobert replaces, with its equivalent and the test that covers it. An equivalent like",
        "`calibrate=mse` is a change of the recipe, for `--set`; the page of each tool has more. This page is written by",
        "`docs/options.py`, and a test checks that every named key, command and test exists.",
        "",
    ]
    for tool in tools():
        parts += [f"## [{tool['tool']}]({tool['page']}.md)", "", tables(tool, level=3, tests=True)]
    return "\n".join(parts)


def tables(tool: dict[str, Any], *, level: int, tests: bool) -> str:
    """One table for each group of options."""
    parts = []
    for group in tool["groups"]:
        head = ["option", "default there", "octobert", *(["test"] if tests else [])]
        parts += [f"{'#' * level} {group['title']}", "", row(head), row(["---"] * len(head))]
        for option, default, equivalent, test in group["options"]:
            cells = [code(option), code(default), equivalent]
            parts.append(row([*cells, f"`{test.partition('::')[2]}`"] if tests else cells))
        parts.append("")
    return "\n".join(parts)


def code(text: str) -> str:
    """A name as code; nothing for an empty one."""
    return f"`{text}`" if text else ""


def row(cells: list[str]) -> str:
    """One row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
