"""`octobert evaluate MODEL --data FILE`: score a package or a model file, and its float model, on data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _models, _recipe, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert evaluate out/ort-cpu --data test.tsv",
    "octobert evaluate out/ort-cpu --data dev-v1.1.json --predictions predictions.json",
    "octobert evaluate model_int8.onnx --task mrpc --data test.tsv --reference model.onnx",
)

_METRIC_HELP = "Metrics, the main one first: auroc, '{evaluate: NAME}', or file.py:function. Default: those of the task."


def command(
    directory: Annotated[Path, typer.Argument(help=_models.MODEL_HELP)],
    data: Annotated[str, typer.Option(help="File, folder, Hub id, or file.py:function.")],
    columns: Annotated[list[str] | None, typer.Option(help="Column names, for a file without a header.")] = None,
    config: _recipe.ConfigOption = None,
    data_revision: _recipe.RevisionOption = None,
    split: Annotated[
        str, typer.Option(help=r"Split, or a slice of it, such as test\[:100]. auto: validation, otherwise test.")
    ] = "auto",
    samples: Annotated[int | None, typer.Option(min=1, help="Number of rows, sampled at random. Default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and of the confidence intervals.")] = 0,
    metric: Annotated[list[str] | None, typer.Option(help=_METRIC_HELP)] = None,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run the Python functions that are named.")] = False,
    cache: Annotated[Path | None, typer.Option(help=_show.CACHE_HELP)] = None,
    runtime_log: Annotated[bool, typer.Option("--runtime-log", help=_show.RUNTIME_LOG_HELP)] = False,
    device: Annotated[str | None, typer.Option(help=_show.DEVICE_HELP)] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="File for the predictions: SQuAD's JSON for questions, otherwise one line of JSON for each row."),
    ] = None,
    nbest: Annotated[Path | None, typer.Option(help="File for the best answers to each question, as JSON.")] = None,
    task: _models.Task = None,
    target: _models.Target = None,
    tokenizer: _models.Tokenizer = None,
    reference: _models.Reference = None,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Score a package or a model file on data, and compare it with its float model on the same rows."""
    import octobert

    with _show.progress() as progress:
        result = octobert.evaluate(
            directory,
            data,
            split=split,
            config=config,
            revision=data_revision,
            columns=_show.split_names(columns),
            samples=samples,
            seed=seed,
            metric=[_recipe.yaml_of(text, "--metric") for text in metric or ()],
            allow_code=allow_code,
            cache=cache,
            runtime_log=runtime_log,
            device=device,
            predictions=predictions,
            nbest=nbest,
            progress=progress,
            **_models.given(task, target, tokenizer, reference=reference),
        )
    if as_json:
        _show.document(result.model_dump(mode="json"))
        return
    from octobert.report import terminal
    from octobert.report.summary import chance, interval, probability

    for name, scores in result.scores.items():
        for score in scores:
            ends = interval(score.low, score.high, ".4f")
            _show.line(f"{name:<14} {score.metric:<12} {score.value:.4f}  {ends}  {score.rows} rows")
    if device:
        _show.line(f"The models ran on {result.device}, their float operators in {result.precision}.")
    comparison = result.comparison
    if comparison is None:
        return
    change = ""
    if comparison.difference is not None:
        change = f", {comparison.metric} {comparison.difference:+.4f} ({probability(comparison.p_value)})"
    if comparison.divergence is not None:
        change = f", KL divergence {comparison.divergence:.5f} nats{change}"
    _show.line(
        f"{comparison.candidate} follows {comparison.reference}: {comparison.fidelity_name} {comparison.fidelity:.4f}, "
        f"output error {comparison.output_error:.4f}, {len(comparison.changed)} rows changed{change}"
    )
    _show.render(*terminal.notes((), chance(result.scores, comparison)))
