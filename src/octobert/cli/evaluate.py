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
def command(options: dict[str, Any]) -> Iterator[Any]:
    """Score a package or a model file on data, and compare it with its float model on the same rows."""
    with _show.progress() as progress:
        result = models.evaluate(**options, progress=progress)
    yield result
    from octobert.core.wording import interval, probability
    from octobert.report import terminal
    from octobert.report.summary import NO_FLOAT, chance

    for name, scores in result.scores.items():
        for score in scores:
            ends = interval(score.low, score.high, ".4f")
            _show.line(
                f"{name:<14} {score.metric:<12} {score.value:.4f}  {ends}  {score.rows} rows"
            )
    if options.get("device"):
        _show.line(
            f"The models ran on {result.device}, their float operators in {result.precision}."
        )
    comparison = result.comparison
    if comparison is None:
        _show.note(NO_FLOAT)
        return
    change = ""
    if comparison.difference is not None:
        change = f", {comparison.metric} {comparison.difference:+.4f} ({probability(comparison.p_value)})"
    if comparison.divergence is not None:
        change = f", KL divergence {comparison.divergence:.5f} nats{change}"
    _show.line(
        f"{comparison.candidate} follows {comparison.reference}: {comparison.fidelity_name} {comparison.fidelity:.4f}, "
        f"output error {comparison.output_error:.4f}, {len(comparison.changed)} rows changed{change}"
    )
    _show.render(*terminal.notes((), chance(result.scores, comparison)))
