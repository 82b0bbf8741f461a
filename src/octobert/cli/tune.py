"""`octobert tune MODEL --data FILE`: the fastest settings of a model on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octobert.api import models
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert tune out/ort-cpu --data validation.tsv",
    "octobert tune model.onnx --task mrpc --data validation.tsv",
)


@_options.filled(options=_options.from_function(models.tune, metavar="directory"))
def command(options: _options.Arguments) -> Iterator[Any]:
    """Search for threads, streams and runtime options that are faster than the defaults, and store them beside the model."""
    with _show.progress() as progress:
        results = models.tune(**options, progress=progress)
    yield results
    from octobert.report import terminal

    _show.render(*(terminal.tuned_table(result) for result in results))
