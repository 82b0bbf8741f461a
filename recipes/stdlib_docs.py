"""Text that every machine has: docstrings of the Python standard library, as queries and the documents that answer them.

The query is the first sentence of a docstring, the document is the rest. Source files are parsed, never imported. Modules are
split between `train.jsonl` (calibration) and `validation.jsonl` (evaluation) by a digest of their name, so the two files share
no module. Repeated sentences are dropped.

    python recipes/stdlib_docs.py FOLDER [--rows N]
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = ("test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "config-")
_MIN_QUERY_WORDS, _MIN_DOCUMENT_WORDS = 5, 12


def docstrings(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, docstring) of every module, class and function below a folder."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if any(part.startswith(_SKIPPED) for part in parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield parts[0], inspect.cleandoc(text)


def split_docstring(text: str) -> tuple[str, str] | None:
    """The first sentence and the rest, each on one line; None if either is too short to be useful."""
    flat = " ".join(text.split())
    match = re.match(r"(.+?[.!?])\s+(?=[A-Z\"'`(*])(.+)", flat)
    if match is None:
        return None
    query, document = match.group(1), match.group(2)
    enough = len(query.split()) >= _MIN_QUERY_WORDS and len(document.split()) >= _MIN_DOCUMENT_WORDS
    return (query, document) if enough else None


def main() -> None:
    """Write the two files."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument(
        "--rows", type=int, default=800, help="largest number of evaluation rows"
    )
    options = arguments.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, str]]] = {"train": [], "validation": []}
    seen: set[str] = set()
    for module, text in docstrings(Path(sysconfig.get_paths()["stdlib"])):
        pair = split_docstring(text)
        if pair is None or seen & set(pair):
            continue
        seen.update(pair)
        split = "train" if hashlib.sha256(module.encode()).digest()[0] % 3 == 0 else "validation"
        rows[split].append({"query": pair[0], "document": pair[1]})
    rows["validation"] = rows["validation"][: options.rows]
    for split, part in rows.items():
        lines = [json.dumps(row, ensure_ascii=False) for row in part]
        (options.folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
