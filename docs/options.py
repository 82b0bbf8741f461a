"""Writes the tables of the pages in `docs/coming-from` from `docs/coming-from.yaml`: `python docs/options.py`.

Each page keeps its own text; the tables between the two marks are written. The file also names the test of each option.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "coming-from.yaml"
PAGES = ROOT / "docs" / "coming-from"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"


def tools() -> list[dict[str, Any]]:
    """The tools with their options, as in the file."""
    found: list[dict[str, Any]] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return found


def pages() -> dict[Path, str]:
    """Page → its text with current tables."""
    texts = {}
    for tool in tools():
        path = PAGES / f"{tool['page']}.md"
        before, rest = path.read_text(encoding="utf-8").split(BEGIN)
        texts[path] = f"{before}{BEGIN}\n\n{tables(tool)}\n{END}{rest.split(END)[1]}"
    return texts


def tables(tool: dict[str, Any]) -> str:
    """One table for each group of options."""
    parts = []
    for group in tool["groups"]:
        parts += [
            f"### {group['title']}",
            "",
            row(["option there (default)", "octobert"]),
            row(["---"] * 2),
        ]
        parts += [
            row([f"`{option}`" + (f" (`{default}`)" if default else ""), equivalent])
            for option, default, equivalent, _ in group["options"]
        ]
        parts.append("")
    return "\n".join(parts)


def row(cells: list[str]) -> str:
    """One row of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
