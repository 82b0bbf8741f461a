"""Packages that a test installs beside octobert."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from octobert.core import plugins
from octobert.engine import keys

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


def install(
    site: Path,
    points: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str] | None = None,
    *,
    name: str = "octobert-extra",
    version: str = "1.0",
    listed: bool = False,
    requires: str = "",
) -> Path:
    """Install a distribution into a folder; its folder of facts.

    Args:
        site: a folder of Python's path.
        points: family → name of a plugin → its module.
        files: path below `site` → content.
        name, version, requires: of the distribution.
        listed: write the list of files that installers write.
    """
    facts = site / f"{name.replace('-', '_')}-{version}.dist-info"
    facts.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (facts / "METADATA").write_text(metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
    sections = [
        f"[octobert.{family}]\n" + "".join(f"{key} = {value}\n" for key, value in named.items())
        for family, named in points.items()
    ]
    (facts / "entry_points.txt").write_text("\n".join(sections))
    for path, content in (files or {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(content)
    if listed:
        there = [*(files or {}), f"{facts.name}/METADATA", f"{facts.name}/RECORD"]
        (facts / "RECORD").write_text("".join(f"{path},,\n" for path in there))
    return facts


def install_extra(folder: Path) -> None:
    """Install the extra plugins as a distribution: one file for each, and the entry points that name them."""
    install(folder, {family: {name: name.replace("-", "_")} for family, name in EXTRA.items()})
    for name in EXTRA.values():
        shutil.copy(_SOURCES / f"{name.replace('-', '_')}.py", folder)


def forget_plugins() -> None:
    """Forget which plugins there are, and the keys that were made with them: packages came or went in this process."""
    for cached in (
        plugins._entry_points,
        plugins.installed,
        plugins._outcome,
        plugins._leave_out,
        keys._content,
        keys._version,
        keys.code_digest,
    ):
        cached.cache_clear()
