"""Keys of steps: everything that a result depends on is in them, and nothing else."""

from __future__ import annotations

import pkgutil
import re
import shutil
import typing

import pytest

from octobert.config.loading import parse
from octobert.config.training import Training
from octobert.core import version
from octobert.engine import keys
from octobert.engine.contract import Context, StepResult, results_in, stage_named
from octobert.pipeline import runner, stages
from octobert.pipeline.planner import steps_of
from octobert.pipeline.stages import quantize
from tests.support.closure import packages_of
from tests.support.packages import forget_plugins
from tests.support.runs import FAST, warmed
from tests.support.stages import step_of

STAGES = [
    module.name
    for module in pkgutil.iter_modules(stages.__path__)
    if not module.name.startswith("_")
]


@pytest.fixture
def steps(checkpoint, pairs):
    recipe = {
        "model": str(checkpoint("bert")),
        "task": "text-classification",
        "data": {"source": str(pairs), "calibrate": {"from": "train", "samples": 24}},
        "targets": ["ort-cpu"],
        "benchmark": FAST,
        "profile": False,
    }
    return lambda **changes: {step.name: step for step in steps_of(parse({**recipe, **changes}))}


def classes_in(annotation: object) -> set[type]:
    """The classes that an annotation is made of."""
    inner = typing.get_args(annotation)
    if not inner:
        return {annotation} if isinstance(annotation, type) else set()
    return {each for part in inner for each in classes_in(part)}


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_typed_inputs_and_options(name: str) -> None:
    stage = stage_named(name)
    assert issubclass(stage.makes, StepResult)
    for field in stage.inputs.model_fields.values():
        made = classes_in(field.annotation) - {type(None), str}
        assert made, field
        assert all(issubclass(kind, StepResult) for kind in made), field
    for field in stage.options.model_fields.values():
        assert not any(issubclass(kind, StepResult) for kind in classes_in(field.annotation))
    assert typing.get_type_hints(stage.function)["context"] is Context


def test_a_mistyped_input_is_found_when_the_step_is_planned() -> None:
    capture, data = StepResult(step="capture"), StepResult(step="data")
    with pytest.raises(TypeError, match="ranges"):
        quantize.run.step("quantize/ort-cpu", capture=capture, data=data, float_graph=capture)
    with pytest.raises(ValueError, match="ranges"):
        quantize.run.inputs(capture=capture, data=data, float_graph=capture, before=None)


def test_every_input_of_a_plan_is_made_before_it_is_read(steps) -> None:
    made = set()
    for step in steps(sensitivity=True, accuracy={"max_drop": 0.1}).values():
        assert {result.step for _, result in results_in(step.inputs)} <= made
        made.add(step.name)


def test_names_and_places_do_not_count_but_content_does(steps, checkpoint, pairs, tmp_path) -> None:
    before = steps()
    copy, rows = tmp_path / "elsewhere", tmp_path / "rows"
    shutil.copytree(checkpoint("bert"), copy)
    shutil.copytree(pairs, rows)
    data = {"source": str(rows), "calibrate": {"from": "train", "samples": 24}}
    after = steps(model=str(copy), data=data)
    for name in ("data", "capture", "transform", "quantize/ort-cpu", "evaluate/ort-f32"):
        digests = dict.fromkeys(before[name].needs, "x")
        assert keys.key_of(before[name], digests) == keys.key_of(after[name], digests)
    with (rows / "train.tsv").open("a") as stream:
        stream.write("one more\trow\t1\n")
    assert keys.key_of(steps(data=data)["data"], {}) != keys.key_of(before["data"], {})


def test_how_a_training_is_carried_out_does_not_count(steps) -> None:
    finetune = {"epochs": 1}
    plain, many = steps(finetune=finetune), steps(finetune=finetune, training={"processes": 2})
    other = steps(finetune={"epochs": 2})
    digests = {"data": "x"}
    assert keys.key_of(plain["finetune"], digests) == keys.key_of(many["finetune"], digests)
    assert keys.key_of(plain["finetune"], digests) != keys.key_of(other["finetune"], digests)
    assert many["finetune"].options.lesson.training == Training(processes=2)


def test_another_version_of_octobert_is_another_key(steps, monkeypatch) -> None:
    step = steps()["capture"]
    before = keys.key_of(step, {})
    monkeypatch.setattr(version, "__version__", "9.9.9")
    assert keys.key_of(step, {}) != before


# Packages whose code makes, converts or runs a model, and the stages that use them.
MAKERS = {
    "torch": {"capture", "finetune", "qat", "quantize", "evaluate", "benchmark", "simulate"},
    "transformers": {"capture", "finetune", "qat", "evaluate", "benchmark", "simulate"},
    "safetensors": {"capture", "finetune", "qat"},
    "accelerate": {"finetune", "qat"},
    "onnxscript": {"capture", "export"},
    "onnx-ir": {"capture", "transform", "quantize", "search", "export", "sweep"},
    "onnxruntime": {
        "capture",
        "transform",
        "observe",
        "search",
        "export",
        "evaluate",
        "benchmark",
        "sweep",
    },
    "openvino": {"search", "export", "evaluate", "benchmark", "sweep"},
    "numpy": set(STAGES),
    "tokenizers": {
        "data",
        "capture",
        "finetune",
        "qat",
        "observe",
        "evaluate",
        "benchmark",
        "package",
    },
    "datasets": {"data"},
}


def test_the_version_of_what_makes_a_model_is_in_its_key(steps, monkeypatch) -> None:
    """In that of every stage that uses it: a result of another version is not served."""
    planned = {
        step.stage: step
        for step in steps(
            finetune={"epochs": 1}, qat={"epochs": 1}, accuracy={"max_drop": 1}
        ).values()
    }
    before, real = (
        {stage: keys.key_of(step, {}) for stage, step in planned.items()},
        keys.metadata.version,
    )
    for package, users in MAKERS.items():
        monkeypatch.setattr(
            keys.metadata,
            "version",
            lambda name, other=package: "0.0" if name == other else real(name),
        )
        forget_plugins()
        changed_keys = {
            stage for stage, step in planned.items() if keys.key_of(step, {}) != before[stage]
        }
        assert {
            stage for stage in STAGES if keys.package_versions(stage).get(package) == "0.0"
        } >= users, package
        assert changed_keys >= users & set(planned), package
    monkeypatch.undo()
    forget_plugins()


# What stages import and no result depends on: places and locks of files, the machine's memory, progress, downloads.
COMPUTES_NOTHING = {
    "filelock",
    "huggingface_hub",
    "packaging",
    "platformdirs",
    "psutil",
    "pydantic_core",
    "tqdm",
}


@pytest.mark.parametrize("name", STAGES)
def test_every_package_that_a_stage_imports_counts(name: str) -> None:
    counted = {re.sub("[-_.]+", "-", each).lower() for each in keys.package_versions(name)}
    used = {
        re.sub("[-_.]+", "-", each).lower()
        for each in packages_of(f"octobert.pipeline.stages.{name}")
    }
    assert used - counted <= {re.sub("_", "-", each) for each in COMPUTES_NOTHING}


def test_a_new_runtime_trains_nothing_again(steps, monkeypatch) -> None:
    """A training takes hours. Neither another version of a runtime nor its absence changes what it makes."""
    before = {name: keys.key_of(step, {}) for name, step in steps(finetune={"epochs": 1}).items()}
    real = keys.metadata.version
    monkeypatch.setattr(
        keys.metadata, "version", lambda name: "0.0" if name == "openvino" else real(name)
    )
    forget_plugins()
    after = {name: keys.key_of(step, {}) for name, step in steps(finetune={"epochs": 1}).items()}
    kept = {name for name in before if after[name] == before[name]}
    assert {"data", "finetune", "capture", "transform", "observe", "calibrate"} <= kept
    assert not {"quantize/ort-cpu", "export/ort-cpu", "evaluate/ort-cpu"} & kept
    monkeypatch.undo()
    forget_plugins()


def test_what_another_version_made_is_not_served(finished, tmp_path, monkeypatch) -> None:
    recipe, source, _ = finished
    out = warmed(source, tmp_path / "out", "data", "capture")
    step = step_of(recipe, "data")
    assert {v.step: v.action for v in runner.dry_run(recipe, out)}["data"] == "reuse"
    monkeypatch.setattr(version, "__version__", "9.9.9")
    assert step.stage == "data"
    assert {v.action for v in runner.dry_run(recipe, out)} == {"run"}
