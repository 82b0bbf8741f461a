"""Packages that a test installs beside octobert."""

from __future__ import annotations

from octobert.core import plugins
from octobert.pipeline import keys


def forget_plugins() -> None:
    """Forget which plugins there are, and the keys that were made with them: packages came or went in this process."""
    for cached in (plugins._installed, keys._closure, keys.code_digest, keys.package_versions, keys._distributions):
        cached.cache_clear()
