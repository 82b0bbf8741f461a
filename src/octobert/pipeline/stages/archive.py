"""A package → the same as one zip file."""

from __future__ import annotations

from octobert.core import archives
from octobert.core.frozen import FrozenModel
from octobert.inference import package_zip
from octobert.pipeline.contract import Context, StepResult, Summary
from octobert.pipeline.store import manifest_of


class Inputs(FrozenModel):
    """The package."""

    package: StepResult


class Options(FrozenModel):
    """The target."""

    target: str


def run(context: Context[Inputs, Options]) -> Summary:
    """Write the zip file."""
    package, target = context.inputs.package, context.options.target
    path = context.work / f"{target}{archives.SUFFIX}"
    package_zip.write(package.path(""), manifest_of(package).files, path, target)
    return {"target": target, "size_bytes": path.stat().st_size}
