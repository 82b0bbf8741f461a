"""Pictures of a report's page for the documents, `docs/images/report-*.png`: light, dark, on a phone, and the whole page.

    python docs/screenshots.py OUT

OUT is the output directory of a run; `make screenshots` takes that of the demo. The page is made again before. Pictures have
256 colours, which keeps each below 400 kB.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import octobert

FOLDER = Path(__file__).parent / "images"
LARGEST = 400_000
# name → width, height, dark, the whole page
PICTURES = {
    "light": (1280, 900, False, False),
    "dark": (1280, 900, True, False),
    "phone": (390, 844, False, False),
    "full": (1280, 900, False, True),
}


def picture(browser: Any, page: Path, width: int, height: int, dark: bool, whole: bool) -> bytes:
    """A picture of the page, as PNG."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    shown = context.new_page()
    shown.goto(page.resolve().as_uri())
    shown.wait_for_selector("html[data-drawn]", state="attached")
    png = shown.screenshot(full_page=whole)
    context.close()
    return bytes(png)


def small(png: bytes) -> bytes:
    """The picture with 256 colours; a long one at half of its size."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    if image.height > 3000:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(stream, "png", optimize=True)
    return stream.getvalue()


def main() -> None:
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.support.chromium import chromium

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = octobert.page(sys.argv[1], out=Path(folder) / "report.html")
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, how in PICTURES.items():
            content = small(picture(browser, page, *how))
            if len(content) > LARGEST:
                sys.exit(f"report-{name}.png has {len(content):,} bytes, more than {LARGEST:,}")
            (FOLDER / f"report-{name}.png").write_bytes(content)
            print(f"{FOLDER / f'report-{name}.png'}: {len(content):,} bytes")
        browser.close()


if __name__ == "__main__":
    main()
