"""Times of all models: how they are distributed, what they cost against length, and the table."""

from __future__ import annotations

import math
from typing import Any

from octobert.config.recipe import Recipe
from octobert.core.measurements import Latency, in_order, shapes
from octobert.report import summary, times
from octobert.report.page.runs import Run, Section

# Statistics that are marked among the samples.
_MARKED = ("p50", "p90", "p99")
# Times that span more are on a logarithmic axis.
_WIDE = 10.0
# Bars of the histogram of lengths.
_BARS = 40


def section(run: Run) -> Section | None:
    """Charts and the table of times, where models were timed."""
    report, models = run.report, summary.model_results(run.report)
    if not models:
        return None
    values = {
        "timings": [*(model.timing for model in models), *summary.throughputs(report)],
        "shown": times.SHOWN,
        "how": times.how(Recipe.model_validate(report.recipe).benchmark, report.throughputs),
        "shapes": shapes(report.latencies),
        "rows": len(run.evidence.lengths),
        "costs": _costs(run) is not None,
    }
    return Section("Speed", values, {"shapes": _distributions(run), "costs": _costs(run)})


def _distributions(run: Run) -> list[dict[str, Any]]:
    """The samples of each model at each shape, with the ends of their axis."""
    shapes = []
    for shape in in_order(run.report.latencies):
        timed = [each for each in run.report.latencies if each.shape == shape]
        samples = [_known(each.samples_ms) for each in timed]
        known = [ms for each in samples for ms in each]
        if not known:
            continue
        low, high = min(known), max(known)
        models = [
            {
                **_model(run, each.candidate),
                "ms": own,
                "tokens": each.sample_tokens,
                "marks": {name: _short(each.statistics_ms[name]) for name in _MARKED},
            }
            for each, own in zip(timed, samples, strict=True)
            if own
        ]
        shapes.append(
            {"name": str(shape), "logarithmic": low > 0 and high > _WIDE * low, "models": models}
        )
    return shapes


def _costs(run: Run) -> dict[str, Any] | None:
    """Time against tokens, one text at a time: each timed row of the data, and the median of each fixed length; beside them
    the lengths of the rows. None where there are no two lengths."""
    points: list[dict[str, Any]] = []
    for each in run.report.latencies:
        if each.batch != 1:
            continue
        model = _model(run, each.candidate)
        points += [
            {**model, "tokens": tokens, "ms": ms, "fixed": False} for tokens, ms in _rows(each)
        ]
        if isinstance(each.sequence, int) and _known(each.samples_ms):
            points.append(
                {
                    **model,
                    "tokens": each.sequence,
                    "ms": _short(each.percentile_ms(50)),
                    "fixed": True,
                }
            )
    if len({point["tokens"] for point in points}) < 2:
        return None
    lengths = run.evidence.lengths
    longest = max([*(point["tokens"] for point in points), *lengths])
    times_ms = [point["ms"] for point in points]
    logarithmic = 0 < min(times_ms) < max(times_ms) / _WIDE
    bar = max(1, math.ceil(longest / _BARS))
    return {
        "points": points,
        "lengths": lengths,
        "longest": longest,
        "bar": bar,
        "logarithmic": logarithmic,
    }


def _model(run: Run, name: str) -> dict[str, Any]:
    """A model in the charts: its number is that of its colour."""
    names = [each.candidate for each in run.report.footprints]
    return {"name": name, "int8": name in run.report.plans, "number": names.index(name)}


def _rows(latency: Latency) -> list[tuple[int, float]]:
    """(tokens, milliseconds) of each timed row; none where the tokens are not known, as in reports of octobert 0.1."""
    pairs = zip(latency.sample_tokens, latency.samples_ms, strict=False)
    return [(tokens, _short(ms)) for tokens, ms in pairs if math.isfinite(ms)]


def _known(samples: tuple[float, ...]) -> list[float]:
    return [_short(ms) for ms in samples if math.isfinite(ms)]


def _short(ms: float) -> float:
    """A time with four digits that matter: more are noise, and make the page larger."""
    return float(f"{ms:.4g}")
