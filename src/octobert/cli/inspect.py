"""`octobert inspect PACKAGE`: the plan of a package, and with --runtime how the runtime runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _models, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert inspect out/ort-cpu",
    "octobert inspect out/ort-cpu --runtime",
    "octobert inspect model_int8.onnx --reference model.onnx",
)


def command(
    directory: Annotated[
        Path, typer.Argument(help="A package, an output directory, or an .onnx or .xml file, which is run (--runtime).")
    ],
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Run the model: what is computed in 8 bits, where the time goes, and why.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="With --runtime: batch size.")] = 1,
    sequence: Annotated[
        int | None, typer.Option(min=1, help="With --runtime: sequence length. Default: 128, or the model's limit.")
    ] = None,
    threads: Annotated[
        int, typer.Option(min=0, help="With --runtime: threads of one inference. 0: the runtime's default.")
    ] = 0,
    repeats: Annotated[int, typer.Option(min=3, help="With --runtime: profiled runs, and rounds of timing.")] = 20,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Print each layer and value by itself. Default: layers that are alike once, and the slowest operators.",
        ),
    ] = False,
    target: _models.Target = None,
    reference: _models.Reference = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Print the plan: what each layer computes in 8 bits or float, and why; or with --runtime how the runtime runs it."""
    import octobert

    folders = octobert.packages(directory)
    if runtime or directory.is_file():
        shape = {
            **_models.given(None, target, None, reference=reference),
            "batch": batch,
            "sequence": sequence,
            "threads": threads,
            "repeats": repeats,
        }
        _print_runtime(folders, shape, every=every, as_json=as_json)
        return
    _print_plans(folders, every=every, as_json=as_json)


def _print_plans(folders: list[Path], *, every: bool, as_json: bool) -> None:
    import octobert
    from octobert.report import plans, terminal

    manifests = [octobert.manifest(folder) for folder in folders]
    if as_json:
        shown = {"target", "plan", "ranges", "model", "sensitivity", "search"}
        _show.document([manifest.model_dump(mode="json", include=shown) for manifest in manifests])
        return
    for manifest in manifests:
        _show.render(plans.plan_table(manifest.plan, every=every))
        for role, (done, total) in manifest.plan.counts().items():
            if done:
                _show.line(f"{role:<18} {done:>4} of {total} in 8 bits")
        if manifest.sensitivity is not None:
            _show.render(plans.sensitivity_table(manifest.sensitivity, every=every))
        if manifest.search is not None:
            _show.render(terminal.trials_table(manifest.search, every=every))
    if not every:
        _show.note("--all shows each layer and value by itself, with its range, and all trials of a search.")


def _print_runtime(folders: list[Path], shape: dict[str, Any], *, every: bool, as_json: bool) -> None:
    import octobert
    from octobert.report import inspected, terminal

    with _show.progress() as progress:
        inspections = [octobert.inspect(folder, progress=progress, **shape) for folder in folders]
    if as_json:
        _show.document([inspection.model_dump(mode="json") for inspection in inspections])
        return
    for inspection in inspections:
        _show.render(*terminal.notes(inspection.answers, ()), *inspected.tables(inspection, every=every))
    if not every:
        _show.note("--all shows each layer by itself with its operators, and all types of operators.")
