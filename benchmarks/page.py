"""The page of a report with 5,000 rows in a browser: first paint, time until drawn, memory, layout shifts, size.

    python benchmarks/page.py [--rows 5000] [--repeats 5] [REPORT.html …]

Half of the rows changed in each of the two 8-bit models. Pages are opened from files, each in a new tab of the system's
Chromium, as often as `--repeats` says; medians are printed. First paint is the browser's own `first-contentful-paint`. Drawn:
all charts are there. Longest task: of the page's thread, 0 where none took 50 ms. Heap: of scripts, after garbage collection.
Layout shift: the browser's sum (cumulative layout shift); less than 0.1 is called good.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from octobert.report.page import page

# Before anything of the page runs: keep what the browser tells.
OBSERVE = """
window.seen = {shift: 0, longest: 0, drawn: null};
const observe = (type, keep) =>
  new PerformanceObserver((list) => list.getEntries().forEach(keep)).observe({type, buffered: true});
observe('layout-shift', (each) => { if (!each.hadRecentInput) seen.shift += each.value; });
observe('longtask', (each) => { seen.longest = Math.max(seen.longest, each.duration); });
new MutationObserver(() => {
  if (document.documentElement?.dataset.drawn) seen.drawn ??= performance.now();
}).observe(document, {subtree: true, attributes: true, attributeFilter: ['data-drawn']});
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
COLUMNS = ("first paint ms", "drawn ms", "longest task ms", "heap MB", "layout shift")


def measure(browser: Any, file: Path, width: int) -> tuple[float, ...]:
    """The figures of one visit, in the order of `COLUMNS`."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.add_init_script(OBSERVE)
    shown = context.new_page()
    shown.goto(file.resolve().as_uri())
    shown.wait_for_selector("html[data-drawn]", state="attached")
    # What is drawn late, and the scrolling that draws it, shifts the layout too.
    shown.wait_for_timeout(500)
    seen = shown.evaluate("seen")
    devtools = context.new_cdp_session(shown)
    devtools.send("HeapProfiler.collectGarbage")
    heap = devtools.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    figures = (shown.evaluate(PAINT), seen["drawn"], seen["longest"], heap, seen["shift"])
    context.close()
    return figures


def main() -> None:
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.support.chromium import chromium
    from tests.support.reports import rich_run

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("pages", type=Path, nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        made = Path(folder) / f"{options.rows} rows.html"
        made.write_text(
            page([rich_run(rows=options.rows, changed=options.rows // 2)]), encoding="utf-8"
        )
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        print(f"Chromium {browser.version}, medians of {options.repeats} visits\n")
        print(f"| page | width | file MB | {' | '.join(COLUMNS)} |")
        print("|---|---|---|" + "---|" * len(COLUMNS))
        for file in options.pages or [made]:
            for width in (1280, 360):
                visits = [measure(browser, file, width) for _ in range(options.repeats)]
                medians = [statistics.median(figures) for figures in zip(*visits, strict=True)]
                shown = " | ".join(
                    [
                        *(f"{value:.0f}" for value in medians[:3]),
                        f"{medians[3]:.1f}",
                        f"{medians[4]:.3f}",
                    ]
                )
                print(f"| {file.stem} | {width} | {file.stat().st_size / 1e6:.2f} | {shown} |")
        browser.close()


if __name__ == "__main__":
    main()
