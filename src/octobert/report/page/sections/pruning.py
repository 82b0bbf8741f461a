"""Pruning: what stayed of each layer, the models that were tried, and what heads and neurons cost in time."""

from __future__ import annotations

from typing import Any

from octobert.core import wording
from octobert.report import pruned
from octobert.report.page.runs import Run, Section


def section(run: Run) -> Section | None:
    """The sentences, a chart of the models that were tried, one of the times, and tables of both and of the layers."""
    pruning = run.report.pruning
    if pruning is None:
        return None
    # The layers of the chosen model, else of the slowest that was tried.
    shown = pruning.taken or next(iter(pruning.tried), None)
    layers = [_row(each) for each in shown.sublayers] if shown is not None else []
    tried = [
        {
            "speedup": model.speedup.value,
            "speedup_low": model.speedup.low,
            "speedup_high": model.speedup.high,
            "speedup_text": wording.estimate_text(model.speedup),
            "predicted": model.predicted,
            "drop": model.drop.value,
            "low": model.drop.low,
            "high": model.drop.high,
            "metric": model.metric,
            "loss": model.loss,
            "rows": model.rows,
            "stayed": pruned.stayed(model.sublayers),
            "drop_text": wording.estimate_text(model.drop, ".4f", ".3f"),
            "chosen": place == pruning.chosen,
        }
        for place, model in enumerate(pruning.tried)
    ]
    times = [
        {"kind": pruned.NOUNS[each.kind], "units": units, "ms": ms}
        for each in pruning.times
        for units, ms in zip(each.units, each.ms, strict=True)
    ]
    values = {
        "pruning": pruning,
        "sentences": pruned.sentences(pruning),
        "tried": tried,
        "layers": layers,
        "times": times,
        "left_whole": pruning.chosen is None,
        "shown": shown,
    }
    data = {
        "metric": pruning.metric,
        "tried": tried,
        "layers": layers,
        "times": times,
        "wholeMs": pruning.whole_ms,
    }
    return Section("Pruning: heads and neurons", values, data)


def _row(each: Any) -> dict[str, Any]:
    sublayer = each.sublayer
    return {
        "layer": sublayer.layer,
        "kind": pruned.NOUNS[sublayer.kind],
        "module": sublayer.module,
        "units": sublayer.units,
        "share": each.kept / sublayer.units,
        **each.model_dump(include={"kept", "error", "refitted", "loss"}),
    }
