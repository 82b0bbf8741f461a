"""`octobert evaluate MODEL --data FILE`: score a package or a model file, and its float model, on data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octobert.api import models
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert evaluate out/ort-cpu --data test.tsv",
    "octobert evaluate out/ort-cpu --data dev-v1.1.json --predictions predictions.json",
    "octobert evaluate model_int8.onnx --task mrpc --data test.tsv --reference model.onnx",
)


@_options.filled(options=_options.from_function(models.evaluate, metavar="directory"))
def command(options: _options.Arguments) -> Iterator[Any]:
    """Score a package or a model file on data, and compare it with its float model on the same rows."""
    with _show.progress() as progress:
        result = models.evaluate(**options, progress=progress)
    yield result
    from octobert.core.wording import quality_text
    from octobert.report import contents, terminal
    from octobert.report.summary import NO_FLOAT, chance

    _show.render(contents.score_table(result.scores))
    if options.get("device"):
        _show.line(
            f"The models ran on {result.device}, their float operators in {result.precision}."
        )
    comparison = result.comparison
    if comparison is None:
        _show.note(NO_FLOAT)
        return
    _show.line(
        f"{comparison.candidate}: {quality_text(comparison)}; output error {comparison.output_error:.4f}, "
        f"{len(comparison.changed)} rows changed"
    )
    _show.render(*terminal.notes((), chance(result.scores, comparison)))
