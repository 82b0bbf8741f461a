"""What a runtime computed with a model, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octobert.core import wording
from octobert.core.profile import Inspection, Operator, Profile, grouped, time_of
from octobert.report.plans import layers_text
from octobert.report.tables import FittedTable
from octobert.report.terminal import table_of

_FLOAT = "float ms"
# Types of operators and products that are listed unless all are asked for.
_TYPES, _FALLBACKS = 8, 4
_Key = tuple[str, str]


def tables(inspection: Inspection, *, every: bool = False) -> tuple[FittedTable, ...]:
    """Return the time of each part of the model, the time of each type of operator, and the products that ran in float.

    Args:
        inspection: to show.
        every: each layer by itself with its operators, all types of operators and all products. Otherwise parts of the layers
            whose products ran alike are added up, and only the slowest types and the first products are shown.
    """
    shown = (_layer_table(inspection, every=every), _type_table(inspection, every=every))
    return (*shown, _fallback_table(inspection, every=every)) if inspection.fallbacks else shown


def _layer_table(inspection: Inspection, *, every: bool) -> FittedTable:
    title = (
        f"{inspection.model} on {inspection.runtime} {inspection.version}, {inspection.batch} × {inspection.sequence}, "
        f"{wording.threads_text([inspection.threads])}: fastest of {inspection.profile.runs} profiled runs"
    )
    operators_column = ("operators",) if every else ()
    table = table_of(title, ("layers", "part", *operators_column, "products"), keys=2)
    table.add_numbers({"conversions": int(not every), "ms": 0, _FLOAT: 0})
    quantized = grouped(inspection.profile.operators, _place)
    floats = grouped(inspection.floating.operators if inspection.floating else (), _place)
    groups: dict[tuple[object, ...], list[_Key]] = {}
    for place, operators in quantized.items():
        alike = (place,) if every or not place[0] else (place[1], *_products(operators))
        groups.setdefault(alike, []).append(place)
    for places in groups.values():
        operators = [operator for place in places for operator in quantized[place]]
        first = quantized[places[0]]
        matched = [operator for place in places for operator in floats.get(place, ())]
        table.add_row(
            layers_text(int(place[0]) for place in places if place[0]),
            places[0][1] or "(unnamed)",
            *((", ".join(_counted(first)),) if every else ()),
            ", ".join(_products(first)),
            str(sum(operator.kind == "conversion" for operator in operators) or ""),
            f"{time_of(operators):.2f}",
            f"{time_of(matched):.2f}" if matched else "",
            style="" if any(operator.integer for operator in operators) else "dim",
        )
    return table


def _products(operators: Iterable[Operator]) -> list[str]:
    return list(
        dict.fromkeys(
            f"{o.kernel or o.type} {o.precision}" for o in operators if o.kind == "product"
        )
    )


def _type_table(inspection: Inspection, *, every: bool) -> FittedTable:
    """Each type of operator in each precision, the slowest in one of the models first; those that take little time together."""
    table = table_of("Time per operator type", ("operator", "precision"), ("count", "ms", "share"))
    table.add_numbers({"float count": int(not every), _FLOAT: 0})
    quantized = grouped(inspection.profile.operators, _type)
    floats = grouped(inspection.floating.operators if inspection.floating else (), _type)
    slower = {
        key: max(time_of(quantized.get(key, ())), time_of(floats.get(key, ())))
        for key in (*quantized, *floats)
    }
    slowest = sorted(slower, key=lambda k: -slower[k])
    rows = [
        (key, [key])
        for key in (slowest if every or len(slowest) <= _TYPES + 1 else slowest[:_TYPES])
    ]
    rest = slowest[len(rows) :]
    rows += [((f"{len(rest)} others (--all)", ""), rest)] if rest else []
    for names, keys in rows:
        operators = [operator for key in keys for operator in quantized.get(key, ())]
        float_operators = [operator for key in keys for operator in floats.get(key, ())]
        table.add_row(
            *names,
            str(len(operators)) if operators else "",
            f"{time_of(operators):.2f}" if operators else "",
            f"{inspection.profile.split.share(time_of(operators)):.1%}" if operators else "",
            str(len(float_operators)) if float_operators else "",
            f"{time_of(float_operators):.2f}" if float_operators else "",
            style="bold" if any(operator.integer for operator in operators) else "",
        )
    table.add_section()
    table.add_row(
        "all",
        "",
        *_total(inspection.profile),
        "",
        *(_total(inspection.floating) if inspection.floating else ("", "")),
    )
    return table


def _total(profile: Profile) -> tuple[str, str]:
    return str(len(profile.operators)), f"{profile.split.total_ms:.2f}"


def _fallback_table(inspection: Inspection, *, every: bool) -> FittedTable:
    table = table_of("Quantized in the file, computed in float", ("product", "operator", "reason"))
    for fallback in inspection.fallbacks if every else inspection.fallbacks[:_FALLBACKS]:
        table.add_row(
            fallback.name,
            fallback.operator,
            fallback.why or "unknown: neither the file nor the runtime shows it",
        )
    left = 0 if every else len(inspection.fallbacks) - _FALLBACKS
    table.caption = f"and {left} more products: --all" if left > 0 else None
    return table


def _place(operator: Operator) -> _Key:
    return "" if operator.layer is None else str(operator.layer), operator.part


def _type(operator: Operator) -> _Key:
    return operator.type, operator.precision


def _counted(operators: Sequence[Operator]) -> list[str]:
    """`2 Reshape`, `Softmax`."""
    types = [operator.type for operator in operators]
    return [f"{types.count(t)} {t}" if types.count(t) > 1 else t for t in dict.fromkeys(types)]
