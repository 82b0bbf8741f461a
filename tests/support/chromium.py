"""The browser of this machine, for tests of pages, their pictures and their benchmark."""

import os
import shutil

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def chromium() -> str | None:
    """Return the program of Chromium or Chrome, or of what OCTOBERT_BROWSER names; None where there is none."""
    named = os.environ.get("OCTOBERT_BROWSER")
    return next(filter(None, map(shutil.which, (named,) if named else _NAMES)), None)
