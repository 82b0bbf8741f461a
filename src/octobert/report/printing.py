"""A page → PDF, by a browser of this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from octobert.core import processes
from octobert.core.errors import TargetError
from octobert.core.files import atomic_write

# Variable with the program of a browser.
BROWSER = "OCTOBERT_BROWSER"
_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "msedge",
)
# Where macOS and Windows install them, which is not on PATH.
_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)
# Until a browser has printed: it starts, draws and writes in about three.
_SECONDS = 120.0
# Of the page's own time, so that its charts are drawn.
_DRAWN_MS = 20_000


def browser() -> str:
    """Return the program of Chromium, Chrome or Edge.

    Raises:
        TargetError: there is none.
    """
    named = os.environ.get(BROWSER)
    found = [shutil.which(name) for name in ((named,) if named else (*_NAMES, *_PLACES))]
    program = next(filter(None, found), None)
    if program is None:
        raise TargetError(
            "there is no Chromium, Chrome or Edge to print with",
            got=named,
            fix=f"install one, name its program in {BROWSER}, or print the page from any browser",
        )
    return program


def print_page(page: Path, pdf: Path, program: str) -> None:
    """Print a page to a PDF file.

    Args:
        page: HTML file.
        pdf: the file to write; it is replaced when the whole PDF is there.
        program: of the browser.

    Raises:
        TargetError: the browser failed, or took more than two minutes.
    """
    with tempfile.TemporaryDirectory(prefix="octobert-") as profile, atomic_write(pdf) as partial:
        command = [
            program,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--no-pdf-header-footer",
            # As wide as the paper between its margins, so that charts are drawn for it.
            "--window-size=750,1000",
            f"--user-data-dir={profile}",
            f"--virtual-time-budget={_DRAWN_MS}",
            f"--print-to-pdf={partial.resolve()}",
            # Chromium has no sandbox for root. The page is a file of octobert that loads nothing.
            *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
            page.resolve().as_uri(),
        ]
        said = processes.output_of(command, seconds=_SECONDS)
        if not partial.is_file() or not partial.read_bytes().startswith(b"%PDF"):
            got = (
                f"nothing in {_SECONDS:.0f} s"
                if said is None
                else (said.strip().splitlines() or ["no message"])[-1]
            )
            raise TargetError(
                "the browser printed no PDF",
                where=program,
                got=got,
                fix="print the page from a browser",
            )
