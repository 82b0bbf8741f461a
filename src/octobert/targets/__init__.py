"""Targets: one file each, what a runtime accepts and how a model is written for it; sessions are in runtimes/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from octobert.core import plugins
from octobert.core.capability import Capabilities, Probe
from octobert.core.session import ExportOptions, RuntimeOption, Session, SessionOptions


class Target(Protocol):
    """The attributes and functions of a target's module.

    Attributes:
        CAPABILITIES: what the target accepts and runs fast.
        RUNTIME_OPTIONS: settings of the runtime that `octobert tune` may try: name → values, the default first.
    """

    CAPABILITIES: Capabilities
    RUNTIME_OPTIONS: Mapping[str, tuple[RuntimeOption, ...]]

    def probe(self) -> Probe:
        """Return whether the target can run on this machine."""

    def export(self, quantized: Path, folder: Path, options: ExportOptions) -> None:
        """Write the files that the target opens.

        Args:
            quantized: an ONNX file with Q/DQ.
            folder: of the package.
            form: the static shape and the type of the float parts, where the target has them.
        """

    def model_file(self, package: Path) -> Path:
        """The file in the folder of a package that the target opens."""

    def open_session(self, path: Path, options: SessionOptions) -> Session:
        """Open a model file."""


_PLUGINS = plugins.Family[Target]("targets")
names, load, each = _PLUGINS.names, _PLUGINS.load, _PLUGINS.each
