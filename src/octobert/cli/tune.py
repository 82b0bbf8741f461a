"""`octobert tune MODEL --data FILE`: the fastest settings of a model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _models, _recipe, _show

PANEL = _show.USE
EXAMPLES = ("octobert tune out/ort-cpu --data validation.tsv", "octobert tune model.onnx --task mrpc --data validation.tsv")


def command(
    directory: Annotated[Path, typer.Argument(help=_models.MODEL_HELP)],
    data: Annotated[str, typer.Option(help="File, folder, or Hub id. The search times rows of these lengths.")],
    config: _recipe.ConfigOption = None,
    data_revision: _recipe.RevisionOption = None,
    goal: Annotated[list[str] | None, typer.Option(help="latency or throughput. Default: both, one search each.")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Settings that each search tries.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.01, help="Time limit of each search, without its final comparison.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled rows and of the search.")] = 0,
    task: _models.Task = None,
    target: _models.Target = None,
    tokenizer: _models.Tokenizer = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Search for threads, streams and runtime options that are faster than the defaults, and store them beside the model."""
    import octobert
    from octobert.core.settings import GOALS, goal_named

    goals = [goal_named(name, where="--goal") for name in goal or GOALS]
    with _show.progress() as progress:
        results = octobert.tune(
            directory,
            data,
            config=config,
            revision=data_revision,
            goals=goals,
            trials=trials,
            minutes=minutes,
            seed=seed,
            progress=progress,
            **_models.given(task, target, tokenizer),
        )
    if as_json:
        _show.document([result.model_dump(mode="json") for result in results])
        return
    from octobert.report import terminal

    _show.render(*(terminal.tuned_table(result) for result in results))
