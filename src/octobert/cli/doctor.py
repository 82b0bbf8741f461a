"""`octobert doctor`: check this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import octobert
from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert doctor",)


def command() -> Iterator[Any]:
    """Check this machine: CPU features, installed packages, targets."""
    here, findings = octobert.doctor()
    probes = {name: probe for name, (_, probe) in octobert.list_targets().items()}
    yield {"environment": here, "targets": probes, "findings": findings}
    machine = f"{here.cpu}, {here.cores} cores, {here.memory_bytes / 2**30:.1f} GiB, {here.system}, Python {here.python}"
    _show.item("Machine", machine, column=10)
    _show.item("Features", f"for 8-bit arithmetic: {', '.join(here.features) or 'none'}", column=10)
    for name, version in here.versions.items():
        _show.line(f"  {name:<14} {version}")
    for name, probe in probes.items():
        missing = "; ".join(filter(None, (probe.missing, probe.install)))
        _show.item(f"  {name}", "ready" if probe.available else missing, column=16)
    for finding in findings:
        _show.item("-", finding, column=1)
