"""Models that `extra://` names: what follows is a folder."""

from __future__ import annotations

from pathlib import Path

PREFIXES = ("extra://",)


def fetch(name: str) -> Path:
    """Return the folder behind the prefix."""
    return Path(name.removeprefix(PREFIXES[0]))
