"""Ten random code lines of octobert, each in its function but without its file, for a newcomer to place; then where they are.

python -m benchmarks.house.lines [SEED] [--reveal]
"""

from __future__ import annotations

import ast
import io
import random
import sys
import tokenize
from pathlib import Path

import octobert

ROOT = Path(octobert.__file__).parent
SEED = 20261129
# What a line holds beside code.
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def main() -> None:
    """Choose, show."""
    places = [(path, line) for path in sorted(ROOT.rglob("*.py")) for line in code_lines(path)]
    seed = next((int(text) for text in sys.argv[1:] if text.isdigit()), SEED)
    for number, (path, line) in enumerate(random.Random(seed).sample(places, 10), 1):
        text = path.read_text(encoding="utf-8")
        if "--reveal" in sys.argv:
            print(f"{number}: {path.relative_to(ROOT)}:{line}")
        else:
            print(f"--- {number}: {text.splitlines()[line - 1].strip()}\n{around(text, line)}")


def code_lines(path: Path) -> list[int]:
    """Lines of a file with code that is no import and no docstring."""
    text = path.read_text(encoding="utf-8")
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (alone or isinstance(node, ast.Import | ast.ImportFrom)):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {token.start[0] for token in tokens if token.type not in NO_CODE and token.string}
    return sorted(code - skipped)


def around(text: str, line: int) -> str:
    """The smallest function or class around a line, or else the statement."""
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    holding = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    functions = [node for node in holding if isinstance(node, named)] or holding[:1]
    smallest = min(functions, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)
    return ast.get_source_segment(text, smallest) or ""


if __name__ == "__main__":
    main()
