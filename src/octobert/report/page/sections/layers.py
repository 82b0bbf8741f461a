"""Layers × parts: how much each part costs in accuracy and in time, and whether it is 8-bit in the plan and where it ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octobert.core.evidence import Executed
from octobert.core.family import LAYER_PARTS
from octobert.core.plan import OUTPUTS, Decision, Site
from octobert.core.results import SiteSensitivity
from octobert.report.page.runs import Run, Section

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


def section(run: Run) -> Section | None:
    """The three maps and their table, for each plan."""
    plans = run.report.plans
    if not plans:
        return None
    targets = [_target(run, name) for name in plans]
    cells = [cell for target in targets for cell in target["cells"]]
    layers = [
        str(layer)
        for layer in sorted({cell["layer"] for cell in cells if cell["layer"] is not None})
    ]
    outside = [OUTSIDE] if any(cell["layer"] is None for cell in cells) else []
    data = {
        "targets": targets,
        "columns": [*layers, *outside],
        "parts": _parts(cells),
        "outside": OUTSIDE,
    }
    counts = {
        name: {role: done for role, done in plan.counts().items() if done[0]}
        for name, plan in plans.items()
    }
    legend = {
        state: words
        for state, words in STATES.items()
        if state and any(cell["state"] == state for cell in cells)
    }
    together = {target: each.together for target, each in run.report.sensitivities.items()}
    values = {
        "targets": targets,
        "counts": counts,
        "legend": legend,
        "together": together,
        "outside": OUTSIDE,
    }
    return Section("Inside the model: layers × parts", values, data)


def _target(run: Run, name: str) -> dict[str, Any]:
    """What is known of each part in a target's model."""
    execution = next((each for each in run.evidence.executions if each.candidate == name), None)
    measured = run.report.sensitivities.get(name)
    found: dict[Place, _Cell] = {}
    for decision in run.report.plans[name].decisions:
        found.setdefault(_place(decision.site), _Cell()).decisions.append(decision)
    for value in measured.values if measured else ():
        found.setdefault(_place(value), _Cell()).sensitivities.append(value)
    for part in execution.parts if execution else ():
        found.setdefault((part.layer, part.part or "unnamed"), _Cell()).executed = part
    total = execution.total_ms if execution else 0.0
    cells = [_cell(place, cell, total) for place, cell in found.items()]
    cells.sort(key=lambda each: (each["layer"] is None, each["layer"] or 0))
    return {
        "name": name,
        "profiled": f"{execution.runtime} at {execution.batch} × {execution.sequence}"
        if execution and execution.parts
        else "",
        "total_ms": total,
        "sensitive": measured is not None,
        "rows": measured.rows if measured else 0,
        "cells": cells,
    }


def _place(site: Site | SiteSensitivity) -> Place:
    """Where a value is: outside of the layers by its module, as profiles have it."""
    return (site.layer, site.part if site.layer is not None else site.module.partition(".")[0])


def _cell(place: Place, cell: _Cell, total_ms: float) -> dict[str, Any]:
    ran = cell.executed
    worst = max(cell.sensitivities, key=lambda each: each.output_error, default=None)
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
    """What is 8-bit of a part: its operands decide; results only where a part has no operands."""
    operands = [each for each in decisions if each.site.role not in OUTPUTS] or decisions
    types = [each.quantizer.dtype if each.quantizer else "" for each in operands]
    if not types:
        return ""
    if not any(types):
        return "float"
    if ran is not None and ran.why:
        return "fallback"
    if all(each.site.is_weight for each in operands if each.quantizer):
        return "weights"
    if all(types):
        return "int16" if any("16" in dtype for dtype in types) else "int8"
    return "partly"


def _reasons(cell: _Cell) -> Iterable[str]:
    """Why a part is what it is: that the runtime computes it in float, what the plan leaves in float, or why it is 8-bit."""
    if cell.executed is not None and cell.executed.why:
        yield f"Computed in float because {cell.executed.why}"
    operands = [each for each in cell.decisions if each.site.role not in OUTPUTS] or cell.decisions
    left = [each for each in operands if each.quantizer is None]
    for reason in dict.fromkeys(each.reason for each in left or operands):
        roles = ", ".join(
            dict.fromkeys(each.site.role for each in left or operands if each.reason == reason)
        )
        yield f"{roles} {'stays float' if left else 'in 8 bits'}: {reason}"


def _parts(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Parts of layers in the order of the computation, then the parts outside of them."""
    order = (
        "query",
        "key",
        "value",
        "attention",
        "attention_output",
        "attention_norm",
        "ffn_up",
        "activation",
        "ffn_down",
    )
    known = [
        *order,
        "ffn_norm",
        *(part for part in LAYER_PARTS if part not in (*order, "ffn_norm")),
    ]
    inside = {cell["part"] for cell in cells if cell["layer"] is not None}
    outside = dict.fromkeys(cell["part"] for cell in cells if cell["layer"] is None)
    rest = [part for part in (*sorted(inside - set(known)), *outside) if part]
    return [*(part for part in known if part in inside), *dict.fromkeys(rest)]
