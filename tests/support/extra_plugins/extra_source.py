"""Models that `extra://` names: what follows is a folder."""

from __future__ import annotations

from pathlib import Path

from octobert.models.sources import Source


class Extra(Source):
    """Folders behind a prefix."""

    prefixes: tuple[str, ...] = ("extra://",)

    def fetch(self, name: str) -> Path:
        """Return the folder behind the prefix."""
        return Path(name.removeprefix(self.prefixes[0]))
