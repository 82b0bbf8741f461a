"""A package → the same as one zip file."""

from __future__ import annotations

from octobert.core import archives
from octobert.inference import package_files
from octobert.pipeline.contract import Context, StepResult, Summary
from octobert.pipeline.store import manifest_of


def run(context: Context, package: StepResult, *, target: str) -> Summary:
    """Write the zip file of a target's package."""
    path = context.work / f"{target}{archives.SUFFIX}"
    package_files.write_zip(package.path(""), manifest_of(package).files, path, target)
    return {"target": target, "size_bytes": path.stat().st_size}
