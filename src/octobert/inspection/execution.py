"""What a runtime executed of a model, as a report keeps it: times by layer and part, and by type of operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octobert.core.evidence import Executed, Execution, OperatorType
from octobert.core.profile import Inspection, Operator, grouped, time_of
from octobert.targets import runtimes


def execution(inspection: Inspection) -> Execution:
    """Return what was executed, from an inspection of a target's model."""
    operators = inspection.profile.operators
    why: dict[tuple[int | None, str], list[str]] = {}
    for each in inspection.fallbacks:
        why.setdefault((each.layer, each.part), []).append(
            each.why or "neither the file nor the runtime shows why"
        )
    places = grouped(operators, lambda each: (each.layer, each.part))
    types = grouped(operators, lambda each: (each.type, each.precision, each.integer))
    return Execution(
        candidate=inspection.target,
        runtime=f"{runtimes.load(inspection.runtime).TITLE} {inspection.version}",
        batch=inspection.batch,
        sequence=inspection.sequence,
        total_ms=inspection.profile.split.total_ms,
        products=len(inspection.products),
        integer_products=inspection.matched - len(inspection.fallbacks),
        sentences=inspection.answers,
        parts=tuple(
            Executed(
                layer=layer,
                part=part,
                ms=time_of(own),
                integer=time_of(o for o in own if o.integer) / (time_of(own) or 1.0),
                types=_counted(own),
                why="; ".join(dict.fromkeys(why.get((layer, part), ()))),
            )
            for (layer, part), own in places.items()
        ),
        types=tuple(
            sorted(
                (
                    OperatorType(
                        type=name,
                        precision=precision,
                        count=len(own),
                        ms=time_of(own),
                        integer=integer,
                    )
                    for (name, precision, integer), own in types.items()
                ),
                key=lambda each: -each.ms,
            )
        ),
    )


def _counted(operators: Iterable[Operator]) -> tuple[str, ...]:
    """`2 × MatMulIntegerToFloat int8`, `Softmax`."""
    names = Counter(
        f"{each.type} {each.precision}" if each.kind == "product" else each.type
        for each in operators
    )
    return tuple(f"{count} × {name}" if count > 1 else name for name, count in names.items())
