"""`octobert calibrate MODEL`: ranges and quantization errors, for one calibrator or for all of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import octobert
from octobert.cli import _options, _recipe, _show

PANEL = _show.MAKE
EXAMPLES = (
    "octobert calibrate ./my-model --task text-classification --data ./my-data --out out --sweep",
)


@_recipe.recipe_options(
    "corrections", "sensitivity", "repair", "measure", "quick", "baselines", "allow_leakage"
)
def command(
    rows: _options.Arguments,
    keys: _options.Arguments,
    *,
    out: Path,
    sweep: bool = False,
    every: bool = False,
) -> Iterator[Any]:
    """Calibrate a model on your data, and measure the error of the calibrator per tensor and end to end.

    Args:
        out: Output directory. Results stored in it are reused.
        sweep: Compare all calibrators on one pass over the data.
        every: Print each value by itself. Default: the median over the layers.
    """
    recipe = _recipe.recipe_of(**rows, keys=keys)
    with _show.progress_of_run() as progress:
        result = octobert.calibrate(recipe, out, sweep=sweep, progress=progress)
    yield result
    from octobert.report import plans

    _show.render(*plans.sweep_tables(result, every=every))
    _show.line(f"\nResults    {out / 'sweep.json'}, {out / 'sweep.csv'}")
    chosen = next((swept for swept in result.swept if swept.calibrator == result.recommended), None)
    if sweep and chosen is not None:
        _show.line(f"Recommended: {result.recommended}, {result.reason}.")
        _show.line(f"Use it with: --calibrate {shlex.quote(chosen.setting)}")
