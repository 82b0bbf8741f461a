"""`octobert calibrate MODEL`: ranges and what they lose, for one calibrator or for all of them side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octobert.cli import _show
from octobert.cli.quantize import MODEL_HELP, choice_of, choices_of, data_of, with_option

if TYPE_CHECKING:
    from octobert.core.results import Sweep

NAME = "calibrate"


def command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    task: Annotated[str, typer.Option(help="A task's name, or YAML with its options.")],
    data: Annotated[list[str], typer.Option(help="File, folder, hub id, or SPLIT=FILE; give it several times.")],
    out: Annotated[Path, typer.Option(help="Output directory; what is already in it is reused.")],
    sweep: Annotated[bool, typer.Option("--sweep", help="Compare all calibrators on the same pass over the data.")] = False,
    calibrate: Annotated[str, typer.Option(help="Without --sweep: a calibrator, or YAML with its options.")] = "minmax",
    target: Annotated[str, typer.Option(help="The target whose plan is judged.")] = "ort-cpu",
    method: Annotated[str, typer.Option(help="A quantization method, or YAML with its options.")] = "static",
    prepare: Annotated[list[str] | None, typer.Option(help="Preparers; none for none. Default: smoothquant.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Calibration rows.")] = 256,
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for files without a header.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    seed: Annotated[int, typer.Option(help="For every random choice.")] = 0,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Accept pickle weights, which run code.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Observe the model on your data and show what calibrators make of it, value by value and end to end."""
    from octobert.config import recipe as recipes
    from octobert.pipeline import planner, runner

    raw = {
        "model": model,
        "task": with_option(choice_of(task, "--task"), "max_length", max_length),
        "data": {**data_of(data, samples, allow_leakage=False), "columns": _show.split_names(columns)},
        "calibrate": choice_of(calibrate, "--calibrate"),
        "quantize": choice_of(method, "--method"),
        "targets": [target],
        "seed": seed,
        "allow_pickle": allow_pickle,
    }
    if prepare is not None:
        raw["prepare"] = choices_of(prepare, "--prepare")
    recipe = recipes.parse(raw, where="command line")
    with _show.progress_of_run() as progress:
        found = runner.sweep(recipe, planner.SWEPT if sweep else (recipe.calibrate,), out, progress)
    if as_json:
        _show.document(found.model_dump(mode="json"))
        return
    show(found)


def show(found: Sweep) -> None:
    """Two tables: end to end, and value by value."""
    from octobert.report import terminal

    _show.render(*terminal.sweep_tables(found))
