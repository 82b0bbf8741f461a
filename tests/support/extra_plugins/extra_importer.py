"""Configs of a tool that has a checkpoint, rows and bits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from octobert.config.importers import Importer, Outcome

_KEYS = {"checkpoint": "model", "rows": "data"}


class Extra(Importer):
    """A tool that has a checkpoint, rows and bits."""

    tool: str = "Extra"
    expected: str = "an object with checkpoint and rows"

    def is_config(self, raw: Any) -> bool:
        """Return whether plain data has a checkpoint."""
        return isinstance(raw, dict) and "checkpoint" in raw

    def convert(
        self, raw: Any, where: str, folder: Path, as_octobert: bool
    ) -> tuple[dict[str, Any], tuple[Outcome, ...]]:
        """Return the recipe; bits are refused."""
        recipe = {key: raw[name] for name, key in _KEYS.items()} | {"task": "text-classification"}
        outcomes = []
        for name, value in raw.items():
            key = _KEYS.get(name)
            verdict = "mapped" if key else "refused"
            outcomes.append(Outcome(field=name, value=str(value), verdict=verdict, key=key))
        return recipe, tuple(outcomes)

    @contextlib.contextmanager
    def modules(self) -> Iterator[None]:
        """Provide a module `extra_tool` for scripts."""
        sys.modules["extra_tool"] = ModuleType("extra_tool")
        try:
            yield
        finally:
            del sys.modules["extra_tool"]
