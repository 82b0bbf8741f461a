"""octobert quantizes BERT-family encoders to 8 bits, measures what that costs and gains, and explains it.

Everything public is here; `octobert.api` describes the functions. Nothing is imported before it is used: `__init__.pyi` lists
the names and their modules, for this file and for type checkers.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from octobert.core import telemetry as _telemetry

_telemetry.switch_off()

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
# Public name → the module that has it.
_MODULES = {
    alias.name: str(statement.module)
    for statement in ast.parse(_STUB).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

__all__ = sorted(_MODULES.keys() - {"__version__"})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'octobert' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
