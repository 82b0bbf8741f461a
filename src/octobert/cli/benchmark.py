"""`octobert benchmark MODEL…`: time packages and model files, and their float models, in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octobert.api import models
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert benchmark out/ort-cpu out/openvino-cpu --batch 1 --sequence 128",
    "octobert benchmark out/ort-cpu --goal throughput --seconds 60 --streams auto",
    "octobert benchmark model_int8.onnx --reference model.onnx",
)
_DEVICE = (
    "OpenVINO's name of a device: CPU, GPU, NPU, AUTO, MULTI:… or HETERO:…, several times for "
    "several. (benchmark_app: -d)"
)


@_options.filled(
    options=_options.from_function(
        models.benchmark, metavar="directories", texts={"device": _DEVICE}
    )
)
def command(
    options: _options.Arguments,
    *,
    every: bool = False,
) -> Iterator[Any]:
    """Time packages and model files, and their float models, in turn, each in a process of its own.

    Args:
        every: Print all columns, in several tables where the terminal is narrow.
    """
    with _show.progress() as progress:
        result = models.benchmark(**options, progress=progress)
    yield result
    from octobert.core.measurements import shapes
    from octobert.report import contents, terminal, times
    from octobert.report.summary import NO_FLOAT

    lines = [
        line
        for together in (False, True)
        for line in times.timings(result.figures(), result.precisions, together=together)
    ]
    sentences = [sentence for line in lines for sentence in times.speed(line)]
    table = contents.latency_table(lines, shapes(result.latencies), elsewhere="--all", every=every)
    ran_on = [
        f"{f.candidate} ran on {f.device}." for f in result.footprints if options.get("device")
    ]
    how = times.how(result.settings, result.throughputs)
    if not result.speedups and not result.ratios:
        _show.note(NO_FLOAT)
    _show.render(
        table,
        *terminal.notes([*sentences, *ran_on, *how], times.noise(result.latencies, result.load)),
    )
