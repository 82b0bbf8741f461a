"""Calibrated activations with the intervals of each plan, and the channels that graph transforms made alike."""

from __future__ import annotations

from octobert.report.page.runs import Run, Section


def section(run: Run) -> Section | None:
    """Histograms and intervals, the activations first that lose most to clipping; and channels before and after."""
    evidence, errors = run.evidence, _errors(run)
    if not evidence.activations and not evidence.smoothed:
        return None
    activations = sorted(
        evidence.activations,
        # The most interesting ones first: quantized, clipped most, most sensitive.
        key=lambda each: (
            not each.intervals,
            -max(each.clipped.values(), default=0.0),
            -errors.get(each.value, 0.0),
        ),
    )
    targets = [
        name for name in run.report.plans if any(name in each.intervals for each in activations)
    ]
    groups = sorted(
        evidence.smoothed, key=lambda each: -_spread(each.before) / (_spread(each.after) or 1.0)
    )
    data = {
        "targets": targets,
        "activations": [
            {
                **each.model_dump(include={"value", "intervals", "clipped"}),
                "name": f"{each.module} · {each.role}",
                **each.histogram.model_dump(include={"low", "high", "counts"}),
            }
            for each in activations
        ],
        "groups": [
            {
                "name": f"{each.module} ({each.kind}, {each.transform})",
                "before": each.before,
                "after": each.after,
            }
            for each in groups
        ],
    }
    values = {
        "activations": activations,
        "targets": targets,
        "errors": errors,
        "cut": evidence.observed - len(activations),
        "calibrator": run.report.ranges.calibrator,
        "samples": run.report.ranges.provenance.samples,
        "groups": [(each, _spread(each.before), _spread(each.after)) for each in groups],
    }
    return Section("Ranges of activations", values, data)


def _errors(run: Run) -> dict[str, float]:
    """Value → the largest error of the outputs where it alone is 8-bit, over the targets."""
    found: dict[str, float] = {}
    for measured in run.report.sensitivities.values():
        for each in measured.values:
            found[each.value] = max(found.get(each.value, 0.0), each.output_error)
    return found


def _spread(magnitudes: tuple[float, ...]) -> float:
    """The largest channel over the median one, which a range for all of them has to hold."""
    ordered = sorted(magnitudes)
    return ordered[-1] / (ordered[len(ordered) // 2] or 1.0) if ordered else 0.0
