"""What finished packages answer on the processor that this runs on. It needs what prediction needs, and starts no process."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import octobert
from octobert import targets
from octobert.core import environment
from octobert.core.closeness import BatchEffect
from octobert.core.session import SessionOptions
from octobert.data.encoded import feeds_of
from octobert.evaluation.candidates import floating_of
from octobert.inference.invariance import batch_effect
from octobert.inference.opened import FinishedModel, open_model
from octobert.targets.runtimes.ort import OrtRuntime

# Beside `out`, the folder of a kind's packages: a list of what the model is asked.
INPUTS = "inputs.json"
# Name of an output → what it is for each text alone, [1, …].
Outputs = dict[str, list[np.ndarray]]


@dataclass(frozen=True)
class Answered:
    """What one package answers.

    Args:
        alone, together, backwards: the answers to each text in a call of its own, to all in one, and to all in another order,
            put back into the first.
        batches: what `octobert verify` says of rows in batches; None for a graph of any kind, and a target without exact rows.
        outputs: of the 8-bit file.
        floats: of its float file.
        halves: of its float file with products in bfloat16; None where the target has no such baseline here.
    """

    alone: list[dict[str, Any]]
    together: list[dict[str, Any]]
    backwards: list[dict[str, Any]]
    batches: BatchEffect | None
    outputs: Outputs
    floats: Outputs
    halves: Outputs | None


@dataclass(frozen=True)
class Seen:
    """A processor as octobert sees it, and what packages answer on it.

    Args:
        features: instructions that matter for 8-bit arithmetic.
        findings: the sentences of `octobert doctor`.
        no_bfloat16: why ONNX Runtime does not multiply in bfloat16; None where it does.
        packages: (kind, target) → answers.
    """

    features: tuple[str, ...]
    findings: tuple[str, ...]
    no_bfloat16: str | None
    packages: dict[tuple[str, str], Answered]


def see(folder: Path) -> Seen:
    """Describe the processor, and ask all packages `KIND/out/TARGET` of a folder."""
    here = environment.current()
    no_bfloat16 = OrtRuntime().precision_problem("bf16")
    packages = {
        (package.parts[-3], package.name): _answered(package, halves=no_bfloat16 is None)
        for package in sorted(folder.glob("*/out/*-cpu"))
    }
    return Seen(here.features, tuple(environment.findings(here)), no_bfloat16, packages)


def _answered(package: Path, *, halves: bool) -> Answered:
    opened, inputs = open_model(package), json.loads((package.parents[1] / INPUTS).read_text())
    floating = floating_of(opened)
    assert floating is not None
    # Rows of a batch are computed together with this goal.
    with octobert.load(package, goal="throughput", measure=False) as model:
        alone, together = [model([each])[0] for each in inputs], model(inputs)
        backwards = model(inputs[::-1])[::-1]
    return Answered(
        alone,
        together,
        backwards,
        batch_effect(opened) if targets.load(opened.target).capabilities.exact_rows else None,
        _outputs(opened, inputs, "f32"),
        _outputs(floating[0], inputs, "f32"),
        _outputs(floating[0], inputs, "bf16") if halves and opened.target == "ort-cpu" else None,
    )


def _outputs(model: FinishedModel, inputs: list[Any], precision: str) -> Outputs:
    """What a file computes of each text alone."""
    task = model.rebuilt()
    texts = [task.parse(each, where=INPUTS) for each in inputs]
    session = model.session(SessionOptions(precision=precision))
    assert session.precision == precision
    rows = task.encode(model.tokenizer(task), texts).flat
    results = [session.run(feeds_of([row], 0)) for row in rows]
    return {name: [result[name] for result in results] for name in results[0]}


def write(folder: str, path: str) -> None:
    """Write what `see` finds."""
    Path(path).write_bytes(pickle.dumps(see(Path(folder))))
