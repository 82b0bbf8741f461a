"""The float graph and calibration rows → statistics of every activation that a plan may quantize.

Writes `statistics.npz`, per value its minimum, maximum, count, occupied histogram bins and the extremes of each row; and
`observed.json`.
"""

from __future__ import annotations

import onnx_ir as ir

from octobert.core.plan import Placement
from octobert.engine.contract import Context, Summary, stage
from octobert.graph import sites
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, FloatGraph, Rows, Statistics
from octobert.pipeline.task import TaskSpec
from octobert.quantization import observer

_SHOWN_CHARACTERS = 60
# Roles of values that nothing but a norm reads, after the residual add.
_NORMED = ("residual.branch", "residual.output")


@stage(Statistics, anywhere=True)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    float_graph: FloatGraph,
    *,
    kinds: tuple[str, ...],
    provider: str,
    spec: TaskSpec,
    supplement: bool,
) -> Summary:
    """Observe.

    Args:
        float_graph: the graph to observe.
        kinds: patterns of the kinds of sites to observe.
        provider: the execution provider that computes.
        supplement: observe other texts than the calibration rows, too.
    """
    task = spec.build()
    tokenizer, encoded = capture.calibration(data, task)
    more = artifacts.supplement(tokenizer, encoded, task, wanted=supplement)
    rows = [*encoded.flat, *more.flat]
    # A text of several windows has several rows: the number and the text of each row, for messages.
    texts = [
        (f"{kind} {n}", text)
        for kind, part in (("calibration row", encoded), ("text of the supplement", more))
        for n, (text, windows) in enumerate(zip(part.texts, part.rows, strict=True), 1)
        for _ in windows
    ]
    graph = float_graph.file
    placement = Placement(description="", kinds=kinds)
    chosen = [
        site
        for site in sites.find_sites(ir.load(graph).graph, capture.family)
        if placement.takes(site)
    ]
    values = sorted({site.value for site in chosen if not site.is_weight})
    statistics = observer.observe(
        graph,
        rows,
        tokenizer.pad_id,
        values,
        relative={site.value for site in chosen if site.role in _NORMED},
        provider=provider,
        name_of=lambda i: f'{texts[i][0]}, "{texts[i][1][0][:_SHOWN_CHARACTERS]}"',
        on_rows=lambda done: context.progress("observing", done, len(rows)),
    )
    observer.save(statistics, context.work / artifacts.STATISTICS)
    observed = {
        "samples": len(encoded.texts),
        "supplement": len(more.texts),
        "rows": len(rows),
        "tokens": sum(map(len, rows)),
        "truncated": sum(row.truncated for row in encoded.flat),
        "values": len(values),
        "data_digest": data.read_json("calibration.json")["digest"],
    }
    context.write_json(artifacts.OBSERVED, observed)
    return observed
