"""The results of a run → its output directory: packages, checkpoint, report, and settings that were tuned."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

from octobert.config.recipe import Recipe
from octobert.core.errors import ModelError
from octobert.core.evidence import EVIDENCE, Evidence
from octobert.core.heads import head_of
from octobert.core.lock import FolderLock
from octobert.core.results import CHECKPOINT, Report
from octobert.data.tokenization import Tokenizer
from octobert.engine.contract import Step, StepResult
from octobert.engine.publishing import (
    HIDDEN,
    ITSELF,
    PAGES,
    Folder,
    digests_below,
    publish,
    read_in,
)
from octobert.engine.store import Store, manifest_of, store_folder
from octobert.inference import package_files

# Rows that are looked at, and the number of characters up to which one is short.
_ROWS, _SHORT = 100, 120


def publish_run(
    recipe: Recipe,
    steps: Sequence[Step],
    results: Mapping[str, StepResult],
    report: Report,
    out: Path,
    lock: FolderLock,
    *,
    package: str | None,
    pages: Mapping[str, str],
    fetch: Callable[[str], None],
) -> list[str]:
    """Publish what a run has made.

    Args:
        steps: of the run.
        results: of the steps, by their names.
        report: of the run.
        lock: of the output directory.
        package: name of the package in the output directory, where that is not the target's.
        pages: further files to publish: name → text.
        fetch: as of `publish`.

    Returns:
        What the user should know of files that were kept, left alone or removed, as sentences.
    """
    from octobert.report.page import ShownRun, headline, page

    places = {target: package or target for target in recipe.targets}
    folders = {place: folder_of(results[f"package/{target}"]) for target, place in places.items()}
    trained = next((name for name in ("qat", "finetune") if name in results), None)
    if trained is not None:
        folders[CHECKPOINT] = folder_of(results[trained], CHECKPOINT)
    evidence = results["report"].read(EVIDENCE, Evidence)
    shown = page([ShownRun(headline(report), report, evidence, str(out))])
    texts = dict(
        zip(
            PAGES,
            (report.model_dump_json(indent=1), evidence.model_dump_json(), shown),
            strict=True,
        )
    )
    # Settings that the user has tuned since then are for the same model: they stay.
    published = {target: folders[places[target]].files for target in report.tuned}
    unchanged = {
        target: digests_below(out / places[target], files) == files
        for target, files in published.items()
    }
    notes = publish(out, folders, {**pages, **texts}, lock, fetch=fetch, needed=read_in(out, steps))
    for target, tuned in report.tuned.items():
        try:
            for result in tuned:
                package_files.write_tuned(
                    out / places[target], result, replace=not unchanged[target]
                )
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
    return Folder(result.path(inner), below, result.step)


def file_of(result: StepResult, name: str) -> Folder:
    """One file of a result, to be published by itself."""
    return Folder(result.path(name), {ITSELF: manifest_of(result).files[name]}, result.step)


def example(out: Path, report: Report) -> tuple[str, ...] | None:
    """The texts of one short evaluation row of a run, in the order in which the task reads them; None if it is not stored."""
    step = report.stages.get("data")
    if step is None or not head_of(report.task.head).reads_texts:
        return None
    path = Store(store_folder(out / HIDDEN)).path("data", step.key) / "evaluation.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["inputs"][:_ROWS]
    except (OSError, ValueError):
        return None
    lengths = [sum(map(len, texts)) for texts in rows]
    first = next(
        (texts for texts, length in zip(rows, lengths, strict=True) if length <= _SHORT), None
    )
    chosen = first or min(rows, key=lambda texts: sum(map(len, texts)), default=None)
    if chosen and head_of(report.task.head).input == "masked":
        mask, _ = Tokenizer(
            next(path for path in (out / name for name in report.plans) if path.is_dir())
        ).mask
        return (_masked(chosen[0], mask),)
    prompts = report.task.prompts.values()
    return tuple(_without_prompt(text, prompts) for text in chosen) if chosen else None


def _masked(text: str, mask: str) -> str:
    """A text with the mask in place of one word near its start, so that it is still there where the text is cut."""
    words = text.split()
    place = min(len(words) // 2, 4)
    return text if mask in text else " ".join([*words[:place], mask, *words[place + 1 :]])


def _without_prompt(text: str, prompts: Collection[str]) -> str:
    """A text as the user wrote it: predictions put the prompt before it again."""
    return text.removeprefix(next((prompt for prompt in prompts if text.startswith(prompt)), ""))
