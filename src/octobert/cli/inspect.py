"""`octobert inspect DIR`: the plan of a finished model, layer by layer: what is 8-bit, what is float, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "inspect"


def command(
    directory: Annotated[Path, typer.Argument(help="A packaged directory, or an output directory with one.")],
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Print the plan: per layer what is 8-bit, what is float, and why."""
    from octobert.report import terminal
    from octobert.results import CARD
    from octobert.runtime.predictor import read_card

    inside = sorted(p.parent for p in directory.glob(f"*/{CARD}"))
    folders = [directory] if (directory / CARD).is_file() or not inside else inside
    cards = [read_card(folder) for folder in folders]
    if as_json:
        shown = {"target", "plan", "ranges", "model", "sensitivity", "search"}
        _show.document([card.model_dump(mode="json", include=shown) for card in cards])
        return
    for card in cards:
        _show.render(terminal.plan_table(card.plan))
        for role, (done, total) in card.plan.counts().items():
            if done:
                typer.echo(f"{role:<18} {done:>4} of {total} in 8 bits")
        if card.sensitivity is not None:
            _show.render(terminal.sensitivity_table(card.sensitivity))
        if card.search is not None:
            _show.render(terminal.trials_table(card.search))
