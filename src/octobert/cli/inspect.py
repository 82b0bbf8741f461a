"""`octobert inspect PACKAGE`: the plan of a package, and with --runtime how the runtime runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octobert.api import models, packages
from octobert.cli import _options, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert inspect out/ort-cpu",
    "octobert inspect out/ort-cpu --runtime",
    "octobert inspect model_int8.onnx --reference model.onnx",
)
_SHAPE = ("batch", "sequence", "threads", "repeats")
_SHOWN = {"target", "plan", "ranges", "model", "sensitivity", "search"}


@_options.filled(
    files=_options.from_function(models.inspect, only=("target", "reference")),
    shape=_options.from_function(
        models.inspect, only=_SHAPE, panels=dict.fromkeys(_SHAPE, "With --runtime")
    ),
)
def command(
    directory: Path,
    files: _options.Arguments,
    shape: _options.Arguments,
    *,
    runtime: bool = False,
    every: bool = False,
) -> Iterator[Any]:
    """Print the plan: what each layer computes in 8 bits or float, and why; or with --runtime how the runtime runs it.

    Args:
        directory: A package, an output directory, or an .onnx or .xml file, which is run (--runtime).
        runtime: Run the model: what is computed in 8 bits, where the time goes, and why.
        every: Print each layer and value by itself. Default: layers that are alike once, and the slowest operators.
    """
    folders = packages.packages(directory)
    if runtime or directory.is_file():
        with _show.progress() as progress:
            inspections = [
                models.inspect(folder, progress=progress, **files, **shape) for folder in folders
            ]
        yield inspections
        from octobert.report import plans, terminal

        for inspection in inspections:
            _show.render(
                *terminal.notes(inspection.answers, ()),
                *plans.inspection_tables(inspection, every=every),
            )
        if not every:
            _show.note(
                "--all shows each layer by itself with its operators, and all types of operators."
            )
        return
    manifests = [packages.manifest(folder) for folder in folders]
    yield [manifest.model_dump(mode="json", include=_SHOWN) for manifest in manifests]
    from octobert.report import contents, plans

    for manifest in manifests:
        _show.render(plans.plan_table(manifest.plan, every=every))
        for role, (done, total) in manifest.plan.counts().items():
            if done:
                _show.line(f"{role:<18} {done:>4} of {total} quantized")
        if manifest.sensitivity is not None and manifest.sensitivity.values:
            _show.render(plans.sensitivity_table(manifest.sensitivity, every=every))
        if manifest.search is not None:
            _show.render(contents.trials_table(manifest.search, every=every))
    if not every:
        _show.note(
            "--all shows each layer and value by itself, with its range, and all trials of a search."
        )
