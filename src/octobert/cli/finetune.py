"""`octobert finetune MODEL`: train a model for a task, in float, with 8 bits in mind, or one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _show
from octobert.cli.quantize import MODEL_HELP, choice_of, data_of, with_option
from octobert.cli.run import carry_out

NAME = "finetune"


def command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    task: Annotated[str, typer.Option(help="A task's name, or YAML with its options: '{squad: {max_length: 384}}'.")],
    data: Annotated[list[str], typer.Option(help="File, folder, hub id, or SPLIT=FILE; give it several times.")],
    out: Annotated[Path, typer.Option(help="Output directory; the model comes to lie in OUT/checkpoint.")],
    qat: Annotated[bool, typer.Option("--qat", help="Train MODEL, which does the task already, on with 8 bits.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Train in float first, then quantization-aware.")] = False,
    target: Annotated[list[str] | None, typer.Option(help="With 8 bits: a target; several times. Default: ort-cpu.")] = None,
    placement: Annotated[str, typer.Option(help="With 8 bits: what is rounded (octobert placements).")] = "auto",
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows, in float; with --qat in 8 bits.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At its highest, likewise.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a step, of all processes together.")] = 16,
    teacher: Annotated[str | None, typer.Option(help="A checkpoint to follow; self is the float model (8 bits).")] = None,
    processes: Annotated[int, typer.Option(min=1, help="On this machine.")] = 1,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard's event files.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other part of the recipe: qat.ranges=learned; several times.")
    ] = None,
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for files without a header.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    seed: Annotated[int, typer.Option(help="For every random choice.")] = 0,
    allow_leakage: Annotated[bool, typer.Option("--allow-leakage", help="Accept training rows that are evaluated.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Accept pickle weights, which run code.")] = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run what finetune.code or qat.code names.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With 8 bits: print what would run.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Train a model for a task: in float by default; with 8 bits in mind, up to the exported models and their report."""
    from octobert.config import recipe as recipes
    from octobert.core.errors import RecipeError

    if qat and both:
        raise RecipeError("--qat and --both exclude each other", where="command line", fix="--both trains in float first")
    common: dict[str, Any] = {"batch": batch}
    if teacher is not None:
        common["distill"] = {} if teacher == "self" else {"teacher": teacher}
    given = {"epochs": epochs, "learning_rate": learning_rate}
    first = {**common, **{key: value for key, value in given.items() if value is not None}}
    raw: dict[str, Any] = {
        "model": model,
        "task": with_option(choice_of(task, "--task"), "max_length", max_length),
        "data": {**data_of(data, 256, allow_leakage=allow_leakage), "columns": _show.split_names(columns)},
        "training": {"processes": processes, "tensorboard": str(tensorboard) if tensorboard else None},
        "seed": seed,
        "allow_pickle": allow_pickle,
        "allow_code": allow_code,
    }
    if qat:
        raw["qat"] = first
    else:
        raw["finetune"] = {key: value for key, value in first.items() if key != "distill" or teacher != "self"}
        raw |= {"qat": common} if both else {}
    if qat or both:
        raw |= {"quantize": {"static": {"placement": choice_of(placement, "--placement")}}, "targets": target or ["ort-cpu"]}
    recipe = recipes.parse(recipes.changed(raw, settings or ()), where="command line")
    _show.note(recipes.as_yaml(recipe))
    if qat or both:
        carry_out(recipe, out, dry_run=dry_run, as_json=as_json)
        return
    from octobert.pipeline import runner

    with _show.progress_of_run() as progress:
        found = runner.finetune(recipe, out, progress)
    if as_json:
        _show.document(found.model_dump(mode="json"))
        return
    from octobert.report import terminal

    _show.render(terminal.finetuned(found))
    typer.echo(f"\nModel    {out / 'checkpoint'}   next: octobert quantize {out / 'checkpoint'} --task … --data … --out …")
