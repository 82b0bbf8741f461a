"""What runtimes really executed in 8 bits, by their profilers."""

from __future__ import annotations

from typing import Any

from octobert.core.evidence import Execution
from octobert.report.page.runs import Run, Section


def section(run: Run) -> Section | None:
    """Products in the file and in integers, fallbacks with their reasons, and types of operators, for each profiled model."""
    found = run.evidence.executions
    if not found:
        return None
    data = {
        "models": [
            {
                "name": each.candidate,
                "types": _types(each),
                "parts": [
                    [part.layer, part.part, part.ms, part.integer, "; ".join(part.types), part.why]
                    for part in each.parts
                ],
            }
            for each in found
        ]
    }
    fallbacks = {each.candidate: [part for part in each.parts if part.why] for each in found}
    shares = {each.candidate: _types(each) for each in found}
    return Section(
        "What was executed in 8 bits",
        {"executions": found, "fallbacks": fallbacks, "types": shares},
        data,
    )


def _types(execution: Execution) -> list[dict[str, Any]]:
    return [
        {**each.model_dump(), "share": each.ms / (execution.total_ms or 1.0)}
        for each in execution.types
    ]
