"""`octobert evaluate DIR --data FILE`: score a finished model, and its float model beside it, on other data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "evaluate"


def command(
    directory: Annotated[Path, typer.Argument(help="A packaged directory, OUT/<target>.")],
    data: Annotated[str, typer.Option(help="A file, a folder with a file of the split, or a hub id.")],
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for a file without a header.")] = None,
    split: Annotated[str, typer.Option(help="Which split of a folder; auto: validation, else test.")] = "auto",
    samples: Annotated[int | None, typer.Option(min=1, help="Score at most so many rows.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For sampling and intervals.")] = 0,
    cache: Annotated[Path | None, typer.Option(help=_show.CACHE_HELP)] = None,
    runtime_log: Annotated[bool, typer.Option("--runtime-log", help=_show.RUNTIME_LOG_HELP)] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Score a finished model on data, paired with its float model on the same rows."""
    from octobert.evaluation.packages import judge
    from octobert.report.summary import probability

    result = judge(
        directory,
        data,
        split=split,
        columns=_show.split_names(columns),
        samples=samples,
        seed=seed,
        cache=cache,
        runtime_log=runtime_log,
    )
    if as_json:
        _show.document(result.model_dump(mode="json"))
        return
    for name, scores in result.scores.items():
        for score in scores:
            typer.echo(
                f"{name:<14} {score.metric:<12} {score.value:.4f}  [{score.low:.4f}, {score.high:.4f}]  {score.rows} rows"
            )
    comparison = result.comparison
    change = ""
    if comparison.difference is not None:
        change = f", {comparison.metric} {comparison.difference:+.4f} ({probability(comparison.p_value)})"
    typer.echo(
        f"{comparison.candidate} follows {comparison.reference}: {comparison.fidelity_name} {comparison.fidelity:.4f}, "
        f"output error {comparison.output_error:.4f}, {len(comparison.changed)} rows changed{change}"
    )
