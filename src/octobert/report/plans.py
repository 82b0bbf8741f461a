"""What is inside a model, as tables for a terminal: its plan, sensitivities, sweeps, and what a runtime computed with it.

Layers that are alike are shown once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.text import Text

from octobert.core import wording
from octobert.core.measurements import TimedShape
from octobert.core.plan import Decision, Quantizer, QuantPlan
from octobert.core.profile import Inspection, Operator, Profile, grouped, time_of
from octobert.core.ranges import Sweep
from octobert.core.results import Sensitivity
from octobert.report.tables import ReportTable, table_of

# The number of a layer in the name of a module or value: the first number, but ALBERT's layers are repetitions of one.
_LAYER = re.compile(r"^(.*\.repeat|.*?)\.(\d+)\.(.+)$")
# Values that are listed unless all are asked for.
_SHOWN = 5
_FLOAT = "float ms"
# Types of operators and products that are listed unless all are asked for.
_TYPES, _FALLBACKS = 8, 4
_Key = tuple[str, str]


def plan_table(plan: QuantPlan, *, every: bool = False) -> ReportTable:
    """Return what each layer computes in 8 bits or float, and why.

    Args:
        plan: to show.
        every: show each value of each layer with its range. Otherwise each module is a row, layers with the same decisions are
            shown once, and of further layers only the modules with other decisions.
    """
    title = f"Plan for {plan.target}: method {plan.method}, placement {plan.placement}"
    reasons = {
        reason: str(number)
        for number, reason in enumerate(dict.fromkeys(d.reason for d in plan.decisions), start=1)
    }
    table = _values_table(title, plan, reasons) if every else _modules_table(title, plan, reasons)
    table.caption = "\n".join(f"{number}  {reason}" for reason, number in reasons.items())
    return table


def _values_table(title: str, plan: QuantPlan, reasons: Mapping[str, str]) -> ReportTable:
    """A row for each value of each layer."""
    table = table_of(title, ("module", "role", "precision", "why"), keys=2)
    for layers, decisions in _groups(plan.decisions, every=True):
        if layers:
            stem, _, _ = split_layer(decisions[0].site.module)
            table.add_row(f"{stem}.{layers_text(layers)}", style="bold")
        for decision in decisions:
            site = decision.site
            table.add_row(
                f"  {split_layer(site.module)[2]}" if layers else site.module,
                site.role,
                quantizer_text(decision.quantizer)
                .replace(", axis", ",\naxis")
                .replace(" [", "\n["),
                reasons[decision.reason],
                style="" if decision.quantizer else "dim",
            )
        table.add_section()
    return table


def _modules_table(title: str, plan: QuantPlan, reasons: Mapping[str, str]) -> ReportTable:
    """A row for each module of the layers that are alike."""
    table = table_of(title, ("module", "quantized", "float", "why"))
    groups = _groups(plan.decisions, every=False)
    # Most layers are alike; of the others only what differs is shown.
    usual = max((layers for layers, _ in groups if layers), key=len, default=[])
    usual_rows: set[tuple[str, ...]] = set()
    for layers, decisions in sorted(
        groups, key=lambda group: bool(group[0]) + (group[0] not in ([], usual))
    ):
        modules: dict[str, list[Decision]] = {}
        for decision in decisions:
            modules.setdefault(decision.site.module, []).append(decision)
        rows = [
            _module_row(module_decisions, reasons, inside=bool(layers))
            for module_decisions in modules.values()
        ]
        if layers:
            stem, _, _ = split_layer(decisions[0].site.module)
            others = "" if layers == usual else f" as {layers_text(usual)}, but"
            table.add_row(f"{stem}.{layers_text(layers)}{others}", style="bold")
        for row in rows:
            if row not in usual_rows:
                table.add_row(*row, style="" if row[1] else "dim")
        usual_rows.update(rows if layers == usual else ())
        table.add_section()
    return table


def _module_row(
    decisions: Sequence[Decision], reasons: Mapping[str, str], *, inside: bool
) -> tuple[str, str, str, str]:
    """A module, its values in 8 bits, those in float, and the numbers of the reasons.

    Args:
        decisions: of the module.
        reasons: reason → its number.
        inside: a layer.
    """
    module = decisions[0].site.module
    types: dict[str, list[str]] = {}
    for decision in decisions:
        quantizer, short = decision.quantizer, ""
        if quantizer is not None:
            # `uint8`, `uint8 dynamic`, `int8 (no saturation)`
            short = (
                f"{quantizer.dtype}{quantizer.when}{' (no saturation)' * quantizer.reduce_range}"
            )
        role = decision.site.role
        types.setdefault(short, []).append(role.partition(".")[2] or role)
    floats = types.pop("", [])
    return (
        f"  {split_layer(module)[2]}" if inside else module,
        ", ".join(f"{' '.join(names)} {name}" for name, names in types.items()),
        ", ".join(floats) if types else "all",
        ", ".join(dict.fromkeys(reasons[decision.reason] for decision in decisions)),
    )


def _groups(
    decisions: Sequence[Decision], *, every: bool
) -> list[tuple[list[int], list[Decision]]]:
    """(layers, decisions of the first of them) of layers that are alike; in order, with what is in no layer around them."""
    layers: dict[int | None, list[Decision]] = {}
    for decision in decisions:
        layers.setdefault(decision.site.layer, []).append(decision)
    groups: dict[object, tuple[list[int], list[Decision]]] = {}
    for layer, layer_decisions in layers.items():
        alike: object = layer
        if layer is not None and not every:
            alike = tuple(
                (
                    split_layer(decision.site.module)[2],
                    decision.site.role,
                    quantizer_text(decision.quantizer, with_range=False),
                    decision.reason,
                )
                for decision in layer_decisions
            )
        groups.setdefault(alike, ([], layer_decisions))[0].extend(() if layer is None else (layer,))
    return list(groups.values())


def split_layer(name: str) -> tuple[str, int | None, str]:
    """The parts of a name before and after the number of its layer.

    Example:
        >>> split_layer("encoder.layer.3.output.dense")
        ('encoder.layer', 3, 'output.dense')
        >>> split_layer("embeddings.LayerNorm")
        ('', None, 'embeddings.LayerNorm')
    """
    match = _LAYER.match(name)
    return (match[1], int(match[2]), match[3]) if match else ("", None, name)


def layers_text(layers: Iterable[int]) -> str:
    """Numbers as ranges.

    Example:
        >>> layers_text([0, 1, 2, 5])
        '0–2, 5'
    """
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def expected(results: Mapping[str, Sensitivity]) -> list[str]:
    """Return sentences on how far from float the models of targets are expected to be, and on what stays in float for it.

    Args:
        results: target → of the analysis.
    """
    sentences = [
        f"{target}: the expected error is not known: {result.unknown}."
        for target, result in results.items()
        if result.unknown
    ]
    known = {target: result for target, result in results.items() if not result.unknown}
    if known:
        lefts = [
            f"{100 * (result.together if result.left is None else result.left):.2g} % ({target})"
            for target, result in known.items()
        ]
        sentences.append(
            f"Expected error, before weights are corrected: {', '.join(lefts)} of the variance of the outputs."
        )
    return sentences + [
        f"{target}: {', '.join(result.fallback)} stay in float; in 8 bits the expected error would be "
        f"{100 * result.together:.2g} %."
        for target, result in known.items()
        if result.fallback
    ]


def sensitivity_table(result: Sensitivity, *, every: bool = False) -> ReportTable:
    """Return the values whose quantization changes the outputs most.

    Args:
        result: of the analysis.
        every: all values instead of the first ones.
    """
    title = (
        f"Sensitivity: expected error of the outputs with one value quantized, on {result.rows} rows; of all values together "
        f"{result.together:.2e} of the variance of the outputs"
    )
    table = table_of(title, ("layer", "value", "role"), ("SNR dB", "output error", "share"), keys=3)
    total = sum(value.output_error for value in result.values) or 1.0
    for value in result.values if every else result.values[:_SHOWN]:
        noise = "" if value.signal_to_noise_db is None else f"{value.signal_to_noise_db:.1f}"
        error = value.output_error
        layer = "" if value.layer is None else str(value.layer)
        table.add_row(
            layer,
            split_layer(value.value)[2],
            value.role,
            noise,
            f"{error:.2e}",
            f"{error / total:.1%}",
        )
    left = 0 if every else len(result.values) - _SHOWN
    table.caption = f"and {left} more values: --all" if left > 0 else None
    return table


def sweep_tables(sweep: Sweep, *, every: bool = False) -> tuple[ReportTable, ReportTable]:
    """Return the calibrators end to end, best first, and the signal-to-noise ratio of each value.

    Args:
        sweep: to show.
        every: each value by itself. Otherwise the median over the layers of each kind of value.
    """
    usable = [swept for swept in sweep.swept if swept.problem is None]
    ranked = sorted(usable, key=lambda swept: swept.output_error or 0.0)
    best = {
        value: max(usable, key=lambda s: s.signal_to_noise_db.get(value, -np.inf)).calibrator
        for value in sweep.ranges
    }
    title = (
        f"Calibrators for {sweep.target}, compared with float on {sweep.judged_rows} rows other than the "
        f"{sweep.calibration_rows} calibration rows"
    )
    ends = table_of(title, ("calibrator",), ("agreement", "RMS error", "best for values"))
    for swept in ranked:
        count = sum(name == swept.calibrator for name in best.values())
        ends.add_row(
            swept.calibrator, f"{swept.agreement:.4f}", f"{swept.output_error:.4f}", str(count)
        )
    for swept in sweep.swept:
        if swept.problem is not None:
            ends.add_row(swept.calibrator, swept.problem, style="dim")
    kinds: dict[str, list[str]] = {}
    for value in sweep.ranges:
        kinds.setdefault(value if every else split_layer(value)[2], []).append(value)
    title = f"Signal-to-noise ratio in dB, {'per value' if every else 'median over the layers'}"
    values = table_of(title, ("value",))
    values.elsewhere = "sweep.json"
    # The best calibrators stay where there is little room.
    values.add_column("range of values", 0 if every else len(usable) + 1)
    values.add_numbers({s.calibrator: 0 if every else ranked.index(s) for s in usable})
    for kind, names in kinds.items():
        low = min(sweep.ranges[name][0] for name in names)
        high = max(sweep.ranges[name][1] for name in names)
        ratios = [
            [s.signal_to_noise_db[name] for name in names if name in s.signal_to_noise_db]
            for s in usable
        ]
        medians = [float(np.median(decibels)) if decibels else -np.inf for decibels in ratios]
        cells = [
            Text(f"{median:.1f}", style="bold" if median == max(medians) else "")
            if np.isfinite(median)
            else ""
            for median in medians
        ]
        values.add_row(kind, f"[{low:.3g}, {high:.3g}]", *cells)
    return ends, values


def quantizer_text(quantizer: Quantizer | None, *, with_range: bool = True) -> str:
    """Describe a quantizer in a few words, if wanted with its range.

    Example:
        >>> quantizer_text(Quantizer(dtype="uint8", symmetric=False, low=-0.17, high=4.31))
        'uint8 [-0.17, 4.31]'
        >>> quantizer_text(None)
        'float'
    """
    if quantizer is None:
        return "float"
    text = f"{quantizer.dtype}{' symmetric' * quantizer.symmetric}{quantizer.when}"
    text += " without saturation" * quantizer.reduce_range
    if quantizer.axis is not None:
        text += f", axis {quantizer.axis}"
    if with_range and quantizer.low is not None:
        text += f" [{quantizer.low:.4g}, {quantizer.high:.4g}]"
    return text


def inspection_tables(inspection: Inspection, *, every: bool = False) -> tuple[ReportTable, ...]:
    """Return the time of each part of the model, the time of each type of operator, and the products that ran in float.

    Args:
        inspection: to show.
        every: each layer by itself with its operators, all types of operators and all products. Otherwise parts of the layers
            whose products ran alike are added up, and only the slowest types and the first products are shown.
    """
    shown = (_layer_table(inspection, every=every), _type_table(inspection, every=every))
    return (*shown, _fallback_table(inspection, every=every)) if inspection.fallbacks else shown


def _layer_table(inspection: Inspection, *, every: bool) -> ReportTable:
    shape = TimedShape(inspection.batch, inspection.sequence)
    title = (
        f"{inspection.model} on {inspection.runtime} {inspection.version}, {shape}, "
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


def _type_table(inspection: Inspection, *, every: bool) -> ReportTable:
    """Each type of operator in each precision, the slowest in one of the models first; those that take little time together."""
    table = table_of("Time per operator type", ("operator", "precision"), ("count", "ms", "share"))
    table.add_numbers({"float count": int(not every), _FLOAT: 0})
    quantized = grouped(inspection.profile.operators, _type)
    floats = grouped(inspection.floating.operators if inspection.floating else (), _type)
    slower = {
        key: max(time_of(quantized.get(key, ())), time_of(floats.get(key, ())))
        for key in (*quantized, *floats)
    }
    slowest = sorted(slower, key=lambda key: -slower[key])
    few = slowest if every or len(slowest) <= _TYPES + 1 else slowest[:_TYPES]
    rows = [(key, [key]) for key in few]
    if rest := slowest[len(few) :]:
        rows.append(((f"{len(rest)} others (--all)", ""), rest))
    for names, keys in rows:
        operators = [operator for key in keys for operator in quantized.get(key, ())]
        float_operators = [operator for key in keys for operator in floats.get(key, ())]
        share = f"{inspection.profile.split.share(time_of(operators)):.1%}" if operators else ""
        table.add_row(
            *names,
            *_count_and_time(operators),
            share,
            *_count_and_time(float_operators),
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


def _count_and_time(operators: Sequence[Operator]) -> tuple[str, str]:
    return (str(len(operators)), f"{time_of(operators):.2f}") if operators else ("", "")


def _total(profile: Profile) -> tuple[str, str]:
    return str(len(profile.operators)), f"{profile.split.total_ms:.2f}"


def _fallback_table(inspection: Inspection, *, every: bool) -> ReportTable:
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
