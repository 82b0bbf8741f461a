"""Models with fewer heads and neurons as files of a target, for timing: any ranges do, as times do not depend on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert import targets
from octobert.config.recipe import Choice
from octobert.core.pruning import Sublayer
from octobert.core.ranges import Interval, Provenance, Ranges
from octobert.core.session import Session, SessionEntries, SessionOptions
from octobert.evaluation.level_times import Cut
from octobert.graph import cutting, operators, sites
from octobert.pipeline.contract import StepResult
from octobert.pipeline.stages import _artifacts, _plans, export

# Neurons are removed in multiples of this: the tiles of 8-bit kernels have 16 rows or columns of 64 bytes.
TILE = 64
_RANGE = 4.0


def levels_of(sublayer: Sublayer) -> list[int]:
    """The levels of a sublayer, ascending: every number of heads, or every multiple of 64 neurons, from none to all.

    Example:
        >>> levels_of(Sublayer(layer=0, kind="ffn", module="m", units=150, width=1))
        [0, 64, 128, 150]
    """
    return [*range(0, sublayer.units, TILE if sublayer.kind == "ffn" else 1), sublayer.units]


def is_last(sublayer: Sublayer, sublayers: Sequence[Sublayer]) -> bool:
    """Whether a sublayer is in the last layer."""
    return sublayer.layer == max(each.layer for each in sublayers)


def units_of(cut: Cut | None, sublayers: Sequence[Sublayer]) -> dict[str, int]:
    """Module → its units in a model of which levels are timed, for the sublayers that it cuts."""
    if cut is None:
        return {}
    own = [each for each in sublayers if each.kind == cut.kind and each.units > cut.units]
    return {each.module: cut.units for each in [s for s in own if is_last(s, sublayers) == cut.last] or own}


def opened(
    capture: StepResult,
    units: Mapping[str, int],
    folder: Path,
    method: Choice,
    form: export.Options,
    *,
    entries: SessionEntries,
    threads: int,
) -> Session:
    """Write a model in the form of a target, and open it.

    Args:
        units: module → the heads or neurons that are left, for sublayers that are cut.
        folder: to write into.
        method: of quantization.
        form: what the target's files are like.
        entries: what the recipe sets for sessions of the target.
        threads: of one inference; 0 lets the runtime choose.
    """
    family = _artifacts.family_of(capture)
    folder.mkdir(exist_ok=True)
    model = ir.load(capture.path(_artifacts.FLOAT))
    if units:
        cutting.cut_(model, family, {module: np.arange(left) for module, left in units.items()})
        cutting.fold_(model)
    graph, quantized = folder / "cut.onnx", folder / _artifacts.QUANTIZED
    operators.save(model, graph)
    values = {site.value for site in sites.find_sites(model.graph, family) if not site.is_weight}
    plan = _plans.plan_of(capture, graph, _any_ranges(values), form.target, method)
    _plans.write_quantized(graph, plan, {}, quantized)
    export.write(plan, quantized, form, folder)
    target = targets.load(form.target)
    return target.open_session(target.model_file(folder), SessionOptions(threads=threads, entries=entries))


def _any_ranges(values: set[str]) -> Ranges:
    """The same range for every value."""
    interval = Interval(low=-_RANGE, high=_RANGE, bound=_RANGE)
    nothing = Provenance(samples=0, tokens=0, data_digest="", model_digest="", source="")
    return Ranges(calibrator="minmax", options={}, intervals=dict.fromkeys(sorted(values), interval), provenance=nothing)
