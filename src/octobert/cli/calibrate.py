"""`octobert calibrate MODEL`: ranges and quantization errors, for one calibrator or for all of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _recipe, _show

PANEL = _show.MAKE
EXAMPLES = ("octobert calibrate ./my-model --task text-classification --data ./my-data --out out --sweep",)


@_recipe.recipe_options("corrections", "sensitivity", "strict", "measure", "quick", "baselines")
def command(
    model: Annotated[str, typer.Argument(help=_recipe.MODEL_HELP)],
    task: Annotated[str, typer.Option(help=_recipe.TASK_HELP)],
    data: Annotated[list[str], typer.Option(help=_recipe.DATA_HELP)],
    out: Annotated[Path, typer.Option(help="Output directory. Results stored in it are reused.")],
    keys: dict[str, Any],
    changes: list[str],
    sweep: Annotated[bool, typer.Option("--sweep", help="Compare all calibrators on one pass over the data.")] = False,
    samples: Annotated[int, typer.Option(min=1, help="Number of calibration rows.")] = 256,
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for files without a header.")] = None,
    config: _recipe.ConfigOption = None,
    data_revision: _recipe.RevisionOption = None,
    max_length: Annotated[int | None, typer.Option(help="Maximum sequence length of the task, in tokens.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print each value by itself. Default: the median over the layers.")
    ] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Calibrate a model on your data, and measure the error of the calibrator per tensor and end to end."""
    import octobert

    rows: dict[str, Any] = {"samples": samples, "columns": columns, "config": config, "data_revision": data_revision}
    recipe = _recipe.recipe_of(model, task, data, keys, changes, max_length=max_length, **rows)
    with _show.progress_of_run() as progress:
        result = octobert.calibrate(recipe, out, sweep=sweep, progress=progress)
    if as_json:
        _show.document(result.model_dump(mode="json"))
        return
    from octobert.report import plans

    _show.render(*plans.sweep_tables(result, every=every))
    _show.line(f"\nResults    {out / 'sweep.json'}, {out / 'sweep.csv'}")
    chosen = next((swept for swept in result.swept if swept.calibrator == result.recommended), None)
    if sweep and chosen is not None:
        _show.line(f"Recommended: {result.recommended}, {result.reason}.")
        _show.line(f"Use it with: --calibrate {shlex.quote(chosen.setting)}")
