"""Sections of what is inside a model: layers and parts, what ran in 8 bits, and ranges of activations.

`layers` holds the plan, the sensitivity and the profile against each other: how much each part costs in accuracy and in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from octobert.core.evidence import Executed
from octobert.core.family import BERT_PARTS, LAYER_PARTS
from octobert.core.measurements import TimedShape, first_of
from octobert.core.plan import OUTPUTS, Decision, Site
from octobert.core.results import SiteSensitivity
from octobert.report.page.runs import Content, Section, ShownRun

Place = tuple[int | None, str]
# What a cell shows of a state, and how it is called. No state is told by its colour alone.
STATES = {
    "int8": ("8", "8-bit"),
    "fallback": ("8→f", "8-bit in the file, computed in float"),
    "int16": ("16", "16-bit activations"),
    "weights": ("w8", "8-bit weights only"),
    "partly": ("½", "partly 8-bit"),
    "float": ("f", "float"),
    "": ("", "no value that could be 8-bit"),
}
# Column of the parts outside of the layers.
OUTSIDE = "–"


@dataclass
class _Cell:
    decisions: list[Decision] = field(default_factory=list)
    sensitivities: list[SiteSensitivity] = field(default_factory=list)
    executed: Executed | None = None


def layers(run: ShownRun) -> Section | None:
    """The three maps and their table, for each plan."""
    plans = run.report.plans
    if not plans:
        return None
    targets = [_target(run, name) for name in plans]
    cells = [cell for target in targets for cell in target["cells"]]
    layers = sorted({cell["layer"] for cell in cells if cell["layer"] is not None})
    outside = [OUTSIDE] if any(cell["layer"] is None for cell in cells) else []
    states = {cell["state"] for cell in cells}
    data = {
        "targets": targets,
        "columns": [*map(str, layers), *outside],
        "parts": _parts(cells),
        "outside": OUTSIDE,
    }
    values = {
        "counts": {
            name: {role: done for role, done in plan.counts().items() if done[0]}
            for name, plan in plans.items()
        },
        "legend": [words for state, words in STATES.items() if state and state in states],
    }
    return Section("Inside the model: layers × parts", values, data)


def _target(run: ShownRun, name: str) -> Content:
    """The parts of a target's model: plan, sensitivity and profile."""
    execution = first_of(name, run.evidence.executions)
    measured = run.report.sensitivities.get(name)
    by_place: dict[Place, _Cell] = {}
    for decision in run.report.plans[name].decisions:
        by_place.setdefault(_place(decision.site), _Cell()).decisions.append(decision)
    for value in measured.values if measured else ():
        by_place.setdefault(_place(value), _Cell()).sensitivities.append(value)
    for part in execution.parts if execution else ():
        by_place.setdefault((part.layer, part.part or "unnamed"), _Cell()).executed = part
    total = execution.total_ms if execution else 0.0
    cells = [_cell(place, cell, total) for place, cell in by_place.items()]
    cells.sort(key=lambda cell: (cell["layer"] is None, cell["layer"] or 0))
    return {
        "name": name,
        "profiled": f"{execution.runtime} at {TimedShape(execution.batch, execution.sequence)}"
        if execution and execution.parts
        else "",
        "total_ms": total,
        "sensitive": bool(measured and measured.values),
        "rows": measured.rows if measured else 0,
        "cells": cells,
    }


def _place(site: Site | SiteSensitivity) -> Place:
    """Where a value is: outside of the layers by its module, as profiles have it."""
    return (site.layer, site.part if site.layer is not None else site.module.partition(".")[0])


def _cell(place: Place, cell: _Cell, total_ms: float) -> Content:
    ran = cell.executed
    worst = max(cell.sensitivities, key=lambda sensitivity: sensitivity.output_error, default=None)
    state = _state(cell.decisions, ran)
    return {
        "layer": place[0],
        "part": place[1],
        "state": state,
        "sign": STATES[state][0],
        "plan": STATES[state][1],
        "error": worst.output_error if worst else None,
        "errorOf": f"{worst.role} {worst.value}" if worst else "",
        "ms": ran.ms if ran else None,
        "share": ran.ms / total_ms if ran and total_ms else None,
        "integer": ran.integer if ran else None,
        "operators": ", ".join(ran.types) if ran else "",
        "why": "; ".join(_reasons(cell)),
    }


def _state(decisions: Sequence[Decision], ran: Executed | None) -> str:
    """The state of a part, a key of `STATES`: its operands decide; results only where a part has no operands."""
    operands = _operands(decisions)
    types = [decision.quantizer.dtype if decision.quantizer else "" for decision in operands]
    if not types:
        return ""
    if not any(types):
        return "float"
    if ran is not None and ran.why:
        return "fallback"
    if all(decision.site.is_weight for decision in operands if decision.quantizer):
        return "weights"
    if all(types):
        return "int16" if any("16" in dtype for dtype in types) else "int8"
    return "partly"


def _operands(decisions: Sequence[Decision]) -> Sequence[Decision]:
    """The decisions on operands of a part; those on its results where it has no operands."""
    return [decision for decision in decisions if decision.site.role not in OUTPUTS] or decisions


def _reasons(cell: _Cell) -> Iterable[str]:
    """Why a part is what it is: that the runtime computes it in float, what the plan leaves in float, or why it is 8-bit."""
    if cell.executed is not None and cell.executed.why:
        yield f"Computed in float because {cell.executed.why}"
    operands = _operands(cell.decisions)
    left = [decision for decision in operands if decision.quantizer is None]
    for reason in dict.fromkeys(decision.reason for decision in left or operands):
        roles = ", ".join(
            dict.fromkeys(
                decision.site.role for decision in left or operands if decision.reason == reason
            )
        )
        yield f"{roles} {'stays float' if left else 'in 8 bits'}: {reason}"


def _parts(cells: Sequence[Content]) -> list[str]:
    """Parts of layers in the order of the computation, then the parts outside of them."""
    order = dict.fromkeys((*BERT_PARTS, *LAYER_PARTS))
    inside = {cell["part"] for cell in cells if cell["layer"] is not None}
    outside = dict.fromkeys(cell["part"] for cell in cells if cell["layer"] is None)
    rest = [part for part in (*sorted(inside - order.keys()), *outside) if part]
    return [*(part for part in order if part in inside), *dict.fromkeys(rest)]


def executed(run: ShownRun) -> Section | None:
    """Products in the file and in integers, fallbacks with their reasons, and types of operators, for each profiled model."""
    executions = run.evidence.executions
    models: list[Content] = [
        {
            "name": execution.candidate,
            "types": [
                {**kind.model_dump(), "share": kind.ms / (execution.total_ms or 1.0)}
                for kind in execution.types
            ],
            "parts": [
                [part.layer, part.part, part.ms, part.integer, "; ".join(part.types), part.why]
                for part in execution.parts
            ],
        }
        for execution in executions
    ]
    fell = {
        execution.candidate: [part for part in execution.parts if part.why]
        for execution in executions
    }
    title = "What was executed in 8 bits"
    return Section(title, {"fallbacks": fell}, {"models": models}) if models else None


def ranges(run: ShownRun) -> Section | None:
    """Histograms and intervals, the activations first that lose most to clipping; and channels before and after."""
    evidence = run.evidence
    if not evidence.activations and not evidence.smoothed:
        return None
    # Value → the largest error of the outputs where it alone is 8-bit, over the targets.
    errors: dict[str, float] = {}
    for measured in run.report.sensitivities.values():
        for sensitivity in measured.values:
            errors[sensitivity.value] = max(
                errors.get(sensitivity.value, 0.0), sensitivity.output_error
            )
    activations = sorted(
        evidence.activations,
        # The most interesting ones first: quantized, clipped most, most sensitive.
        key=lambda activation: (
            not activation.intervals,
            -max(activation.clipped.values(), default=0.0),
            -errors.get(activation.value, 0.0),
        ),
    )
    targets = [
        name
        for name in run.report.plans
        if any(name in activation.intervals for activation in activations)
    ]
    groups = sorted(
        evidence.smoothed, key=lambda group: -_spread(group.before) / (_spread(group.after) or 1.0)
    )
    data = {
        "targets": targets,
        "activations": [
            {
                **activation.model_dump(include={"value", "intervals", "clipped"}),
                "name": f"{activation.module} · {activation.role}",
                **activation.histogram.model_dump(include={"low", "high", "counts"}),
            }
            for activation in activations
        ],
        "groups": [
            {
                "name": f"{group.module} ({group.kind}, {group.transform})",
                "before": group.before,
                "after": group.after,
            }
            for group in groups
        ],
    }
    values = {
        "activations": activations,
        "errors": errors,
        "groups": [(group, _spread(group.before), _spread(group.after)) for group in groups],
    }
    return Section("Ranges of activations", values, data)


def _spread(magnitudes: tuple[float, ...]) -> float:
    """The largest channel over the median one, which a range for all of them has to hold."""
    ordered = sorted(magnitudes)
    return ordered[-1] / (ordered[len(ordered) // 2] or 1.0) if ordered else 0.0
