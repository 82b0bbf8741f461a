"""`octobert doctor`: check this machine."""

from __future__ import annotations

from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert doctor",)


def command(as_json: bool = _show.JSON_OPTION) -> None:
    """Check this machine: CPU features, installed packages, targets."""
    import octobert

    here, findings = octobert.doctor()
    probes = {name: probe for name, (_, probe) in octobert.list_targets().items()}
    if as_json:
        targets = {name: probe.model_dump(mode="json") for name, probe in probes.items()}
        _show.document({"environment": here.model_dump(mode="json"), "targets": targets, "findings": findings})
        return
    machine = f"{here.cpu}, {here.cores} cores, {here.memory_bytes / 2**30:.1f} GiB, {here.system}, Python {here.python}"
    _show.item("Machine", machine, column=10)
    _show.item("Features", f"for 8-bit arithmetic: {', '.join(here.features) or 'none'}", column=10)
    for name, version in here.versions.items():
        _show.line(f"  {name:<14} {version}")
    for name, probe in probes.items():
        state = "ready" if probe.available else "; ".join(filter(None, (probe.missing, probe.install)))
        _show.item(f"  {name}", state, column=16)
    for finding in findings:
        _show.item("-", finding, column=1)
