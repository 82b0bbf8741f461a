"""Ten random code lines of octobert, each in its function but without its file, for a newcomer to place; then where they are.

python -m benchmarks.house.lines [--reveal]
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
    for number, (path, line) in enumerate(random.Random(SEED).sample(places, 10), 1):
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
        if alone or isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {token.start[0] for token in tokens if token.type not in NO_CODE and token.string}
    return sorted(code - skipped)


def around(text: str, line: int) -> str:
    """The smallest function or class around a line, or else the statement."""
    tree = ast.parse(text)
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [n for n in ast.walk(tree) if isinstance(n, named)] or []
    holding = [n for n in (*nodes, *tree.body) if n.lineno <= line <= (n.end_lineno or n.lineno)]
    functions = [n for n in holding if isinstance(n, named)] or holding
    smallest = min(functions, key=lambda n: (n.end_lineno or n.lineno) - n.lineno)
    return ast.get_source_segment(text, smallest) or ""


if __name__ == "__main__":
    main()
