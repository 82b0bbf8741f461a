"""Whole numbers in options, of a recipe or of somebody's package: the answer is an answer or one sentence, in little memory."""

from __future__ import annotations

import json
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octobert import tasks
from octobert.config.loading import parse
from octobert.core.errors import OctobertError
from octobert.graph import operators
from octobert.inference.opened import open_model
from octobert.inference.predictor import Predictor
from tests.properties.outcomes import sentence_of

LARGE = (1, 10**9, 2**63)
# Bytes of Python and NumPy, and seconds: a thousand times what an answer of the tiny models takes.
MEMORY, SECONDS = 64 << 20, 20
TEXT = "the bank raised its rates on tuesday " * 30
# Task → an input of it, and its head. The others have options that one of these has.
INPUTS: dict[str, tuple[Any, str]] = {
    "embedding": (TEXT, "embedding"),
    "fill-mask": ("the bank [MASK] its rates", "masked-lm"),
    "question-answering": (("who raised the rates ?", TEXT), "question-answering"),
    "sparse-embedding": (TEXT, "sparse-embedding"),
    "token-classification": (TEXT, "token-classification"),
}


def whole_numbers(name: str) -> list[str]:
    """The options of a task that are whole numbers."""
    fields = type(tasks.load(name)).model_json_schema()["properties"]
    kinds = {key: [field, *field.get("anyOf", ())] for key, field in fields.items()}
    return [
        key for key, parts in kinds.items() if any(part.get("type") == "integer" for part in parts)
    ]


CASES = [(name, option) for name in INPUTS for option in whole_numbers(name)]


def ends_well(operation: Callable[[], object], largest: int = MEMORY) -> str | None:
    """What an operation says, which takes little memory and time."""
    tracemalloc.start()
    began = time.perf_counter()
    try:
        said = sentence_of(OctobertError, operation)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < largest
    assert time.perf_counter() - began < SECONDS
    return said


@pytest.mark.parametrize(("name", "option"), CASES)
def test_options_of_tasks(captured, checkpoint, tmp_path: Path, name: str, option: str) -> None:
    text, head = INPUTS[name]
    source = shutil.copytree(checkpoint("bert", head), tmp_path / "model")
    operators.save(captured("bert", head).model, source / "model.onnx")
    windows = {"windows": "mean"} if (name, option) == ("embedding", "overlap") else {}

    def answered(value: int) -> None:
        model = open_model(source / "model.onnx", task={name: {option: value, **windows}})
        with Predictor(model, measure=False) as predictor:
            predictor([text] * 3)

    for value in LARGE:
        said = ends_well(lambda: answered(value))  # noqa: B023  # called at once
        assert said is None or option in said


@pytest.mark.parametrize("value", [2**33, 2**63])
@pytest.mark.parametrize(
    "place",
    [
        "seed",
        "benchmark.batch.0",
        "benchmark.sequence.0",
        "benchmark.repeats",
        "benchmark.requests",
        "benchmark.streams",
        "benchmark.threads",
        "benchmark.warmup",
        "finetune.batch",
        "finetune.accumulate",
        "finetune.layers",
        "qat.batch",
        "search.trials",
        "search.seed",
        "shape.batch",
        "shape.sequence",
        "shape.shorter.0",
        "task.graph.axes.tokens",
        "task.question-answering.n_best",
        "training.machines",
        "training.processes",
    ],
)
def test_numbers_of_recipes(place: str, value: int) -> None:
    *path, last = place.split(".")
    inner: Any = {last: value} if last != "0" else [value]
    for key in reversed(path):
        inner = {key: inner}
    recipe = {"model": "m", "task": "mrpc", "data": "d", **inner}
    if "search" in recipe:
        recipe["search"] = {"space": {"task.mrpc.max_length": [8, 9]}, **recipe["search"]}
    if "shape" in recipe:
        recipe["shape"] = {"sequence": 64, **recipe["shape"]}
    with pytest.raises(OctobertError, match=last if last != "0" else path[-1]):
        parse(recipe)


PLACES = [
    ("session", "options", "intra_op_num_threads"),
    ("session", "options", "inter_op_num_threads"),
    ("task", "options", "max_length"),
    ("task", "most_active"),
    ("task", "texts"),
    ("model", "sizes", "heads"),
    ("environment", "memory_bytes"),
]


@pytest.mark.parametrize("place", PLACES)
def test_numbers_of_packages(finished, tmp_path: Path, place: tuple[str, ...]) -> None:
    package = shutil.copytree(finished[1] / "ort-cpu", tmp_path / "package")
    manifest = json.loads((package / "octobert.json").read_text())

    def answered() -> None:
        with Predictor(package) as predictor:
            predictor([("the bank raised", "its rates")])

    part = manifest
    for key in place[:-1]:
        part = part[key]
    for value in (1, 10**9, 2**63):
        part[place[-1]] = value
        (package / "octobert.json").write_text(json.dumps(manifest))
        said = ends_well(answered)
        assert value < 2**63 or "octobert.json cannot be read" in str(said)
        assert "threads" not in place[-1] or value == 1 or said
