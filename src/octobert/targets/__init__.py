"""Targets: one file each, what a runtime accepts and how a model is written for it; sessions are in runtimes/."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from octobert.core import plugins
from octobert.core.capability import Capabilities, Probe
from octobert.core.frozen import FrozenModel
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions
from octobert.targets.shared import files


class Target(FrozenModel):
    """A runtime on a device: what models it takes, and how they are written and opened for it.

    Args:
        capabilities: what the target accepts and runs fast.
        probe: returns whether the target can run on this machine.
        export: writes the files that the target opens, of an ONNX file with Q/DQ, into the folder of a package.
        open_session: opens a model file.
        model_file: returns the file in the folder of a package that the target opens.
        runtime_options: settings of the runtime that `octobert tune` may try: name → values, the default first.
    """

    capabilities: Capabilities
    probe: Callable[[], Probe]
    export: Callable[[Path, Path, ExportOptions], object]
    open_session: Callable[[Path, SessionOptions], Session]
    model_file: Callable[[Path], Path] = files.model_file
    runtime_options: Mapping[str, tuple[RuntimeOption, ...]] = {}

    @property
    def name(self) -> str:
        """Return the name in recipes and reports."""
        return self.capabilities.name

    @property
    def digest(self) -> str:
        """Return what counts for the keys of steps; the code of all targets counts there already."""
        return self.name


PLUGINS = plugins.Plugins("targets", Target)
# A field that holds a target.
TargetField = Annotated[Target, PLUGINS]
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each
