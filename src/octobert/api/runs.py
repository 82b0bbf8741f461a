"""Recipes and runs: read a recipe, run it, and remove what earlier runs stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from octobert.api._arguments import (
    DataLike,
    PathLike,
    TaskLike,
    names_of,
    path_of,
    raw_recipe,
    shown,
)
from octobert.core import environment
from octobert.core.files import atomic_write, storage_errors
from octobert.core.progress import ProgressCallback, ProgressEvent

if TYPE_CHECKING:
    from octobert.config.importers import Imported
    from octobert.config.recipe import Recipe, RecipeKeys
    from octobert.core.environment import Setup
    from octobert.core.ranges import Sweep
    from octobert.core.results import Finetuned, PlannedStep, Report

RecipeLike: TypeAlias = "str | Path | Mapping[str, Any] | Recipe"


def load_recipe(path: RecipeLike, changes: str | Sequence[str] = ()) -> Recipe:
    """Read a recipe file, or a config of another tool (see `import_config`).

    Args:
        path: The YAML or JSON file. A mapping and a `Recipe` are taken as they are (see `parse_recipe`).
        changes: Keys to change, as `path=value` with a value in YAML: `benchmark.batch=[1, 8]`.

    Raises:
        RecipeError: The file is missing or not a valid recipe. The message lists every mistake.
    """
    return parse_recipe(path, changes=changes)


def import_config(config: PathLike | Mapping[str, Any], *, as_octobert: bool = False) -> Imported:
    """Make a recipe from a config of another tool, such as Olive. `run` and `load_recipe` take such a config, too.

    Args:
        config: The JSON or YAML file, or its content as a mapping. User scripts of the config are read, and never run.
        as_octobert: Keep model, data, targets and goals, and quantize as octobert does by default. Otherwise the recipe does
            what the config does, defaults of its tools included.

    Returns:
        The recipe, and for each field of the config what became of it: mapped, not needed, or refused.

    Raises:
        RecipeError: No importer knows the config, or it asks for what would change the result and octobert cannot do.
    """
    from octobert.config import importers

    if isinstance(config, Mapping):
        return importers.convert(config, as_octobert=as_octobert)
    return importers.read(path_of(config, "config"), as_octobert=as_octobert)


def refused_fields(path: RecipeLike) -> list[str]:
    """Return what octobert does not do of a config of another tool, one sentence for each field; nothing for recipes."""
    from octobert.config import importers

    imported = importers.read_if_known(Path(path)) if isinstance(path, str | Path) else None
    outcomes = () if imported is None else imported.outcomes
    return [outcome.sentence() for outcome in outcomes if outcome.verdict == "refused"]


def parse_recipe(
    recipe: RecipeLike, *, where: str = "recipe", changes: str | Sequence[str] = ()
) -> Recipe:
    """Check a recipe given as plain data, as a file, or as a `Recipe`.

    Args:
        recipe: The recipe. Relative paths in a mapping stay unchanged.
        where: Name of the recipe in error messages.
        changes: Keys to change (see `load_recipe`).

    Raises:
        RecipeError: The recipe is not valid. The message lists every mistake.

    Example:
        >>> parse_recipe({"model": "bert-base-uncased", "task": "mrpc", "data": "glue"}).targets
        ('ort-cpu',)
    """
    from octobert.config import loading
    from octobert.config.recipe import Recipe

    changes = names_of(changes, "changes")
    if isinstance(recipe, Recipe):
        # What depends on the method and the targets is filled in, where it was not.
        recipe = recipe.model_dump(by_alias=True, exclude_unset=True)
    if isinstance(recipe, Mapping):
        return loading.parse(loading.changed(recipe, changes), where=where)
    from octobert.config import importers

    file = path_of(recipe, "recipe")
    imported = importers.read_if_known(file)
    if imported is None:
        return loading.load(file, changes)
    return loading.of_file(imported.recipe, changes, file)


def run(recipe: RecipeLike, out: PathLike, *, progress: ProgressCallback | None = None) -> Report:
    """Run a recipe: capture, calibrate, quantize, evaluate, benchmark, package, report.

    Args:
        recipe: The recipe.
        out: Output directory, for the report, one package per target (with `choose` or `search`, one package `best`), and
            stored results. Stored results are reused, so the same call resumes an interrupted run.
        progress: Called at each step.

    Returns:
        Every decision and every measurement of the run.

    Raises:
        OctobertError: A step failed. The same call resumes after the cause is fixed.
    """
    environment.require("quantize")
    from octobert.engine import executors
    from octobert.pipeline import preflight, runner
    from octobert.report.page import show_reports

    show_reports()
    checked = parse_recipe(recipe)
    folder = path_of(out, "out")
    with shown(progress) as tell, executors.opened(checked.executor) as executor:
        if isinstance(executor, executors.ConcurrentExecutor) and executor.note:
            tell(ProgressEvent(checked.executor, "note", executor.note))
        # A search tries only what can run here.
        if checked.searches is None:
            for target, why in preflight.absent_targets(checked).items():
                text = f"{target} is written, but cannot run here: {why}"
                tell(ProgressEvent(target, "note", text))
        return runner.run(checked, folder, tell, executor)


def check_criteria(report: Report) -> None:
    """Check that a finished run meets the criteria of its recipe. The command line ends with exit code 9 where it does not.

    Args:
        report: Of `run`.

    Raises:
        OctobertError: No model that was tried keeps all limits, or a target misses the accuracy or the speed, or does not
            clearly reach it. Its `exit_code` is 9.
    """
    from octobert.core.errors import AccuracyError, LimitError, SpeedError
    from octobert.report import judged, summary
    from octobert.report.words import criterion, words_of

    words, rows = words_of(report), report.data.evaluation_rows
    if report.choice is not None and not report.choice.met:
        best = report.choice.best
        raise LimitError(
            "no model keeps all limits; the nearest is packaged",
            where=best.variant.name,
            got=best.reason.removesuffix("."),
            expected=", ".join(map(words.limit, report.choice.limits)),
            fix="allow more, give the search more minutes, or vary more keys",
        )
    for target, search in report.searches.items():
        if not search.met:
            raise AccuracyError(
                f"the best plan misses the accuracy criterion: {search.ended}",
                where=target,
                got=f"{search.metric} {search.taken.value:.4f}, a drop of {search.taken.drop:.4f} on {search.taken.rows} rows",
                expected=criterion(search),
                fix="allow a larger drop or more minutes, or keep more layers in float",
            )
    # Without a criterion of its own, a run is judged in the report only.
    for target, checks in judged.checked(report).items():
        missed = [check for check in checks if check.state == "missed" and not check.shape]
        if missed:
            raise AccuracyError(
                "a limit that the search kept is missed in the final measurement: "
                + "; ".join(words.limit(check.limit) for check in missed),
                where=target,
                got="; ".join(words.reason(check, rows) for check in missed),
                fix="give more tuning rows (data.tune), allow more, or look at the rows that changed in the report",
            )
        for check in checks:
            if check.shape and check.state != "kept":
                # The sentence names the target, the goal, and the shape that decides.
                fix = (
                    "set a lower goal"
                    if check.is_clear
                    else "compare on an idle machine, or with more benchmark.repeats"
                )
                raise SpeedError(
                    summary.goal_text(report, target, check).removesuffix("."),
                    fix=f"{fix}; octobert inspect {target} --runtime says where the time goes",
                )


def dry_run(recipe: RecipeLike, out: PathLike, *, finetune_only: bool = False) -> list[PlannedStep]:
    """Return the steps of `run`, and whether `run` would reuse the stored result of each. It reads and checks only the rows.

    Args:
        finetune_only: The steps of `finetune` instead.

    Raises:
        OctobertError: The recipe cannot run here, the rows cannot be used, or the run would change files that it reads.
    """
    environment.require("quantize")
    from octobert.pipeline import planner, runner

    more = (planner.finetune_steps,) if finetune_only else ()
    return runner.dry_run(parse_recipe(recipe), path_of(out, "out"), *more)


def setup(
    recipe: RecipeLike, *, install: bool = False, tell: Callable[[str], None] = lambda line: None
) -> Setup:
    """Return what a recipe needs on this machine: packages, drivers, and the commands that install what is missing.

    Args:
        recipe: The recipe.
        install: Install the missing Python packages into this environment, with its own pip. Drivers, and packages that
            would break installed ones, are left to the user.
        tell: Called with each line that pip prints.

    Returns:
        Every need with what was found; after an installation, as it is then.

    Raises:
        RecipeError: The recipe is not valid.
        TargetError: Packages are to be installed, but this environment has no pip of its own, or pip failed.
    """
    from octobert.api import setup as needed

    checked = parse_recipe(recipe)
    requirements = needed.setup_of(checked)
    if not install or not requirements.commands:
        return requirements
    needed.install(requirements, tell)
    return needed.setup_of(checked)


def quantize(
    model: PathLike,
    *,
    task: TaskLike,
    data: DataLike | Mapping[str, Any],
    out: PathLike,
    progress: ProgressCallback | None = None,
    **keys: Unpack[RecipeKeys],
) -> Report:
    """Quantize a model and compare it with the float model on your data.

    Args:
        model: Hub id, folder, package:NAME/PATH, an .onnx file next to its tokenizer, or a .zip file or URL of one of these.
        task: Name of the task, or one name with its options: `{"squad": {"max_length": 384}}`.
        data: File, folder or Hub id; or the recipe's `data` as a mapping.
        out: Output directory (see `run`).
        progress: Called at each step.
        keys: Other keys of the recipe, such as `targets=["openvino-cpu"]` or `accuracy={"max_drop": 0.01}`.

    Returns:
        The report of the run.

    Raises:
        OctobertError: A key is not valid, or a step failed.
    """
    return run(raw_recipe(model, task, data, keys), out, progress=progress)


def example(out: PathLike, report: Report) -> tuple[str, ...] | None:
    """Return the texts of one short evaluation row of a run, in the order of the task; None if they are not stored."""
    from octobert.pipeline import output

    return output.example(path_of(out, "out"), report)


def finetune(
    recipe: RecipeLike, out: PathLike, *, progress: ProgressCallback | None = None
) -> Finetuned:
    """Fine-tune the model of a recipe in float, and score it in PyTorch. For quantization-aware training use `run`.

    Args:
        recipe: A recipe with the key `finetune`.
        out: Output directory. The trained model is in `out/checkpoint`.
        progress: Called at each step.

    Raises:
        OctobertError: The recipe has no `finetune`, or a step failed.
    """
    environment.require("quantize")
    from octobert.pipeline import runner

    checked, folder = parse_recipe(recipe), path_of(out, "out")
    with shown(progress) as tell:
        return runner.finetune(checked, folder, tell)


def calibrate(
    recipe: RecipeLike,
    out: PathLike,
    *,
    sweep: bool = False,
    progress: ProgressCallback | None = None,
) -> Sweep:
    """Compute the ranges of a model and measure the error of calibrators, per tensor and end to end.

    Args:
        recipe: The recipe. Its first target is used.
        out: Output directory (see `run`); the result is also in its `sweep.json` and `sweep.csv`.
        sweep: Compare all calibrators. Otherwise only the recipe's own.
        progress: Called at each step.

    Raises:
        OctobertError: The method needs no calibration, or a step failed.
    """
    environment.require("quantize")
    from octobert.config.recipe import Choice
    from octobert.pipeline import runner
    from octobert.quantization import calibrators

    checked, folder = parse_recipe(recipe), path_of(out, "out")
    choices = [checked.calibrate]
    if sweep:
        choices = [
            Choice(name=name, options=setting.model_dump(exclude_unset=True))
            for name in calibrators.names()
            for setting in calibrators.load(name).sweep()
        ]
    with shown(progress) as tell:
        result = runner.sweep(checked, choices, folder, tell)
    _write_tables(result, folder)
    return result


def _write_tables(result: Sweep, out: Path) -> None:
    """Write a sweep next to the store of its run: everything as JSON, and one row per calibrator as CSV."""
    import csv

    with (
        storage_errors(out),
        atomic_write(out / "sweep.json") as whole,
        atomic_write(out / "sweep.csv") as table,
    ):
        whole.write_text(result.model_dump_json(indent=1), encoding="utf-8")
        with table.open("w", encoding="utf-8", newline="") as stream:
            rows = result.to_rows()
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def stored(out: PathLike, *, keep_last: bool = False) -> dict[str, int]:
    """Return the stored results of an output directory: name → size in bytes.

    Args:
        out: Output directory, or a folder of `cache`.
        keep_last: Leave out the results that the last finished run used.

    Raises:
        StorageError: The folder is neither.
    """
    from octobert.engine import cleaning

    return cleaning.stored(path_of(out, "out"), keep_last=keep_last)


def clean(out: PathLike, *, keep_last: bool = False) -> dict[str, int]:
    """Remove the stored results of an output directory. Packages and reports stay.

    Args:
        out: Output directory of earlier runs, or a folder of `cache`.
        keep_last: Keep the results that the last finished run used.

    Returns:
        The removed results: name → size in bytes.

    Raises:
        BusyError: A run is using the directory.
        StorageError: The folder is not an output directory, or a result cannot be removed.
    """
    from octobert.engine import cleaning

    return cleaning.clean(path_of(out, "out"), keep_last=keep_last)
