"""What a runtime made of a model, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table

from octobert.core.profile import Inspection, Operator, Profile

_FLOAT = "float ms"


def tables(found: Inspection) -> tuple[Table, ...]:
    """Layer by layer what ran, by type of operator where the time went, and the products that fell back to float."""
    shown = (_parts(found), _types(found))
    return (*shown, _fallbacks(found)) if found.fallbacks else shown


def _parts(found: Inspection) -> Table:
    """Every part of every layer: the kernels that computed it."""
    title = (
        f"{found.model} on {found.runtime} {found.version}, {found.batch} × {found.sequence}, {found.threads} threads: "
        f"least of {found.profile.runs} profiled runs"
    )
    table = _table(title, ("layer", "part", "what ran", "products"), ("conversions", "ms", _FLOAT))
    ours = _grouped(found.profile.operators, _place)
    theirs = _grouped(found.floating.operators if found.floating else (), _place)
    for place, operators in ours.items():
        products = dict.fromkeys(f"{o.kernel or o.type} {o.precision}" for o in operators if o.kind == "product")
        conversions = sum(one.kind == "conversion" for one in operators)
        table.add_row(
            place[0],
            place[1] or "(unnamed)",
            ", ".join(_counted(operators)),
            ", ".join(products),
            str(conversions or ""),
            f"{_ms(operators):.2f}",
            f"{_ms(theirs[place]):.2f}" if place in theirs else "",
            style="" if any(one.integer for one in operators) else "dim",
        )
    return table


def _types(found: Inspection) -> Table:
    """Every type of operator, in each precision, the most expensive first."""
    table = _table("Where the time goes", ("operator", "precision"), ("count", "ms", "share", "float count", _FLOAT))
    ours = _grouped(found.profile.operators, _typed)
    theirs = _grouped(found.floating.operators if found.floating else (), _typed)
    rows = {key: _ms(ours.get(key, ())) for key in (*ours, *theirs)}
    for key in sorted(rows, key=lambda one: -rows[one]):
        here, there = ours.get(key, []), theirs.get(key, [])
        table.add_row(
            *key,
            str(len(here)) if here else "",
            f"{rows[key]:.2f}" if here else "",
            f"{found.profile.split.share(rows[key]):.1%}" if here else "",
            str(len(there)) if there else "",
            f"{_ms(there):.2f}" if there else "",
            style="bold" if any(one.integer for one in here) else "",
        )
    _total(table, found.profile, found.floating)
    return table


def _total(table: Table, ours: Profile, theirs: Profile | None) -> None:
    table.add_section()
    there = (str(len(theirs.operators)), f"{theirs.split.total_ms:.2f}") if theirs else ("", "")
    table.add_row("all", "", str(len(ours.operators)), f"{ours.split.total_ms:.2f}", "", *there)


def _fallbacks(found: Inspection) -> Table:
    table = _table("8-bit in the file, computed in float", ("product", "operator", "because"), ())
    for one in found.fallbacks:
        table.add_row(one.name, one.operator, one.why or "neither the file nor the runtime shows why")
    return table


def _table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _place(one: Operator) -> tuple[str, str]:
    return "" if one.layer is None else str(one.layer), one.part


def _typed(one: Operator) -> tuple[str, str]:
    return one.type, one.precision


def _grouped(
    operators: Iterable[Operator], key: Callable[[Operator], tuple[str, str]]
) -> dict[tuple[str, str], list[Operator]]:
    found: dict[tuple[str, str], list[Operator]] = {}
    for one in operators:
        found.setdefault(key(one), []).append(one)
    return found


def _counted(operators: Sequence[Operator]) -> list[str]:
    """`2 Reshape`, `Softmax`."""
    types = [one.type for one in operators]
    return [f"{types.count(t)} {t}" if types.count(t) > 1 else t for t in dict.fromkeys(types)]


def _ms(operators: Iterable[Operator]) -> float:
    return sum(one.ms for one in operators)
