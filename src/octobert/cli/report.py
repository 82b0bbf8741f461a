"""`octobert report OUT…`: make the page of a run again, or one page of several runs."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import octobert
from octobert.cli import _show

PANEL = _show.USE
EXAMPLES = (
    "octobert report out --open",
    "octobert report out --format markdown",
    "octobert report laptop server phone --out three.html",
    "octobert report out --mlflow sqlite:///mlflow.db",
)


def command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="OUT…", help="Output directories of runs; several become one page."),
    ],
    *,
    out: Path | None = None,
    open_: bool = False,
    texts: bool = True,
    format_: Literal["html", "markdown"] = "html",
    mlflow: str | None = None,
) -> Iterator[Any]:
    """Make the page of a run again, or one page that compares several runs, such as those of one model on three machines.

    Args:
        out: File of the page. Default: report.html in the folder of one run; comparison.html here for several; or .md.
        open_: Open the page in the browser.
        texts: Show the rows that changed, with their texts.
        format_: markdown for the answer, the tables and the notes as text, for a pull request or a model card.
        mlflow: Also log each run to this tracking server or store of MLflow, such as sqlite:///mlflow.db.
    """
    file = octobert.page(*folders, out=out, texts=texts, format=format_)
    logged = [octobert.log_run(folder, mlflow) for folder in folders if mlflow is not None]
    yield {"page": file, "mlflow": logged}
    _show.line(f"Report   {file}")
    for run in logged:
        _show.line(f"MLflow   {run}")
    if open_ and not webbrowser.open(file.resolve().as_uri()):
        _show.note(f"octobert: no browser could be started; open {file} yourself.")
