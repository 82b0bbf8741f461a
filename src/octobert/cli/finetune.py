"""`octobert finetune MODEL`: fine-tune a model in float, quantization-aware, or both."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import octobert
from octobert.api._arguments import Positive
from octobert.cli import _options, _recipe, _show
from octobert.cli.run import print_steps, run_recipe
from octobert.core.errors import RecipeError

PANEL = _show.MAKE
EXAMPLES = (
    "octobert finetune ./my-encoder --task text-classification --data ./my-data --epochs 2 --out out",
)


@_recipe.recipe_options("transforms", "quantize", "corrections", "samples")
def command(
    rows: _options.Arguments,
    keys: _options.Arguments,
    *,
    out: Path,
    qat: bool = False,
    both: bool = False,
    placement: str = "auto",
    epochs: float | None = None,
    learning_rate: float | None = None,
    batch: Positive = 16,
    teacher: str | None = None,
    layers: str | None = None,
    processes: Positive = 1,
    tensorboard: Path | None = None,
    dry_run: bool = False,
) -> Iterator[Any]:
    """Fine-tune a model for a task: in float by default; with --qat or --both up to quantized models and their report.

    Args:
        out: Output directory. The trained model is in OUT/checkpoint.
        qat: Quantization-aware training only. MODEL must already be trained for the task.
        both: Fine-tune in float, then quantization-aware training.
        placement: Quantization-aware training: which values are quantized (see octobert placements).
        epochs: Passes over the training rows; with --both, of the training in float.
        learning_rate: Peak learning rate; with --both, of the training in float.
        batch: Batch size over all processes.
        teacher: Checkpoint to distill from. self: the float model (quantization-aware training, or --layers).
        layers: Encoder layers that are kept: a number of them, evenly chosen, or their indices: [0,2,5].
        processes: Training processes on this machine.
        tensorboard: Folder for TensorBoard event files.
        dry_run: Read the rows, and print which steps would run and which would be reused.
    """
    if qat and both:
        raise RecipeError(
            "--qat and --both exclude each other",
            where="command line",
            fix="--both trains in float first",
        )
    if qat and layers is not None:
        raise RecipeError(
            "--layers belongs to the training in float",
            where="command line",
            fix="use --both, or no --qat",
        )
    distill = None if teacher is None else {} if teacher == "self" else {"teacher": teacher}
    first = {
        "batch": batch,
        # A whole model does not learn from itself.
        "distill": distill if distill or qat or layers is not None else None,
        "epochs": epochs,
        "learning_rate": learning_rate,
        "layers": None if layers is None else _options.yaml_of(layers, "--layers"),
    }
    keys["qat" if qat else "finetune"] = {k: v for k, v in first.items() if v is not None}
    if both:
        keys["qat"] = {"batch": batch, "distill": distill}
    keys["training"] = {
        "processes": processes,
        "tensorboard": tensorboard and str(tensorboard),
    }
    if qat or both:
        keys["quantize"] = {"static": {"placement": _options.yaml_of(placement, "--placement")}}
    recipe = _recipe.recipe_of(**rows, keys=keys)
    _recipe.tell(recipe)
    if qat or both:
        yield from run_recipe(recipe, out, dry_run=dry_run)
        return
    if dry_run:
        yield from print_steps(octobert.dry_run(recipe, out, finetune_only=True))
        return
    with _show.progress_of_run() as progress:
        result = octobert.finetune(recipe, out, progress=progress)
    yield result
    from octobert.report import terminal

    _show.render(terminal.finetuned(result))
    checkpoint = out / "checkpoint"
    same = ("task", "data", "text_column", "label_column", "columns", "config", "data_revision")
    further = []
    for name in same:
        values = rows.get(name, [])
        for value in values if isinstance(values, list) else [values]:
            further += [_options.option_of(name), value]
    further += ["--out", str(out.with_name(f"{out.name}-int8"))]
    _show.line(
        f"\nModel    {checkpoint}\n  next   {shlex.join(['octobert', 'quantize', str(checkpoint), *further])}"
    )
