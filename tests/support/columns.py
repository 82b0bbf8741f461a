"""Figures of a report as one list of each kind, of all models: the form in which tests make and change them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from octobert.core.measurements import Figures
from octobert.core.results import Report

# Of these the figures say which model they are of.
LISTS = (
    "footprints",
    "latencies",
    "comparisons",
    "speedups",
    "throughputs",
    "ratios",
    "stored",
)
COLUMNS: dict[str, Any] = {"scores": {}, "absent": {}, **dict.fromkeys(LISTS, ())}


def columns(report: Report) -> Any:
    """The figures of a report as one list of each kind."""
    models = report.models
    return SimpleNamespace(
        scores={each.model: each.scores for each in models if each.scores},
        absent={each.model: each.absent for each in models if each.absent},
        comparisons=tuple(each.against_float for each in models if each.against_float),
        stored=tuple(one for each in models for one in each.stored),
        latencies=tuple(one for each in models for one in each.times),
        footprints=tuple(each.footprint for each in models if each.footprint),
        speedups=tuple(one for each in models for one in each.speedups),
        throughputs=tuple(one for each in models for one in each.throughputs),
        ratios=tuple(one for each in models for one in each.ratios),
    )


def with_columns(report: Report, changes: Mapping[str, Any]) -> Report:
    """A report with other fields, or with other figures of all models; they need not fit each other."""
    others = {name: value for name, value in changes.items() if name not in COLUMNS}
    own = {**vars(columns(report)), **{n: v for n, v in changes.items() if n in COLUMNS}}
    return report.model_copy(update={**others, "models": models_of(own)})


def models_of(own: Mapping[str, Any]) -> tuple[Figures, ...]:
    def of(name: str, column: str) -> tuple[Any, ...]:
        return tuple(each for each in own[column] if each.candidate == name)

    named = [each.candidate for column in LISTS for each in own[column]]
    return tuple(
        Figures.model_construct(
            model=name,
            absent=own["absent"].get(name, ""),
            scores=own["scores"].get(name, ()),
            against_float=next(iter(of(name, "comparisons")), None),
            stored=of(name, "stored"),
            footprint=next(iter(of(name, "footprints")), None),
            times=of(name, "latencies"),
            throughputs=of(name, "throughputs"),
            speedups=of(name, "speedups"),
            ratios=of(name, "ratios"),
        )
        for name in dict.fromkeys((*named, *own["scores"], *own["absent"]))
    )
