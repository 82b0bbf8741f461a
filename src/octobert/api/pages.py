"""The page of a report, made again from the files of a run, or one page of several runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from octobert.api._arguments import PathLike, optional_path, path_of
from octobert.core.errors import RecipeError, StorageError
from octobert.core.files import atomic_write, content_of, storage_errors
from octobert.core.plain import parsed_json

if TYPE_CHECKING:
    from octobert.core.frozen import FrozenModel
    from octobert.core.results import Report
    from octobert.report.page import ShownRun

    Record = TypeVar("Record", bound=FrozenModel)

_SUFFIXES = {"html": ".html", "markdown": ".md"}
# What is written without `out`: in the folder of a run, and for several runs in the working directory.
PAGE, COMPARISON = "report.html", "comparison.html"


def page(
    *folders: PathLike,
    out: PathLike | None = None,
    texts: bool = True,
    format: Literal["html", "markdown"] = "html",
) -> Path:
    """Make the page of a run again, or one page of several runs, such as those of one model on three machines.

    Args:
        folders: Output directories of `run`, `quantize` or `auto`; each needs only `report.json`, and `evidence.json` where
            there is one.
        out: File of the page. Default: `report.html` in the folder of one run; `comparison.html` in the working directory for
            several; or .md. A file that is not a page of octobert, or that was edited, is not replaced.
        texts: Show the rows that changed, with their texts. Without them the page has no texts of the data.
        format: `markdown` for the answer, the tables and the notes as text, without charts and rows, for a pull request or a
            model card.

    Returns:
        The file of the page.

    Raises:
        RecipeError: A folder is no output directory, or is given twice; or the format has no such form.
        StorageError: A file of a run is damaged, or comes from a newer octobert; or the page cannot be written.
    """
    outputs = [path_of(folder, "folder") for folder in folders]
    if format not in _SUFFIXES:
        raise RecipeError(
            "the page has no such form", where="format", got=format, expected="html or markdown"
        )
    name = outputs[0] / PAGE if len(outputs) == 1 else Path(COMPARISON)
    file = optional_path(out, "out") or name.with_suffix(_SUFFIXES[format])
    runs = _runs(outputs, texts=texts)
    _check_place(file)
    with storage_errors(file):
        _write(file, runs, format)
    return file


def _runs(folders: Sequence[Path], *, texts: bool) -> list[ShownRun]:
    """Return the runs, with names that tell them apart."""
    from octobert.core.evidence import EVIDENCE, Evidence
    from octobert.report.page import ShownRun, headline

    if not folders:
        raise RecipeError(
            "no output directory is given", expected="one folder with a report.json, or several"
        )
    whole = [folder.resolve() for folder in folders]
    for number, folder in enumerate(whole):
        if folder in whole[:number]:
            raise RecipeError(
                "the folder is given twice", where=str(folders[number]), fix="give each run once"
            )
    runs = []
    for folder, name in zip(folders, _names(whole), strict=True):
        report = report_of(folder)
        evidence = (
            _read(folder / EVIDENCE, Evidence) if (folder / EVIDENCE).exists() else Evidence()
        )
        # One run has the name that its own page has.
        shown = name if len(folders) > 1 else headline(report)
        runs.append(
            ShownRun(shown, report, evidence if texts else evidence.without_texts(), str(folder))
        )
    return runs


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders, with as many of their parents as tell them apart."""
    depth = 1
    while True:
        names = [Path(*folder.parts[-depth:]).as_posix() for folder in folders]
        if len(set(names)) == len(folders):
            return names
        depth += 1


def report_of(folder: Path) -> Report:
    """Return the report of a run.

    Raises:
        RecipeError: the folder is no output directory.
        StorageError: the report is damaged, or comes from a newer octobert.
    """
    from octobert.core.results import Report

    _check_folder(folder)
    path = folder / "report.json"
    return _checked(path, _read(path, Report))


def _check_folder(folder: Path) -> None:
    """Raise RecipeError where a folder is no output directory."""
    from octobert.core.results import PACKAGE_FILE

    if (folder / "report.json").is_file():
        return
    where = str(folder)
    if not folder.exists():
        raise RecipeError("the folder does not exist", where=where, fix="give the --out of a run")
    if not folder.is_dir():
        raise RecipeError(
            "not a folder", where=where, fix=f"give the folder: octobert report {folder.parent}"
        )
    if (folder / PACKAGE_FILE).is_file():
        raise RecipeError(
            "the folder is a package, which has no report",
            where=where,
            fix=f"give its output directory: octobert report {folder.parent}",
        )
    raise RecipeError(
        "the folder has no report",
        where=where,
        expected="report.json",
        fix="give the --out of a run that is complete",
    )


def _read(path: Path, kind: type[Record]) -> Record:
    """Return a record of a run.

    Raises:
        StorageError: the file is not one that this version of octobert wrote.
    """
    try:
        content = content_of(path)
    except OSError as error:
        raise StorageError(
            "the file cannot be read",
            where=str(path),
            got=error.strerror,
            fix="check its permissions",
        ) from error
    try:
        return kind.of_json(content)
    except ValueError as error:
        wrote = None
        with contextlib.suppress(ValueError, TypeError, KeyError):
            wrote = str(parsed_json(content)["environment"]["versions"]["octobert"])
        raise _unreadable(path, error, wrote) from error


def _checked(path: Path, report: Report) -> Report:
    """Return the report, its recipe written out. StorageError where it is of another version, or its parts contradict."""
    from octobert.config.loading import as_stored
    from octobert.config.recipe import Recipe
    from octobert.core.measurements import check_models

    try:
        check_models(report.models)
        recipe = as_stored(Recipe.model_validate(report.recipe))
    except ValueError as error:
        raise _unreadable(path, error, report.environment.versions.get("octobert")) from error
    return report.replaced(recipe=recipe)


def _unreadable(path: Path, error: ValueError, wrote: str | None) -> StorageError:
    """Return the error for a file that is damaged, or was written by another version."""
    from packaging.version import InvalidVersion, Version

    from octobert.core.frozen import first_problem
    from octobert.core.version import __version__

    try:
        newer = wrote is not None and Version(wrote) > Version(__version__)
    except InvalidVersion:
        newer = False
    if newer:
        return StorageError(
            f"the file was written by octobert {wrote}, and this is octobert {__version__}",
            where=str(path),
            fix="update octobert, or make the page where the run was",
        )
    return StorageError(
        "the file is damaged",
        where=str(path),
        got=first_problem(error),
        fix="run the recipe again with the same --out: what is stored is reused",
    )


def _check_place(file: Path) -> None:
    """Raise StorageError where a file cannot be written."""
    fix = "choose another file"
    if file.is_dir():
        raise StorageError("the file would replace a folder", where=str(file), fix=fix)
    if not file.parent.is_dir():
        raise StorageError(
            "the folder of the file does not exist",
            where=str(file),
            fix="make it, or choose another file",
        )


def _write(file: Path, runs: Sequence[ShownRun], format: str) -> None:
    """Write the page, unless another file is in its place."""
    from octobert.engine.publishing import is_as_published
    from octobert.report import markdown
    from octobert.report import page as pages

    if file.exists() and not pages.is_page(content_of(file)) and not is_as_published(file):
        raise StorageError(
            "the file is not a page of octobert as it was written, and would be replaced",
            where=str(file),
            fix=f"move it away, or choose another file: --out FILE{_SUFFIXES[format]}",
        )
    shown = markdown.markdown(runs) if format == "markdown" else pages.page(runs)
    with atomic_write(file) as partial:
        partial.write_text(shown, encoding="utf-8", errors="replace")
