"""`octobert auto MODEL`: the fastest model on this machine that still does the task. `--again`, `--merge`: other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _recipe, _show
from octobert.cli.run import print_report, run_recipe

PANEL = _show.MAKE
EXAMPLES = (
    "octobert auto ./my-model --task text-classification --data ./my-data --out out",
    "octobert auto ./my-model --task text-classification --data ./my-data --latency 20ms@p90 --minutes 60 --out out",
    "octobert auto out --again",
    "octobert auto --merge out other-machine/out --out everywhere",
)
_MINUTES = 20
_LIMITS, _GOALS, _OTHERS = "Limits", "Goals", "Other machines"


# Models are always measured, and settings of the runtime are part of the search.
@_recipe.recipe_options("measure", "tune")
def command(
    given: Annotated[list[str], typer.Argument(metavar="MODEL", help=f"A model: {_recipe.MODEL_HELP} With --again OUT.")],
    keys: dict[str, Any],
    changes: list[str],
    task: Annotated[str | None, typer.Option(help=_recipe.TASK_HELP)] = None,
    data: Annotated[list[str] | None, typer.Option(help=_recipe.DATA_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help="Output directory. The same command resumes in it.")] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest accepted drop of the main metric. Default: 0.01, unless --at-least is given.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="--max-drop is a fraction of the float model's metric.", rich_help_panel=_LIMITS)
    ] = False,
    at_least: Annotated[
        float | None, typer.Option(help="Smallest accepted value of the main metric.", rich_help_panel=_LIMITS)
    ] = None,
    min_speedup: Annotated[
        float | None, typer.Option(min=0, help="Smallest accepted speedup over the float model.", rich_help_panel=_LIMITS)
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            help="A percentile to optimize, p90, or a limit, 20ms or 20ms@p90. Default goal: the latency of each text.",
            rich_help_panel=_GOALS,
        ),
    ] = None,
    throughput: Annotated[bool, typer.Option("--throughput", help="Optimize the throughput.", rich_help_panel=_GOALS)] = False,
    size: Annotated[bool, typer.Option("--size", help="Optimize the size of the files.", rich_help_panel=_GOALS)] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Optimize the memory.", rich_help_panel=_GOALS)] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help=f"Time limit of the search; the final measurement comes on top. Default: {_MINUTES}."),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of calibration rows. Default: 256.")] = None,
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for files without a header.")] = None,
    config: _recipe.ConfigOption = None,
    data_revision: _recipe.RevisionOption = None,
    max_length: Annotated[int | None, typer.Option(help="Maximum sequence length of the task, in tokens.")] = None,
    allow_leakage: Annotated[
        bool, typer.Option("--allow-leakage", help="Accept calibration rows that are also evaluated.")
    ] = False,
    save_recipe: Annotated[Path | None, typer.Option(help="Also write the recipe to this file.")] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Choose again in an output directory, on another machine or with other runtimes. What does not depend on the "
            "machine is used again.",
            rich_help_panel=_OTHERS,
        ),
    ] = False,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Write one folder, --out, with models that were chosen on several machines. It opens the right one on each.",
            rich_help_panel=_OTHERS,
        ),
    ] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Find the fastest model on this machine that still does the task, measured on your data."""
    from octobert.api import choosing

    goals: dict[str, Any] = {"latency": latency, "throughput": throughput, "size": size, "memory": memory, "minutes": minutes}
    limits: dict[str, Any] = {"max_drop": max_drop, "relative": relative, "at_least": at_least, "min_speedup": min_speedup}
    rows: dict[str, Any] = {"samples": samples, "columns": columns, "config": config, "data_revision": data_revision}
    rows |= {"max_length": max_length, "allow_leakage": allow_leakage}
    others = {"task": task, "data": data, "save_recipe": save_recipe, **rows, **goals, **limits}
    if merge:
        _refuse("--merge", {"again": again, **others, **keys, "set": changes})
        _merge(given, out, as_json=as_json)
    elif again:
        _refuse("--again", {"out": out, **others})
        _again(given, keys, changes, as_json=as_json)
    else:
        if len(given) != 1 or not task or not data or out is None:
            _missing(given, {"--task": task, "--data": data, "--out": out})
        keys["choose"] = choosing.settings(**goals, **limits)
        recipe = _recipe.recipe_of(given[0], str(task), list(data or ()), keys, changes, **rows)
        _recipe.tell(recipe, save_recipe)
        run_recipe(recipe, Path(str(out)), dry_run=False, as_json=as_json)


def _missing(given: Sequence[str], options: Mapping[str, Any]) -> None:
    """Say what a choice needs.

    Raises:
        RecipeError: always.
    """
    from octobert.core.errors import RecipeError

    if len(given) > 1:
        fix = "give one model; --merge takes several output directories"
        raise RecipeError("a model is chosen for one model at a time", got=" ".join(given), fix=fix)
    missing = [name for name, value in options.items() if not value]
    example = EXAMPLES[0]
    raise RecipeError(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing", fix=f"for example: {example}")


def _refuse(mode: str, options: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing to `--again` or `--merge`.

    Raises:
        RecipeError: with their names.
    """
    from octobert.core.errors import RecipeError

    extra = [f"--{name.replace('_', '-')}" for name, value in options.items() if value or (value == 0 and value is not False)]
    if extra:
        change = "it runs the recipe of the first choice; change that with --set, such as --set choose.minutes=60"
        fix = change if mode == "--again" else "it takes output directories and --out only"
        raise RecipeError(f"{mode} does not take {', '.join(extra)}", fix=fix)


def _again(given: Sequence[str], keys: Mapping[str, Any], changes: Sequence[str], *, as_json: bool) -> None:
    """Choose again."""
    import octobert
    from octobert.core.errors import RecipeError

    if len(given) != 1:
        raise RecipeError("--again takes one output directory", got=" ".join(given), fix="octobert auto OUT --again")
    with _show.progress_of_run() as progress:
        report = octobert.auto_again(given[0], changes=changes, progress=progress, **keys)
    print_report(report, Path(given[0]), as_json=as_json)


def _merge(given: Sequence[str], out: Path | None, *, as_json: bool) -> None:
    """Merge, and print which package is for which machine."""
    import octobert
    from octobert.core.errors import RecipeError

    if out is None:
        raise RecipeError("--out is missing", fix=f"for example: {EXAMPLES[-1]}")
    index = octobert.merge(given, out)
    if as_json:
        _show.document(index.model_dump(mode="json"))
        return
    for each in index.packages:
        _show.line(f"{out / each.folder}   {' '.join(each.features) or each.cpu}")
        _show.line(f"   {each.sentence}")
    _show.line(f"\nModel    {out}   opens the right package on each of these kinds of machines")
