"""octobert quantizes BERT-family encoders to 8 bits, measures what that costs and gains, and explains it.

Everything public is here; `octobert.api` describes the functions. Nothing is imported before it is used: `__init__.pyi` lists
the names and their modules, for this file and for type checkers.
"""

from __future__ import annotations

from typing import Any

from octobert.core import telemetry as _telemetry

_telemetry.switch_off()

# Public name → the module that has it. Each line of the list is `from MODULE import NAME as NAME`.
with open(f"{__file__}i", encoding="utf-8") as _list:
    _MODULES = {line.split()[-1]: line.split()[1] for line in _list if line.startswith("from ")}

__all__ = sorted(_MODULES.keys() - {"__version__"})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'octobert' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
