"""`octobert finetune MODEL`: fine-tune a model in float, quantization-aware, or both."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _recipe, _show
from octobert.cli.run import print_steps, run_recipe

PANEL = _show.MAKE
EXAMPLES = ("octobert finetune ./my-encoder --task text-classification --data ./my-data --epochs 2 --out out",)


@_recipe.recipe_options("transforms", "quantize", "corrections")
def command(
    model: Annotated[str, typer.Argument(help=_recipe.MODEL_HELP)],
    task: Annotated[str, typer.Option(help=_recipe.TASK_HELP)],
    data: Annotated[list[str], typer.Option(help=_recipe.DATA_HELP)],
    out: Annotated[Path, typer.Option(help="Output directory. The trained model is in OUT/checkpoint.")],
    keys: dict[str, Any],
    changes: list[str],
    qat: Annotated[
        bool, typer.Option("--qat", help="Quantization-aware training only. MODEL must already be trained for the task.")
    ] = False,
    both: Annotated[bool, typer.Option("--both", help="Fine-tune in float, then quantization-aware training.")] = False,
    placement: Annotated[
        str, typer.Option(help="Quantization-aware training: which values are quantized (see octobert placements).")
    ] = "auto",
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training rows; with --both, of the training in float.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate; with --both, of the training in float.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size over all processes.")] = 16,
    teacher: Annotated[
        str | None,
        typer.Option(help="Checkpoint to distill from. self: the float model (quantization-aware training, or --layers)."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Encoder layers that are kept: a number of them, evenly chosen, or their indices: [0,2,5]."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Training processes on this machine.")] = 1,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard event files.")] = None,
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for files without a header.")] = None,
    config: _recipe.ConfigOption = None,
    data_revision: _recipe.RevisionOption = None,
    max_length: Annotated[int | None, typer.Option(help="Maximum sequence length of the task, in tokens.")] = None,
    allow_leakage: Annotated[
        bool, typer.Option("--allow-leakage", help="Accept training rows that are also evaluated.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print which steps would run and which would be reused.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Fine-tune a model for a task: in float by default; with --qat or --both up to quantized models and their report."""
    import octobert
    from octobert.config import loading
    from octobert.core.errors import RecipeError

    if qat and both:
        raise RecipeError("--qat and --both exclude each other", where="command line", fix="--both trains in float first")
    if qat and layers is not None:
        fix = "use --both, or no --qat"
        raise RecipeError("--layers belongs to the training in float", where="command line", fix=fix)
    common: dict[str, Any] = {"batch": batch}
    if teacher is not None:
        common["distill"] = {} if teacher == "self" else {"teacher": teacher}
    rates = {"epochs": epochs, "learning_rate": learning_rate}
    first = {**common, **{key: value for key, value in rates.items() if value is not None}}
    keys["training"] = {"processes": processes, "tensorboard": str(tensorboard) if tensorboard else None}
    if qat:
        keys["qat"] = first
    else:
        dropped = {} if layers is None else {"layers": _recipe.yaml_of(layers, "--layers")}
        own_teacher = teacher == "self" and not dropped
        keys["finetune"] = {key: value for key, value in first.items() if key != "distill" or not own_teacher} | dropped
        keys |= {"qat": common} if both else {}
    if qat or both:
        keys["quantize"] = {"static": {"placement": _recipe.yaml_of(placement, "--placement")}}
    rows: dict[str, Any] = {"samples": 256, "columns": columns, "allow_leakage": allow_leakage}
    rows |= {"config": config, "data_revision": data_revision}
    recipe = _recipe.recipe_of(model, task, data, keys, changes, max_length=max_length, **rows)
    _show.note(loading.as_file(recipe))
    if qat or both:
        run_recipe(recipe, out, dry_run=dry_run, as_json=as_json)
        return
    if dry_run:
        print_steps(octobert.dry_run(recipe, out, finetune_only=True), as_json=as_json)
        return
    with _show.progress_of_run() as progress:
        result = octobert.finetune(recipe, out, progress=progress)
    if as_json:
        _show.document(result.model_dump(mode="json"))
        return
    from octobert.report import terminal

    _show.render(terminal.finetuned(result))
    checkpoint = out / "checkpoint"
    sources = [part for each in data for part in ("--data", each)]
    further = ["--task", task, *sources, "--out", str(out.with_name(f"{out.name}-int8"))]
    _show.line(f"\nModel    {checkpoint}\n  next   {shlex.join(['octobert', 'quantize', str(checkpoint), *further])}")
