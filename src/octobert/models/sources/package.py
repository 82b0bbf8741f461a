"""Models inside of installed Python packages: `package:NAME/PATH`, a folder of the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from octobert.core.errors import ModelError
from octobert.models.sources import Source


class Package(Source):
    """Folders of installed packages."""

    prefixes: tuple[str, ...] = ("package:",)

    def fetch(self, name: str) -> Path:
        """Return the folder; see `Source`."""
        distribution, _, inner = name.removeprefix(self.prefixes[0]).partition("/")
        package = distribution.replace("-", "_")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ModelError(
                f'the package "{distribution}" is not installed',
                where=name,
                fix=f"pip install {distribution}",
            )
        folder = Path(next(iter(spec.submodule_search_locations))) / inner
        if not folder.exists():
            raise ModelError(
                "the package has no such folder",
                where=str(folder),
                fix="check the path after the package's name",
            )
        return folder
