"""What other texts of a batch do to an answer: which of the three a package is, and the option that makes it exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import octobert
from octobert import targets
from octobert.config.loading import parse
from octobert.core import plugins
from octobert.engine.executors import inline
from octobert.pipeline import runner
from tests.support.cli import octobert as octobert_cli

WORDS = ("the", "of", "and", "a", "to", "in")


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of texts of many lengths."""
    generator = np.random.default_rng(seed)
    return [
        tuple(" ".join(generator.choice(WORDS, generator.integers(1, 25))) for _ in range(2))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def dynamic(finished, tmp_path_factory) -> Path:
    """Packages whose ranges are computed when they run: on ONNX Runtime one for all rows."""
    out = tmp_path_factory.mktemp("dynamic") / "out"
    recipe = parse(
        {
            "model": str(finished[0].model),
            "task": "text-classification",
            "targets": ["ort-cpu"],
            "data": {"source": str(finished[0].data.source)},
            "quantize": "dynamic",
            "measure": False,
        }
    )
    runner.run(recipe, out, executor=inline.run)
    return out


def test_the_state_of_each_form(finished, dynamic) -> None:
    of: Callable[[Path], str] = lambda package: octobert.verify(package).batches.state  # noqa: E731
    assert of(finished[1] / "ort-cpu") == "exact"
    assert of(finished[1] / "openvino-cpu") == "bounded"
    effect = octobert.verify(dynamic / "ort-cpu").batches
    assert effect.state == "depends"
    assert effect.difference > 1e-3


def test_the_command_runs_the_model_unless_told_not_to(finished) -> None:
    package = str(finished[1] / "ort-cpu")
    done = octobert_cli("verify", package)
    assert "the same to the last bit alone, padded and in any batch" in done.stdout
    (quiet,) = json.loads(octobert_cli("verify", package, "--no-run", "--json").stdout)
    assert quiet["batches"] is None


@pytest.mark.parametrize("goal", ["latency", "throughput"])
@pytest.mark.parametrize("form", ["openvino-cpu", "dynamic"])
def test_alone_answers_do_not_depend_on_other_texts(
    finished, dynamic, form: str, goal: str
) -> None:
    package = dynamic / "ort-cpu" if form == "dynamic" else finished[1] / form
    asked = pairs(8, 0)
    answers = []
    for seed in range(3):
        others = pairs(6, seed + 1)
        with octobert.load(package, goal=goal, alone=True, measure=bool(seed)) as model:
            together = others[:seed] + asked + others
            streamed = list(model.stream(together))
            assert model(together) == streamed
            answers.append(streamed[seed : seed + len(asked)])
            answers.append([model([pair])[0] for pair in asked])
    assert all(one == answers[0] for one in answers)


def test_static_forms_of_onnx_runtime_need_no_option(finished) -> None:
    asked, others = pairs(30, 0), pairs(30, 1)
    with octobert.load(finished[1] / "ort-cpu", goal="throughput") as model:
        alone = [model([pair])[0] for pair in asked]
        assert model(asked) == alone
        assert list(model.stream([*others, *asked]))[len(others) :] == alone


def test_no_target_claims_what_was_not_tried() -> None:
    claims = {
        name for name in plugins.names("targets") if targets.load(name).capabilities.exact_rows
    }
    assert claims == {"ort-cpu"}
