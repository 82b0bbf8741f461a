"""What a recipe needs on this machine, and what of it is there."""

from __future__ import annotations

from typing import Literal

from octobert.core.frozen import FrozenModel
from octobert.core.tabular import Row, Tabular


class Need(FrozenModel):
    """A package or a driver.

    Args:
        name: of the distribution, or the driver's title.
        kind: Python packages can be installed by pip, drivers cannot; a build is a package that replaces onnxruntime.
        wanted_by: parts of the recipe, such as `target tensorrt`.
        version: accepted versions, such as `>=2.9`; empty if any.
        found: the installed version, or where a driver was found; None if it was not.
        fits: it is there, in an accepted version.
        required: without it the run fails. Otherwise files are written, and not measured here.
        extra: of octobert that installs it; empty if none.
        note: for a driver, what was looked for.
        install: what to do; empty if it fits.
    """

    name: str
    kind: Literal["package", "build", "driver"]
    wanted_by: tuple[str, ...]
    version: str = ""
    found: str | None = None
    fits: bool
    required: bool
    extra: str = ""
    note: str = ""
    install: str = ""


class Setup(Tabular):
    """What a recipe needs, and the commands that install what is missing.

    Args:
        needs: packages first.
        commands: install the missing Python packages in this environment.
        conflicts: what these commands leave out because it would break something here or is of unknown origin, as sentences.
        problem: why nothing can be installed from here; None if it can.
    """

    needs: tuple[Need, ...]
    commands: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def missing(self) -> tuple[Need, ...]:
        """What the run cannot do without, and is not there."""
        return tuple(need for need in self.needs if need.required and not need.fits)

    def to_rows(self) -> list[Row]:
        """One row per need."""
        return [
            {
                "needed": f"{need.name} {need.version}".strip(),
                "by": ", ".join(need.wanted_by),
                "here": need.found or "no",
                "state": "ready"
                if need.fits
                else "missing"
                if need.required
                else "missing, only to measure here",
                "install": need.install,
            }
            for need in self.needs
        ]
