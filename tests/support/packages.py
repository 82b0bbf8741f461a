"""Packages that a test installs beside octobert."""

from __future__ import annotations

import shutil
from pathlib import Path

from octobert.core import plugins
from octobert.pipeline import keys

_SOURCES = Path(__file__).parent / "extra_plugins"
# Entry point group → the plugin of that group in `_SOURCES`.
EXTRA = {
    "calibrators": "extra-calibrator",
    "commands": "extra-command",
    "corrections": "extra-correction",
    "families": "extra-family",
    "importers": "extra-importer",
    "methods": "extra-method",
    "placements": "extra-placement",
    "sources": "extra-source",
    "targets": "extra-target",
    "tasks": "extra-task",
    "transforms": "extra-transform",
}


def install_extra(folder: Path) -> None:
    """Install the extra plugins as a distribution: one file for each, and the entry points that name them."""
    facts = folder / "octobert_extra-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: octobert-extra\nVersion: 1.0\n")
    sections = [
        f"[octobert.{group}]\n{name} = {name.replace('-', '_')}\n" for group, name in EXTRA.items()
    ]
    (facts / "entry_points.txt").write_text("\n".join(sections))
    for name in EXTRA.values():
        shutil.copy(_SOURCES / f"{name.replace('-', '_')}.py", folder)


def forget_plugins() -> None:
    """Forget which plugins there are, and the keys that were made with them: packages came or went in this process."""
    for cached in (
        plugins._installed,
        keys._closure,
        keys.code_digest,
        keys.package_versions,
        keys._distributions,
    ):
        cached.cache_clear()
