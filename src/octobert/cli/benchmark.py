"""`octobert benchmark DIR…`: time finished models and their float models, interleaved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "benchmark"


def command(
    directories: Annotated[list[Path], typer.Argument(help="Packaged directories, OUT/<target>.")],
    batch: Annotated[list[int] | None, typer.Option(help="Batch sizes. Default: 1 and 8.")] = None,
    sequence: Annotated[list[int] | None, typer.Option(help="Lengths in tokens. Default: 128.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds of each shape.")] = 30,
    threads: Annotated[int, typer.Option(help="Threads of one inference; 0: the runtime's choice.")] = 0,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Time finished models and the float models beside them, interleaved, at fixed shapes."""
    import json

    from octobert import candidates, environment, plugins, timing
    from octobert.errors import RecipeError
    from octobert.recipe import Benchmark
    from octobert.report import summary, terminal
    from octobert.runtime.predictor import read_card
    from octobert.stages.benchmark import check_lengths, shapes_of
    from octobert.texts import longest

    named: dict[str, candidates.Candidate] = {}
    for folder in directories:
        card = read_card(folder)
        target, head = card["target"], card["task"]["head"]
        path = plugins.load("targets", target).model_file(folder)
        if target in named:
            raise RecipeError(f"two directories are for {target}", got=str(folder), fix="give one directory a target")
        baseline = candidates.float_baseline(target)
        named[baseline] = candidates.Candidate(name=baseline, path=str(folder / "onnx" / "model.onnx"), head=head)
        named[target] = candidates.Candidate(name=target, path=str(path), head=head)
    settings = Benchmark(batch=tuple(batch or (1, 8)), sequence=tuple(sequence or (128,)), repeats=repeats, threads=threads)
    check_lengths(settings, min(longest(folder) for folder in directories))
    vocabulary = json.loads((directories[0] / "config.json").read_text()).get("vocab_size", 1000)
    shapes = shapes_of(settings, [], 0, vocabulary, seed=0)
    latencies, footprints = timing.measure(list(named.values()), shapes, repeats=repeats, threads=threads)
    report = {
        "latencies": [json.loads(one.model_dump_json()) for one in latencies],
        "footprints": [json.loads(one.model_dump_json()) for one in footprints],
        "environment": json.loads(environment.current().model_dump_json()),
    }
    if as_json:
        _show.document(report)
        return
    lines = summary.lines({**report, "scores": {name: [] for name in named}, "comparisons": []})
    _show.render(terminal.latency_table(lines, summary.shapes(report)))
