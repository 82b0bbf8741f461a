"""Steps become artifacts, artifacts become the output directory.

A step whose artifact is in the store is reused, so running again resumes. A failure ends the run and is written to
`events.jsonl`, never to the store.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from octobert.config.loading import as_file, as_written, in_recipe, with_absolute_paths
from octobert.config.recipe import Choice, Recipe
from octobert.core import budget
from octobert.core.files import storage_errors
from octobert.core.progress import ProgressCallback, ProgressEvent, ignore
from octobert.core.ranges import Sweep
from octobert.core.results import CHECKPOINT, TRAINED, DataFacts, Finetuned, PlannedStep, Report
from octobert.core.selection import BEST, VariantResult
from octobert.engine.contract import Request, Step
from octobert.engine.executors import Executor, local
from octobert.engine.publishing import HIDDEN, check_output, publish
from octobert.engine.store import FOLDER, Artifact, Store, manifest_of
from octobert.engine.telling import Teller
from octobert.engine.work import KEPT, Work, at_work, key_of, store_home
from octobert.evaluation import candidates
from octobert.models import weights
from octobert.pipeline.artifacts import SCORES, StoredScores
from octobert.pipeline.choosing import winner
from octobert.pipeline.output import folder_of, publish_run
from octobert.pipeline.planner import (
    finetune_steps,
    steps_for,
    sweep_steps,
)
from octobert.pipeline.resolve import resolve
from octobert.pipeline.run import Run
from octobert.pipeline.stages import report as report_stage
from octobert.pipeline.stages import sweep as sweep_stage
from octobert.report import choices

# In sizes of the checkpoint: float graphs that all targets share, and what each target adds, with its package (measured: 6.7
# for two targets).
_SHARED, _EACH = 2.2, 2.4


def resolved(recipe: Recipe) -> Run:
    """Return the run of a recipe; of one with `choose` or `search`, the run that its search begins with.

    Raises:
        OctobertError: whatever can be refused before anything runs.
    """
    return resolve(recipe) if recipe.searches is None else winner.searched_run(recipe)


def dry_run(
    recipe: Recipe,
    out: Path,
    steps_of: Callable[[Recipe], Sequence[Step]] = lambda recipe: steps_for(resolved(recipe)),
    executor: Executor = local.run,
) -> list[PlannedStep]:
    """What a run would reuse and what it would do, without doing it. Only the rows are read and checked.

    Args:
        steps_of: makes the steps; those of `run` by default.
        executor: reads the rows.

    Raises:
        OctobertError: whatever would end the run before it makes anything of the model.
    """
    steps = steps_of(recipe)
    check_output(steps, out)
    store = Store(store_home(recipe, out) / FOLDER)
    artifacts: dict[str, Artifact] = {}
    verdicts = []
    for step in steps:
        missing = [name for name in step.needs.values() if name not in artifacts]
        artifact = None if missing else store.find(step.stage, key_of(step, artifacts))
        if artifact is not None:
            artifacts[step.name] = artifact
            reason = f"stored as {store.path(step.stage, artifact.key).name}"
        elif missing:
            reason = f"{missing[0]} has to run first"
        else:
            rows = f": {_rows(step, executor)}" if step.stage == "data" else ""
            reason = f"not in the store{rows}"
        action: Literal["run", "reuse"] = "run" if artifact is None else "reuse"
        reason += "".join(f"; {text}" for text in _decided(step))
        verdicts.append(PlannedStep(step=step.name, action=action, reason=reason))
    return verdicts


def _decided(step: Step) -> Iterator[str]:
    """Yield the plugins that a step uses, with the options that are set or decided, as a recipe has them."""
    for value in step.options_as_json.values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict) and part.keys() == {"name", "options"}:
                choice = Choice.model_validate(part)
                if f"/{choice.name}" not in step.name:
                    yield in_recipe(choice)


def _rows(step: Step, executor: Executor) -> str:
    """How many rows a run would use, from reading them as it would."""
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        work, scratch, temporary = (
            Path(folder) / name for name in ("work", "scratch", "temporary")
        )
        work.mkdir()
        temporary.mkdir()
        request = Request(
            stage=step.stage,
            inputs={},
            options=step.options_as_json,
            scratch=scratch,
            temporary=temporary,
        )
        counts = executor(request, work, lambda *_: None, step.launch).summary
    kinds = {
        kind: counts[f"{kind}_rows"] for kind in ("training", "calibration", "tuning", "evaluation")
    }
    return ", ".join(f"{count} {kind} rows" for kind, count in kinds.items() if count)


def run(
    recipe: Recipe,
    out: Path,
    progress: ProgressCallback = ignore,
    executor: Executor = local.run,
) -> Report:
    """Carry out a recipe; of one with `choose` or `search`, first the search, then the recipe that wins.

    Args:
        out: the output directory: report, one package for each target, and the store. After a search, the package `best` and
            its recipe, `best.yaml`.
        executor: where stages run.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    planned, searches = resolved(recipe), recipe.searches is not None
    package = BEST if searches else None
    progress(ProgressEvent("disk", "note", _disk(planned, out, searches=searches)))
    steps = steps_for(planned)
    check_output(steps, out, package=package)
    with at_work(recipe, out, progress, executor) as (work, notes):
        if searches:
            planned = winner.search(
                planned, as_written(recipe), out, work, partial(tell_search, work.teller)
            )
            steps = steps_for(planned)
        work.teller.planned(steps)
        artifacts = work.carry_out_all(steps)
        results = work.results(artifacts)
        report = results["report"].read(report_stage.REPORT, Report)
        with storage_errors(out):
            notes += publish_run(
                planned.recipe,
                steps,
                results,
                report,
                out,
                work.lock,
                package=package,
                pages={winner.RECIPE: as_file(with_absolute_paths(planned.recipe))}
                if searches
                else {},
                fetch=lambda name: work.make_whole(artifacts[name]),
            )
    return report


def tell_search(
    teller: Teller,
    best: VariantResult | None,
    done: int,
    total: int,
    seconds: float,
    minutes: float | None,
) -> None:
    """Tell how far a search is (see `choices.best_so_far`)."""
    text = choices.best_so_far(best, done, total, seconds, minutes)
    name = "" if best is None else best.variant.name
    teller.searched(text, name, done, total, seconds, minutes)


def _disk(planned: Run, out: Path, *, searches: bool) -> str:
    """What a run writes, in words: at most while it is at work, and what stays."""
    files = weights.files_of(planned.model.path, allow_pickle=planned.recipe.allow_pickle)
    size = sum(file.stat().st_size for file in files)
    most = size * (_SHARED + _EACH * len(planned.recipe.targets))
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    more = f", and up to {budget.size(_EACH * size)} for each model that it tries" * searches
    return (
        f"the run writes up to {budget.size(most)}{more}; {budget.size(KEPT * size)} of it stay in {out / HIDDEN} beside the "
        f"packages. {budget.size(shutil.disk_usage(place).free)} are free"
    )


def finetune(
    recipe: Recipe,
    out: Path,
    progress: ProgressCallback = ignore,
    executor: Executor = local.run,
) -> Finetuned:
    """Train a float model and evaluate it in PyTorch.

    Args:
        out: the output directory: `checkpoint`, and the store.
        executor: where stages run.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    with _carried_out(finetune_steps(recipe), recipe, out, progress, executor) as (
        work,
        artifacts,
        notes,
    ):
        results = work.results(artifacts)
        trained, evaluated = results["finetune"], results[f"evaluate/{candidates.CHECKPOINT.name}"]
        folders = {CHECKPOINT: folder_of(trained, CHECKPOINT)}
        notes += publish(
            out,
            folders,
            {},
            work.lock,
            fetch=lambda name: work.make_whole(artifacts[name]),
        )
        return Finetuned(
            trained=trained.read_json(f"{CHECKPOINT}/{TRAINED}"),
            data=DataFacts.model_validate(manifest_of(results["data"]).summary),
            scores=evaluated.read(SCORES, StoredScores).scores,
        )


def sweep(
    recipe: Recipe,
    calibrators: Sequence[Choice],
    out: Path,
    progress: ProgressCallback = ignore,
    executor: Executor = local.run,
) -> Sweep:
    """Compare calibrators on one pass over the calibration rows, for the recipe's first target.

    Raises:
        OctobertError: whatever went wrong.
    """
    with _carried_out(sweep_steps(recipe, calibrators), recipe, out, progress, executor) as (
        work,
        artifacts,
        _,
    ):
        return work.results(artifacts)[f"sweep/{recipe.targets[0]}"].read(sweep_stage.FACTS, Sweep)


@contextmanager
def _carried_out(
    steps: Sequence[Step], recipe: Recipe, out: Path, progress: ProgressCallback, executor: Executor
) -> Iterator[tuple[Work, dict[str, Artifact], list[str]]]:
    """Make or reuse every step under the lock.

    Yields:
        (What has carried them out, the artifacts by the names of their steps, notes for the user, to which more may be added).
    """
    check_output(steps, out)
    with at_work(recipe, out, progress, executor) as (work, notes):
        work.teller.planned(steps)
        artifacts = work.carry_out_all(steps)
        with storage_errors(out):
            yield work, artifacts, notes
