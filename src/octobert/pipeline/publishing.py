"""Publishing: packages, checkpoint and report are put into the output directory, each at once and whole."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from octobert.config.recipe import Recipe
from octobert.core.errors import StorageError
from octobert.core.files import link_or_copy
from octobert.core.results import PACKAGE_FILE, TRAINED, Report
from octobert.pipeline.contract import StepResult
from octobert.pipeline.stages._artifacts import CHECKPOINT
from octobert.pipeline.store import MANIFEST

HIDDEN = ".octobert"


def check_output(targets: Sequence[str], out: Path) -> None:
    """Refuse an output directory that holds something else.

    Raises:
        StorageError: the output directory is a file, or a folder that octobert did not write is in the way.
    """
    if out.exists() and not out.is_dir():
        raise StorageError("the output directory is a file", where=str(out), fix="choose another --out")
    for name, mark in {**dict.fromkeys(targets, PACKAGE_FILE), CHECKPOINT: TRAINED}.items():
        if (out / name).exists() and not (out / name / mark).is_file():
            raise StorageError(
                "a package or a checkpoint would replace a folder that octobert did not write",
                where=str(out / name),
                fix="move it away, or choose another --out",
            )


def publish(recipe: Recipe, out: Path, results: Mapping[str, StepResult], report: Report) -> None:
    """Publish the results of a run.

    Everything that can fail is written first, in the hidden folder; what follows are renames.

    Args:
        results: step → its result.
    """
    from octobert.report import html

    published = {target: results[f"package/{target}"].path("") for target in recipe.targets}
    trained = next((name for name in ("qat", "finetune") if name in results), None)
    if trained is not None:
        published[CHECKPOINT] = results[trained].path(CHECKPOINT)
    pages = {"report.json": report.model_dump_json(indent=1), "report.html": html.page(report)}
    for name, text in pages.items():
        (out / HIDDEN / f"{name}.partial").write_text(text, encoding="utf-8")
    replace(out, published)
    for name in pages:
        (out / HIDDEN / f"{name}.partial").rename(out / name)


def replace(out: Path, published: Mapping[str, Path]) -> None:
    """Put copies of folders into the output directory, in place of what an earlier run put there.

    Args:
        published: name in the output directory → folder.
    """
    hidden = out / HIDDEN
    for name, folder in published.items():
        shutil.rmtree(hidden / f"publish-{name}", ignore_errors=True)
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
            link_or_copy(file, hidden / f"publish-{name}" / file.relative_to(folder))
    for name in published:
        old = hidden / f"replaced-{name}"
        shutil.rmtree(old, ignore_errors=True)
        if (out / name).exists():
            (out / name).rename(old)
        (hidden / f"publish-{name}").rename(out / name)
        shutil.rmtree(old, ignore_errors=True)
