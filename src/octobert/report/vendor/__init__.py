"""Libraries of the pages, from their npm packages: Observable Plot for charts, and D3, which it is made of.

The files are fetched when octobert is built (`hatch_build.py` in the repository): they are in every wheel, and not in git. Plot
was chosen because its charts are SVG in the colours of the text around them (dark mode, print, screen readers), because
intervals, boxes, cells and pointer details are marks that it has, and because it needs no `eval`, so that a strict content
security policy holds. Vega-Lite and ECharts are twice as large, and uPlot draws on a canvas, without boxes.
"""

from __future__ import annotations

import functools
from importlib.resources import files

from octobert.core.errors import StorageError

# In the order in which they are loaded.
_FILES = ("d3", "plot")


@functools.cache
def scripts() -> tuple[str, ...]:
    """The libraries as scripts, with their licences.

    Raises:
        StorageError: octobert was not built.
    """
    folder = files(__name__)
    try:
        libraries = [
            (
                folder.joinpath(f"{n}.js").read_text("utf-8"),
                folder.joinpath(f"{n}.LICENSE").read_text("utf-8"),
            )
            for n in _FILES
        ]
    except FileNotFoundError as error:
        raise StorageError(
            "a library of the page is missing",
            where=error.filename,
            fix="install octobert again: pip install -e . in its folder, or make install",
        ) from error
    # The end of a script in a text of a script would end it.
    return tuple(
        f"/*! {licence.strip()} */\n{script}".replace("</script", "<\\/script")
        for script, licence in libraries
    )
