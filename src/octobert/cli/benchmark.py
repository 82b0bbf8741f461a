"""`octobert benchmark DIR…`: time finished models and their float models, interleaved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octobert.cli import _show

if TYPE_CHECKING:
    from octobert.config.recipe import Benchmark
    from octobert.evaluation.candidates import Candidate
    from octobert.evaluation.latency import Shape

NAME = "benchmark"


def command(
    directories: Annotated[list[Path], typer.Argument(help="Packaged directories, OUT/<target>.")],
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Batch sizes. Default: 1 and 8.")] = None,
    sequence: Annotated[
        list[int] | None, typer.Option(min=1, help="Lengths in tokens. Default: 128, or the model's limit.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A file of rows, timed at their own lengths besides.")] = None,
    repeats: Annotated[int, typer.Option(min=3, help="Rounds of each shape.")] = 30,
    threads: Annotated[int, typer.Option(min=0, help="Threads of one inference; 0: the runtime's choice.")] = 0,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Time finished models and the float models beside them, interleaved, every model in a process of its own."""
    from octobert.config.recipe import Benchmark
    from octobert.core import environment
    from octobert.data.tokenization import longest
    from octobert.evaluation import latency
    from octobert.report import summary, terminal

    named, reference = _candidates(directories)
    default = min(128, *(longest(folder) for folder in directories))
    sequences: list[int | str] = [*(sequence or (default,)), *(("data",) if data else ())]
    plain = {"batch": batch or (1, 8), "sequence": sequences, "repeats": repeats, "threads": threads}
    settings = Benchmark.model_validate(plain)
    shapes = _shapes(settings, directories, data)
    with _show.Bar() as bar:
        latencies, footprints = latency.measure(named, shapes, repeats=repeats, threads=threads, on_progress=bar.update)
    if as_json:
        _show.document(
            {
                "latencies": [one.model_dump(mode="json") for one in latencies],
                "footprints": [one.model_dump(mode="json") for one in footprints],
                "environment": environment.current().model_dump(mode="json"),
            }
        )
        return
    lines = summary.timed(latencies, footprints, reference)
    _show.render(terminal.latency_table(lines, summary.shapes(latencies)))


def _candidates(directories: list[Path]) -> tuple[list[Candidate], dict[str, str]]:
    """Every package and, once each, the float models beside them; and which is set against which."""
    from octobert.core import plugins
    from octobert.evaluation import candidates
    from octobert.inference.predictor import read_manifest

    found: dict[str, Candidate] = {}
    reference: dict[str, str] = {}
    for folder in directories:
        manifest = read_manifest(folder)
        baseline = candidates.float_baseline(manifest.target)
        graph = folder / "onnx" / "model.onnx"
        same = [c for c in found.values() if c.name == baseline and c.content == manifest.files["onnx/model.onnx"]]
        if not same:
            label = baseline if baseline not in found else f"{folder}: {baseline}"
            one = candidates.Candidate(name=baseline, path=str(graph), head=manifest.task.head, label=label)
            same = [one.model_copy(update={"content": manifest.files["onnx/model.onnx"]})]
            found[label] = same[0]
        label = manifest.target if manifest.target not in found else str(folder)
        path = plugins.load("targets", manifest.target).model_file(folder)
        found[label] = candidates.Candidate(name=manifest.target, path=str(path), head=manifest.task.head, label=label)
        reference[label] = same[0].title
    return list(found.values()), reference


def _shapes(settings: Benchmark, directories: list[Path], data: Path | None) -> list[Shape]:
    import json

    from octobert.data import sources as rows_of
    from octobert.data.tokenization import TextEncoder, longest
    from octobert.evaluation import latency
    from octobert.inference.predictor import read_manifest
    from octobert.tasks._task import rebuild

    latency.check_lengths(settings, min(longest(folder) for folder in directories))
    vocabulary = json.loads((directories[0] / "config.json").read_text()).get("vocab_size", 1000)
    task = rebuild(read_manifest(directories[0]).task)
    encoder = TextEncoder(directories[0], task.max_length)
    texts = task.inputs(rows_of.read_file(data), where=str(data)) if data else []
    rows = task.encode(encoder, texts).flat
    return latency.shapes_of(settings, rows, encoder.pad_id, vocabulary, seed=0)
