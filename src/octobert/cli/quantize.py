"""`octobert quantize MODEL`: the one-liner; it builds a recipe, prints it and runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _show
from octobert.cli.run import carry_out

NAME = "quantize"
MODEL_HELP = "Hub id, folder, package:NAME/PATH, or an .onnx file beside its tokenizer."


def command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    task: Annotated[str, typer.Option(help="A task's name, or YAML with its options: '{embedding: {text: body}}'.")],
    data: Annotated[list[str], typer.Option(help="File, folder, hub id, or SPLIT=FILE; give it several times.")],
    out: Annotated[Path, typer.Option(help="Output directory.")],
    target: Annotated[list[str] | None, typer.Option(help="A target; give it several times. Default: ort-cpu.")] = None,
    calibrate: Annotated[str, typer.Option(help="A calibrator, or YAML with its options.")] = "minmax",
    method: Annotated[str, typer.Option(help="A quantization method, or YAML with its options.")] = "static",
    prepare: Annotated[list[str] | None, typer.Option(help="Preparers; none for none. Default: smoothquant.")] = None,
    refine: Annotated[list[str] | None, typer.Option(help="Refiners; none for none. Default: bias-correction.")] = None,
    max_drop: Annotated[float | None, typer.Option(help="Search for the fastest plan that loses at most this.")] = None,
    minutes: Annotated[float, typer.Option(help="Time for that search.")] = 10,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Measure what every quantized value costs.")] = False,
    samples: Annotated[int, typer.Option(min=1, help="Calibration rows.")] = 256,
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for files without a header.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a row.")] = None,
    shape: Annotated[str | None, typer.Option(help="BATCHxTOKENS of models for targets that want it fixed.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Mend a plan that breaks rules of its target.")] = False,
    seed: Annotated[int, typer.Option(help="For every random choice.")] = 0,
    allow_leakage: Annotated[bool, typer.Option("--allow-leakage", help="Accept calibration rows that are evaluated.")] = False,
    allow_pickle: Annotated[bool, typer.Option("--allow-pickle", help="Accept pickle weights, which run code.")] = False,
    save_recipe: Annotated[Path | None, typer.Option(help="Also write the recipe to this file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be reused and what would run.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Quantize a model for one or more targets, and compare it with the float model on your data."""
    from octobert.config import recipe as recipes
    from octobert.core.files import storage_errors

    raw: dict[str, Any] = {
        "model": model,
        "task": with_option(choice_of(task, "--task"), "max_length", max_length),
        "data": {**data_of(data, samples, allow_leakage=allow_leakage), "columns": _show.split_names(columns)},
        "calibrate": choice_of(calibrate, "--calibrate"),
        "quantize": choice_of(method, "--method"),
        "sensitivity": sensitivity,
        "targets": target or ["ort-cpu"],
        "seed": seed,
        "allow_pickle": allow_pickle,
    }
    if repair:
        raw["strict"] = False
    if shape is not None:
        raw["shape"] = shape_of(shape)
    if refine is not None:
        raw["refine"] = choices_of(refine, "--refine")
    if prepare is not None:
        raw["prepare"] = choices_of(prepare, "--prepare")
    if max_drop is not None:
        raw["accuracy"] = {"max_drop": max_drop, "minutes": minutes}
    recipe = recipes.parse(raw, where="command line")
    text = recipes.as_yaml(recipe)
    _show.note(text)
    if save_recipe:
        with storage_errors(save_recipe):
            save_recipe.parent.mkdir(parents=True, exist_ok=True)
            save_recipe.write_text(recipes.as_yaml(recipes.with_absolute_paths(recipe)), encoding="utf-8")
    carry_out(recipe, out, dry_run=dry_run, as_json=as_json)


def choice_of(text: str, option: str) -> Any:
    """A name, or YAML flow with options."""
    import yaml

    from octobert.core.errors import RecipeError

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{option} is not a name or YAML", got=" ".join(str(error).split())[:200]) from error


def choices_of(texts: list[str], option: str) -> list[Any]:
    """Several of them; `none` is none."""
    return [choice_of(one, option) for one in texts if one != "none"]


def with_option(choice: Any, name: str, value: Any) -> Any:
    if value is None:
        return choice
    if isinstance(choice, str):
        return {choice: {name: value}}
    if isinstance(choice, dict) and len(choice) == 1:
        plugin, options = next(iter(choice.items()))
        if options is None or isinstance(options, dict):
            return {plugin: {**(options or {}), name: value}}
    return choice


def shape_of(text: str) -> dict[str, int]:
    """`8x128` as batch and sequence."""
    from octobert.core.errors import RecipeError

    batch, _, sequence = text.partition("x")
    if not (batch.isdecimal() and sequence.isdecimal()):
        raise RecipeError("--shape is not BATCHxTOKENS", got=text, expected="such as 1x128")
    return {"batch": int(batch), "sequence": int(sequence)}


def data_of(given: list[str], samples: int, *, allow_leakage: bool) -> dict[str, Any]:
    """Rows given as one source, or split by split."""
    from octobert.config.recipe import SPLITS
    from octobert.core.errors import RecipeError, did_you_mean

    found: dict[str, Any] = {"calibrate": {"from": "train", "samples": samples}, "allow_leakage": allow_leakage}
    for one in given:
        split, equals, path = one.partition("=")
        named = bool(equals) and not Path(one).exists()
        key, place = (split, path) if named else ("source", one)
        if key not in ("source", *SPLITS):
            raise RecipeError(f'--data names no split "{key}"', got=one, fix=did_you_mean(key, SPLITS))
        if key in found:
            raise RecipeError(
                "--data gives two places for the same rows", got=f"{found[key]} and {place}", fix="name their splits"
            )
        found[key] = place
    return found
