"""A target whose device is not here: its plan is evaluated on the CPU, and nothing claims that the device was asked."""

from __future__ import annotations

import csv

import numpy as np
import onnxruntime as ort
import pytest

from octobert.config.loading import parse
from octobert.core.measurements import score_named
from octobert.core.results import PackageManifest
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from octobert.report import summary
from octobert.report.verdict import verdict
from tests.support.columns import columns
from tests.support.pages import markup_of
from tests.support.runs import FAST, write_pairs

# A logit at the border of two classes, where sums are in another order.
ONE_ROW = 1 / 40
TARGETS = ["migraphx", "tensorrt"]


def recipe_for(model: str, source: str, **changes: object):
    data = {"source": source, "calibrate": {"from": "train", "samples": 24}}
    plain = {"model": model, "task": "text-classification", "data": data, "benchmark": FAST}
    return parse({**plain, "profile": False, **changes})


@pytest.fixture(scope="module")
def simulated(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulated")
    recipe = recipe_for(
        str(checkpoint("bert")),
        str(write_pairs(folder / "data")),
        targets=TARGETS,
        task={"text-classification": {"max_length": 32}},
    )
    return recipe, folder / "out", runner.run(recipe, folder / "out", executor=inline.run)


def test_scores_are_those_of_the_targets_file(simulated) -> None:
    recipe, out, report = simulated
    compared = {c.candidate: c for c in columns(report).comparisons}
    for target in TARGETS:
        assert target in columns(report).absent
        assert (compared[target].simulated, compared[target].reference) == (True, "ort-f32")
        assert compared[target].output_error > 0
        manifest = PackageManifest.model_validate_json((out / target / "octobert.json").read_text())
        assert manifest.comparison == compared[target]
        # Nothing was timed.
        assert target not in {one.candidate for one in columns(report).footprints}
    # ONNX Runtime runs the exported file, of one row of 32 tokens, as it is written.
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    path, tokenizer = (
        out / "migraphx" / "onnx" / "model_quantized.onnx",
        Tokenizer(out / "migraphx", 32),
    )
    session = ort.InferenceSession(str(path), settings)
    with open(f"{recipe.data.source}/validation.tsv", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    encoded = tokenizer.encode([(row["sentence1"], row["sentence2"]) for row in rows])
    answers = []
    for one in encoded:
        feeds = {
            name: np.pad(array, ((0, 0), (0, 32 - array.shape[1])))
            for name, array in feeds_of([one], tokenizer.pad_id).items()
        }
        read = {port.name: feeds[port.name] for port in session.get_inputs()}
        answers.append(int(session.run(None, read)[0].argmax()))
    right = np.mean(
        [answer == int(row["label"]) for answer, row in zip(answers, rows, strict=True)]
    )
    ours = score_named("accuracy", columns(report).scores["migraphx"])
    assert ours is not None
    assert ours.value == pytest.approx(right, abs=ONE_ROW)


def test_the_report_says_that_no_device_was_asked(simulated) -> None:
    _, out, report = simulated
    answer = verdict(report)
    assert answer.state == "unmeasured"
    assert answer.sentence.startswith(
        "Accuracy is simulated on the CPU, not run on the device: migraphx accuracy "
    )
    assert "octobert benchmark" in answer.reason
    for sentences in (summary.comparisons(report), summary.limitations(report)):
        for target in TARGETS:
            said = f"{target}, simulated", f"{target} was simulated"
            assert any(sentence.startswith(said) for sentence in sentences), target
    assert "migraphx (simulated)" in markup_of((out / "report.html").read_text())


def test_what_cannot_be_simulated_is_not(simulated, tmp_path) -> None:
    recipe, _, _ = simulated

    def evaluated(**changes: object) -> set[str]:
        changed = recipe.model_copy(update=changes)
        return {step.name for step in steps_of(changed) if step.stage == "evaluate"} & {
            f"evaluate/{target}" for target in (*TARGETS, "ort-cuda")
        }

    assert evaluated() == {f"evaluate/{target}" for target in TARGETS}
    assert evaluated(measure=False) == set()
    # The CPU has no kernels for bfloat16.
    brief = recipe_for(
        recipe.model,
        recipe.data.source,
        targets=["ort-cuda"],
        quantize={"float": {"float_parts": "bfloat16"}},
    )
    assert {s.name for s in steps_of(brief) if s.name == "evaluate/ort-cuda"} == set()
