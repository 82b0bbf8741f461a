"""`octobert benchmark MODEL…`: time packages and model files, and their float models, in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from octobert.cli import _models, _recipe, _show

PANEL = _show.USE
EXAMPLES = (
    "octobert benchmark out/ort-cpu out/openvino-cpu --batch 1 --sequence 128",
    "octobert benchmark out/ort-cpu --goal throughput --seconds 60 --streams auto",
    "octobert benchmark model_int8.onnx --reference model.onnx",
)


def command(
    directories: Annotated[list[Path], typer.Argument(help="Packages, OUT/TARGET, and .onnx and .xml files.")],
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch sizes. Default: 1 and 8. (benchmark_app: -b)")] = None,
    sequence: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Sequence lengths in tokens. Default: 128, or the model's limit. (-data_shape)"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="File, folder, or Hub id of rows that are also timed, at their own lengths. (benchmark_app: -i)"),
    ] = None,
    config: _recipe.ConfigOption = None,
    data_revision: _recipe.RevisionOption = None,
    goal: Annotated[
        str,
        typer.Option(
            help="latency: one inference after another (benchmark_app: -hint latency -api sync). throughput: also inferences "
            "at the same time (-hint throughput -api async)."
        ),
    ] = "latency",
    repeats: Annotated[int, typer.Option(min=3, help="Rounds of each shape, one inference each. (benchmark_app: -niter)")] = 30,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Time for each model at each shape. latency: instead of --repeats. throughput: for inferences at the same "
            "time, 20 by default. (benchmark_app: -t)",
        ),
    ] = None,
    streams: Annotated[
        str,
        typer.Option(
            help="Inferences that run at the same time. auto: what OpenVINO recommends, otherwise one for each core. "
            "(benchmark_app: -nstreams)"
        ),
    ] = "auto",
    requests: Annotated[
        str, typer.Option(help="Inferences in flight. auto: as many as there are streams. (benchmark_app: -nireq)")
    ] = "auto",
    warmup: Annotated[
        int, typer.Option(min=0, help="Untimed runs before the first timed one, beside those that there always are.")
    ] = 0,
    pause_ms: Annotated[float, typer.Option(min=0, help="Pause before each turn of a model.")] = 10,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads of one inference. 0: the runtime's default. (benchmark_app: -nthreads)")
    ] = 0,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="OpenVINO's name of a device: CPU, GPU, NPU, AUTO, MULTI:… or HETERO:…, several times for several. "
            "(benchmark_app: -d)"
        ),
    ] = None,
    task: _models.Task = None,
    target: _models.Target = None,
    tokenizer: _models.Tokenizer = None,
    reference: _models.Reference = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print all columns, in several tables where the terminal is narrow.")
    ] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Time packages and model files, and their float models, in turn, each in a process of its own."""
    import octobert
    from octobert.core.settings import goal_named

    with _show.progress() as progress:
        result = octobert.benchmark(
            directories,
            batch=batch or (1, 8),
            sequence=sequence or (),
            data=data,
            config=config,
            revision=data_revision,
            goal=goal_named(goal, where="--goal"),
            repeats=repeats,
            seconds=seconds,
            streams=_count(streams, "--streams"),
            requests=_count(requests, "--requests"),
            warmup=warmup,
            pause_ms=pause_ms,
            threads=threads,
            device=device or (),
            progress=progress,
            **_models.given(task, target, tokenizer, reference=reference),
        )
    if as_json:
        _show.document(result.model_dump(mode="json"))
        return
    from octobert.report import terminal, times

    lines = [
        *times.timings(result.latencies, result.footprints, result.speedups, result.precisions),
        *times.timings(result.throughputs, result.footprints, result.ratios, result.precisions),
    ]
    sentences = [sentence for line in lines for sentence in times.speed(line)]
    table = terminal.latency_table(lines, times.shapes(result.latencies), elsewhere="--all", every=every)
    ran_on = [f"{f.candidate} ran on {f.device}." for f in result.footprints if device]
    how = times.how(result.settings, result.throughputs)
    _show.render(table, *terminal.notes([*sentences, *ran_on, *how], times.noise(result.latencies, result.load)))


def _count(text: str, where: str) -> int | Literal["auto"]:
    """A number of streams or requests, or `auto`."""
    from octobert.core.errors import RecipeError

    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise RecipeError("not a number of inferences", where=where, got=repr(text), expected="1 or more, or auto")
    return int(text)
