"""`octobert targets`: the targets, and whether this machine can run them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import octobert
from octobert.cli import _show

PANEL = _show.LOOK
EXAMPLES = ("octobert targets",)


def command() -> Iterator[Any]:
    """List the targets; for each that cannot run here, what is missing and how to install it."""
    targets = octobert.list_targets().values()
    yield [
        {**capabilities.model_dump(mode="json"), "probe": probe} for capabilities, probe in targets
    ]
    for capabilities, probe in targets:
        state = (
            f"ready, {capabilities.runtime} {probe.version}"
            if probe.available
            else f"missing: {probe.missing}"
        )
        _show.item(
            capabilities.name,
            f"{capabilities.description} ({capabilities.status}); {state}",
            column=14,
        )
        if probe.install:
            _show.item("", f"install it with: {probe.install}", column=14)
