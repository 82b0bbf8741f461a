"""The results of a run → its output directory: packages, checkpoint, report, and settings that were tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from octobert.config.recipe import Recipe
from octobert.core import archives
from octobert.core.errors import ModelError
from octobert.core.evidence import EVIDENCE, Evidence
from octobert.core.results import Report
from octobert.inference import package_files
from octobert.pipeline.carrying import ITSELF, digests_below
from octobert.pipeline.contract import Step, StepResult
from octobert.pipeline.lock import Hold
from octobert.pipeline.publishing import PAGES, Folder, publish, read_in
from octobert.pipeline.stages._artifacts import CHECKPOINT
from octobert.pipeline.store import manifest_of


def publish_run(
    recipe: Recipe,
    steps: Sequence[Step],
    results: Mapping[str, StepResult],
    report: Report,
    out: Path,
    hold: Hold,
    *,
    names: Mapping[str, str] | None = None,
    pages: Mapping[str, str] | None = None,
) -> list[str]:
    """Publish what a run has made.

    Args:
        steps: of the run.
        results: of the steps, by their names.
        report: of the run.
        hold: of the output directory.
        names: target → name of its package in the output directory, where that is another one.
        pages: further files to publish: name → text.

    Returns:
        What the user should know of files that were kept, left alone or removed, as sentences.
    """
    from octobert.report.page import Run, headline, page

    places = {target: (names or {}).get(target, target) for target in recipe.targets}
    folders = {place: folder_of(results[f"package/{target}"]) for target, place in places.items()}
    if recipe.zip:
        zips = {target: results[f"archive/{target}"] for target in recipe.targets}
        folders |= {
            f"{places[t]}{archives.SUFFIX}": file_of(result, f"{t}{archives.SUFFIX}")
            for t, result in zips.items()
        }
    trained = next((name for name in ("qat", "finetune") if name in results), None)
    if trained is not None:
        folders[CHECKPOINT] = folder_of(results[trained], CHECKPOINT)
    evidence = results["report"].read(EVIDENCE, Evidence)
    shown = page([Run(headline(report), report, evidence, str(out))])
    texts = dict(
        zip(
            PAGES,
            (report.model_dump_json(indent=1), evidence.model_dump_json(), shown),
            strict=True,
        )
    )
    # Settings that the user has tuned since then are for the same model: they stay.
    published = {target: folders[places[target]].files for target in report.tuned}
    kept = {
        target: digests_below(out / places[target], files) == files
        for target, files in published.items()
    }
    notes = publish(out, folders, {**(pages or {}), **texts}, hold, needed=read_in(out, steps))
    for target, tuned in report.tuned.items():
        try:
            for result in tuned:
                package_files.write_tuned(out / places[target], result, replace=not kept[target])
        except ModelError as error:
            # The file is the user's, and the packages are complete.
            notes.append(str(error))
    return notes


def folder_of(result: StepResult, inner: str = "") -> Folder:
    """The files of a result, or those in one of its folders, to be published."""
    files = {PurePosixPath(name): digest for name, digest in manifest_of(result).files.items()}
    below = {
        name.relative_to(inner).as_posix(): digest
        for name, digest in files.items()
        if name.is_relative_to(inner)
    }
    return Folder(result.path(inner), below)


def file_of(result: StepResult, name: str) -> Folder:
    """One file of a result, to be published by itself."""
    return Folder(result.path(name), {ITSELF: manifest_of(result).files[name]})
