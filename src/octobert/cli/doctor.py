"""`octobert doctor`: what this machine has, what is missing, and what it means for 8-bit models."""

from __future__ import annotations

import typer

from octobert.cli import _show

NAME = "doctor"
_CAPTURE = ("torch", "transformers")


def command(as_json: bool = _show.JSON_OPTION) -> None:
    """Check this machine: CPU features, packages, targets."""
    import json

    from octobert.core import environment, plugins

    here = environment.current()
    probes = {name: plugins.load("targets", name).probe() for name in plugins.names("targets")}
    findings = _findings(here.features, here.versions)
    if as_json:
        plain = {name: json.loads(p.model_dump_json()) for name, p in probes.items()}
        _show.document({"environment": json.loads(here.model_dump_json()), "targets": plain, "findings": findings})
        return
    typer.echo(f"{here.cpu}, {here.cores} cores, {here.memory_bytes / 2**30:.1f} GiB, {here.system}, Python {here.python}")
    typer.echo(f"features: {', '.join(here.features) or 'none that matter'}")
    for name, version in here.versions.items():
        typer.echo(f"  {name:<14} {version}")
    for name, probe in probes.items():
        typer.echo(f"  {name:<14} {'ready' if probe.available else f'{probe.missing}; {probe.install or str()}'}")
    for finding in findings:
        typer.echo(f"- {finding}")


def _findings(features: tuple[str, ...], versions: dict[str, str]) -> list[str]:
    found = []
    if not {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"} & set(features):
        found.append(
            "this CPU has no 8-bit dot product (VNNI, AMX or i8mm): 8-bit models are smaller here, but hardly faster, and "
            "products of uint8 and int8 can saturate."
        )
    if {"avx512_bf16", "amx_bf16"} & set(features):
        found.append("this CPU computes in bf16: OpenVINO runs float32 models in bf16 unless told not to; octobert tells it.")
    missing = [p for p in _CAPTURE if p not in versions]
    if missing:
        found.append(f"{' and '.join(missing)} not installed: checkpoints cannot be captured; pip install 'octobert[torch]'.")
    return found
