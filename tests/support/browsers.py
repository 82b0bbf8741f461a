"""The system's browser."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """Chromium or Chrome: what OCTOBERT_BROWSER says, or the first one on PATH; None where there is none."""
    named = os.environ.get("OCTOBERT_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
