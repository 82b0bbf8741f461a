"""`octobert tune DIR --data FILE`: the fastest way to open a finished model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octobert.cli import _show

if TYPE_CHECKING:
    from octobert.inference.settings import Tried

NAME = "tune"


def command(
    directory: Annotated[Path, typer.Argument(help="A packaged directory, OUT/<target>.")],
    data: Annotated[Path, typer.Option(help="A file of rows; their lengths are what the model is tuned to.")],
    goal: Annotated[list[str] | None, typer.Option(help="latency, throughput; give it twice for both. Default: both.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Candidates of each goal.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.01, help="For the search of each goal, last comparison excluded.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the rows and the search.")] = 0,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Search for threads, streams and runtime settings that are faster than the defaults, and keep them with the model."""
    from octobert.core import plugins
    from octobert.data import sources as rows_of
    from octobert.data.tokenization import TextEncoder
    from octobert.evaluation import candidates, tuning
    from octobert.inference import settings
    from octobert.inference.predictor import read_manifest
    from octobert.report import terminal
    from octobert.tasks._task import rebuild

    goals = [_show.goal_named(one) for one in goal or settings.GOALS]
    manifest = read_manifest(directory)
    target, task = plugins.load("targets", manifest.target), rebuild(manifest.task)
    encoder = TextEncoder(directory, task.max_length)
    rows = task.encode(encoder, task.inputs(rows_of.read_file(data), where=str(data))).flat
    one = candidates.Candidate(name=manifest.target, path=str(target.model_file(directory)), head=manifest.task.head)
    # What cannot be kept in the end is not worth the search.
    settings.kept(directory)
    found = []
    for wanted in sorted(set(goals)):
        with _show.Bar() as bar:

            def told(number: int, _: Tried, bar: _show.Bar = bar, what: str = f"tuning for {wanted}") -> None:
                bar.update(what, number, trials)

            found.append(
                tuning.tune(
                    one,
                    rows,
                    encoder.pad_id,
                    goal=wanted,
                    longest=encoder.max_length,
                    trials=trials,
                    minutes=minutes,
                    seed=seed,
                    on_trial=told,
                )
            )
        settings.keep(directory, found[-1])
    if as_json:
        _show.document([result.model_dump(mode="json") for result in found])
        return
    for result in found:
        _show.render(terminal.tuned_table(result))
