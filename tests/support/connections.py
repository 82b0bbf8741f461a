"""Trap every connection of Python code, in processes that a test starts and in those that they start."""

from __future__ import annotations

import os
from pathlib import Path

TRAP = Path(__file__).with_name("trap")
# Variables under which usage statistics are off in any case.
_OFF = (
    "CI",
    "TF_BUILD",
    "JENKINS_URL",
    "HF_HUB_OFFLINE",
    "ORT_DISABLE_TELEMETRY",
    "HF_HUB_DISABLE_TELEMETRY",
)


def trapped(home: Path) -> dict[str, str]:
    """The environment of a process whose connections are noted, with an empty home folder."""
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in _OFF}
    path = os.pathsep.join([str(TRAP), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": path,
        "CONNECTIONS": str(home.with_name("connections")),
    }


def connections(home: Path) -> list[str]:
    """The hosts that were asked for."""
    noted = home.with_name("connections")
    return noted.read_text().splitlines() if noted.exists() else []


def left_in(home: Path) -> list[str]:
    """Files that were left in a home folder, but for those of octobert itself."""
    return [
        str(path) for path in home.rglob("*") if path.is_file() and "octobert" not in path.parts
    ]
