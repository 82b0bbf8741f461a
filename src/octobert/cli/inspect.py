"""`octobert inspect DIR`: the plan of a finished model, layer by layer, and with --runtime what the runtime made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "inspect"


def command(
    directory: Annotated[
        Path,
        typer.Argument(help="A packaged directory, or an output directory; with --runtime also an .onnx or .xml file."),
    ],
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Run it: what is really computed in 8 bits, where the time goes, and why.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="With --runtime: rows of a batch.")] = 1,
    sequence: Annotated[
        int | None, typer.Option(min=1, help="With --runtime: tokens of a row. Default: 128, or the model's limit.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="With --runtime: what to open a file with.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="With --runtime: threads of one inference; 0: the runtime's choice.")] = 0,
    repeats: Annotated[int, typer.Option(min=3, help="With --runtime: profiled runs, and rounds of timing.")] = 20,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Print the plan: per layer what is 8-bit, what is float, and why; or what the runtime made of it."""
    from octobert.core.results import PACKAGE_FILE

    inside = sorted(p.parent for p in directory.glob(f"*/{PACKAGE_FILE}"))
    folders = [directory] if (directory / PACKAGE_FILE).is_file() or not inside else inside
    if runtime:
        _runtime(folders, target, batch=batch, sequence=sequence, threads=threads, repeats=repeats, as_json=as_json)
        return
    _refuse_files(directory)
    _plans(folders, as_json=as_json)


def _refuse_files(directory: Path) -> None:
    from octobert.core.errors import ModelError

    if directory.is_file():
        raise ModelError(
            "a file has no plan", where=str(directory), expected="a packaged directory", fix="add --runtime to see how it runs"
        )


def _plans(folders: list[Path], *, as_json: bool) -> None:
    from octobert.inference.predictor import read_manifest
    from octobert.report import terminal

    cards = [read_manifest(folder) for folder in folders]
    if as_json:
        shown = {"target", "plan", "ranges", "model", "sensitivity", "search"}
        _show.document([manifest.model_dump(mode="json", include=shown) for manifest in cards])
        return
    for manifest in cards:
        _show.render(terminal.plan_table(manifest.plan))
        for role, (done, total) in manifest.plan.counts().items():
            if done:
                typer.echo(f"{role:<18} {done:>4} of {total} in 8 bits")
        if manifest.sensitivity is not None:
            _show.render(terminal.sensitivity_table(manifest.sensitivity))
        if manifest.search is not None:
            _show.render(terminal.trials_table(manifest.search))


def _runtime(
    paths: list[Path], target: str | None, *, batch: int, sequence: int | None, threads: int, repeats: int, as_json: bool
) -> None:
    from octobert.inspection import inspector
    from octobert.report import inspected

    found = []
    with _show.Bar() as bar:
        for path in paths:
            model = inspector.opened(path, target)
            found.append(
                inspector.inspect(
                    model, batch=batch, sequence=sequence, threads=threads, repeats=repeats, on_progress=bar.update
                )
            )
    if as_json:
        _show.document([one.model_dump(mode="json") for one in found])
        return
    for one in found:
        _show.render(*inspected.tables(one))
        for sentence in one.answers:
            typer.echo(f"• {sentence}")
