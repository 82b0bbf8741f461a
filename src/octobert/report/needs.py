"""What a recipe needs on this machine, for the terminal."""

from __future__ import annotations

from octobert.core.environment import Need, Setup
from octobert.report.tables import FittedTable
from octobert.report.terminal import table_of

# What octobert itself needs: shown only where it is missing.
_OWN = ("octobert",)


def render(setup: Setup) -> FittedTable:
    """A table: what is needed, by which part of the recipe, and what is here."""
    table = table_of("Needed on this machine", ("needed", "by", "here"))
    for need in setup.needs:
        if not (need.fits and need.wanted_by == _OWN):
            table.add_row(
                f"{need.name} {need.version}".strip(), ", ".join(need.wanted_by), _state(need)
            )
    return table


def _state(need: Need) -> str:
    if need.fits:
        return need.found or "ready"
    # A build is there as a package, and yet not the one that is used.
    state = f"{need.found}, which does not fit" if need.found else "missing"
    return state if need.required else f"{state} (files are written; to measure them here)"


def sentences(setup: Setup) -> list[str]:
    """What to do, line by line."""
    lines = [""]
    if not setup.missing:
        lines.append("The recipe can run here.")
    if setup.commands:
        lines += ["Install the Python packages:", *(f"  {command}" for command in setup.commands)]
        lines += [f"Not from here: {setup.problem}."] if setup.problem else []
    told = {conflict.split()[0] for conflict in setup.conflicts}
    others = [
        need
        for need in setup.needs
        if need.kind != "package" and not need.fits and need.name not in told
    ]
    lines += [f"{need.name}: {need.install} ({need.note})." for need in others]
    return [*lines, *(f"Not installed by --yes: {conflict}" for conflict in setup.conflicts)]
