"""Plans, sensitivities and sweeps as tables for a terminal. Layers that are alike are shown once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from rich.text import Text

from octobert.core.plan import Decision, Quantizer, QuantPlan
from octobert.core.results import Sensitivity
from octobert.core.sweep import Sweep
from octobert.report.tables import FittedTable
from octobert.report.terminal import table_of

# The number of a layer in the name of a module or value: the first number, but ALBERT's layers are repetitions of one.
_LAYER = re.compile(r"^(.*\.repeat|.*?)\.(\d+)\.(.+)$")
# Values that are listed unless all are asked for.
_SHOWN = 20


def plan_table(plan: QuantPlan, *, every: bool = False) -> FittedTable:
    """Return what each layer computes in 8 bits or float, and why.

    Args:
        plan: to show.
        every: show each layer with its ranges. Otherwise layers with the same decisions are shown once, without ranges.
    """
    title = f"Plan for {plan.target}: method {plan.method}, placement {plan.placement}"
    table = table_of(title, ("module", "role", "precision", "why"), keys=2)
    reasons = {reason: str(number) for number, reason in enumerate(dict.fromkeys(d.reason for d in plan.decisions), start=1)}
    for layers, decisions in _groups(plan.decisions, every=every):
        if layers:
            stem, _, _ = split_layer(decisions[0].site.module)
            table.add_row(f"{stem}.{layers_text(layers)}", style="bold")
        for decision in decisions:
            site = decision.site
            table.add_row(
                f"  {split_layer(site.module)[2]}" if layers else site.module,
                site.role,
                quantizer_text(decision.quantizer, with_range=every).replace(", axis", ",\naxis").replace(" [", "\n["),
                reasons[decision.reason],
                style="" if decision.quantizer else "dim",
            )
        table.add_section()
    table.caption = "\n".join(f"{number}  {reason}" for reason, number in reasons.items())
    return table


def _groups(decisions: Sequence[Decision], *, every: bool) -> list[tuple[list[int], list[Decision]]]:
    """(layers, decisions of the first of them) of layers that are alike; in order, with what is in no layer around them."""
    layers: dict[int | None, list[Decision]] = {}
    for decision in decisions:
        layers.setdefault(decision.site.layer, []).append(decision)
    groups: dict[object, tuple[list[int], list[Decision]]] = {}
    for layer, own in layers.items():
        alike = layer if every or layer is None else tuple(_without_range(decision) for decision in own)
        groups.setdefault(alike, ([], own))[0].extend(() if layer is None else (layer,))
    return list(groups.values())


def _without_range(decision: Decision) -> tuple[str, ...]:
    site = decision.site
    return split_layer(site.module)[2], site.role, quantizer_text(decision.quantizer, with_range=False), decision.reason


def split_layer(name: str) -> tuple[str, int | None, str]:
    """The parts of a name before and after the number of its layer.

    Example:
        >>> split_layer("encoder.layer.3.output.dense")
        ('encoder.layer', 3, 'output.dense')
        >>> split_layer("embeddings.LayerNorm")
        ('', None, 'embeddings.LayerNorm')
    """
    found = _LAYER.match(name)
    return (found[1], int(found[2]), found[3]) if found else ("", None, name)


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


def sensitivity_table(result: Sensitivity, *, every: bool = False) -> FittedTable:
    """Return the values whose quantization changes the outputs most.

    Args:
        result: of the analysis.
        every: all values instead of the first twenty.
    """
    title = (
        f"Sensitivity: error of the outputs with one value quantized, on {result.rows} rows; with all values quantized "
        f"{result.together:.2e} of the variance of the outputs"
    )
    table = table_of(title, ("layer", "value", "role"), ("SNR dB", "output error", "share"), keys=3)
    total = sum(value.output_error for value in result.values) or 1.0
    for value in result.values if every else result.values[:_SHOWN]:
        noise = "" if value.signal_to_noise_db is None else f"{value.signal_to_noise_db:.1f}"
        error = value.output_error
        layer = "" if value.layer is None else str(value.layer)
        table.add_row(layer, split_layer(value.value)[2], value.role, noise, f"{error:.2e}", f"{error / total:.1%}")
    return table


def sweep_tables(sweep: Sweep, *, every: bool = False) -> tuple[FittedTable, FittedTable]:
    """Return the calibrators end to end, best first, and the signal-to-noise ratio of each value.

    Args:
        sweep: to show.
        every: each value by itself. Otherwise the median over the layers of each kind of value.
    """
    usable = [swept for swept in sweep.swept if swept.problem is None]
    best = {value: max(usable, key=lambda s: s.signal_to_noise_db.get(value, -np.inf)).calibrator for value in sweep.ranges}
    title = (
        f"Calibrators for {sweep.target}, on {sweep.judged_rows} rows other than the {sweep.calibration_rows} calibration rows"
    )
    ends = table_of(title, ("calibrator",), ("agreement with float", "output error (RMS)", "best for values"))
    for swept in sorted(usable, key=lambda s: s.output_error or 0.0):
        count = sum(name == swept.calibrator for name in best.values())
        ends.add_row(swept.calibrator, f"{swept.agreement:.4f}", f"{swept.output_error:.4f}", str(count))
    for swept in sweep.swept:
        if swept.problem is not None:
            ends.add_row(swept.calibrator, swept.problem, style="dim")
    kinds: dict[str, list[str]] = {}
    for value in sweep.ranges:
        kinds.setdefault(value if every else split_layer(value)[2], []).append(value)
    title = f"Signal-to-noise ratio in dB, {'per value' if every else 'median over the layers'}"
    values = table_of(title, ("value", "range of values"), [swept.calibrator for swept in usable])
    for kind, names in kinds.items():
        low, high = min(sweep.ranges[name][0] for name in names), max(sweep.ranges[name][1] for name in names)
        ratios = [[s.signal_to_noise_db[name] for name in names if name in s.signal_to_noise_db] for s in usable]
        medians = [float(np.median(own)) if own else -np.inf for own in ratios]
        cells = [
            Text(f"{median:.1f}", style="bold" if median == max(medians) else "") if np.isfinite(median) else ""
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
    text = quantizer.dtype + (" symmetric" if quantizer.symmetric else "") + (" dynamic" if quantizer.dynamic else "")
    text += " reduced to 7 bits" if quantizer.reduce_range else ""
    if quantizer.axis is not None:
        text += f", axis {quantizer.axis}"
    if with_range and quantizer.low is not None:
        text += f" [{quantizer.low:.4g}, {quantizer.high:.4g}]"
    return text
