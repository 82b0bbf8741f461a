"""Keys of steps: everything that a result depends on is in them, and nothing else."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import shutil
import typing
from pathlib import Path

import pytest

import octobert
from octobert.config.loading import parse
from octobert.config.training import Training
from octobert.core import version
from octobert.pipeline import keys, runner, stages
from octobert.pipeline.contract import Context, StepResult, results_in, signature_of
from octobert.pipeline.planner import steps_of
from tests.support.runs import FAST, warmed
from tests.support.stages import step_of

ROOT = Path(octobert.__file__).parent
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


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_typed_inputs_and_options(name: str) -> None:
    stage = importlib.import_module(f"octobert.pipeline.stages.{name}")
    signature = signature_of(stage.run)
    for field in signature.inputs.model_fields.values():
        assert "StepResult" in str(field.annotation), "an input is what a step made"
    for field in signature.options.model_fields.values():
        assert "StepResult" not in str(field.annotation), "an option is no input"
    assert typing.get_type_hints(stage.run)["context"] is Context


def test_a_mistyped_input_is_found_when_the_step_is_planned() -> None:
    from octobert.pipeline.stages import quantize

    with pytest.raises(ValueError, match="ranges"):
        signature_of(quantize.run).inputs(
            capture=StepResult(step="capture"),
            data=StepResult(step="data"),
            float_graph=StepResult(step="capture"),
        )


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


def test_another_version_of_octobert_or_of_a_package_is_another_key(steps, monkeypatch) -> None:
    step = steps()["capture"]
    before = keys.key_of(step, {})
    monkeypatch.setattr(version, "__version__", "9.9.9")
    assert keys.key_of(step, {}) != before
    monkeypatch.undo()
    packages = dict(keys.package_versions("capture"))
    assert {"torch", "transformers", "onnxruntime", "onnx-ir"} <= set(packages)
    monkeypatch.setattr(keys, "package_versions", lambda stage: {**packages, "onnxruntime": "1.0"})
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


def forget() -> None:
    """Read the versions of packages again."""
    keys._version.cache_clear()
    keys.package_versions.cache_clear()


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
        forget()
        changed_keys = {
            stage for stage, step in planned.items() if keys.key_of(step, {}) != before[stage]
        }
        assert {
            stage for stage in STAGES if keys.package_versions(stage).get(package) == "0.0"
        } >= users, package
        assert changed_keys >= users & set(planned), package
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize("name", STAGES)
def test_a_change_of_any_module_that_a_stage_imports_is_another_key(name: str) -> None:
    """The closure holds what Python imports when the stage is imported, and what functions import later."""
    closure = keys.closure(f"{keys.STAGES}.{name}")
    # As Python has it: everything loaded by importing the stage's own imports at the top of files.
    loaded, waiting = set(), [f"{keys.STAGES}.{name}"]
    while waiting:
        module = waiting.pop()
        if module in loaded or not module.startswith("octobert.") or module not in closure:
            continue
        loaded.add(module)
        for node in ast.parse(closure[module].read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.ImportFrom)
                and node.module
                and node.module.startswith("octobert")
            ):
                assert node.module == "octobert" or node.module in closure, (
                    f"{module} imports {node.module}"
                )
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    assert len(loaded) > 5


def test_code_counts_and_only_what_a_stage_imports(tmp_path) -> None:
    root = tmp_path / "octobert"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))

    def digest(stage: str) -> dict[str, str]:
        return {
            name: path.read_text()
            for name, path in keys.closure(f"{keys.STAGES}.{stage}", root).items()
        }

    before = {stage: digest(stage) for stage in STAGES}
    for changed_file, counts, does_not in (
        ("graph/qdq.py", {"quantize", "search", "sweep", "transform"}, {"data"}),
        ("quantization/calibrators/mse.py", {"calibrate", "sweep"}, {"data", "capture"}),
        (
            "targets/openvino_cpu.py",
            {"export", "evaluate", "quantize", "benchmark"},
            {"data", "capture", "calibrate"},
        ),
        ("training/trainer.py", {"finetune", "qat"}, {"data", "observe", "calibrate"}),
        ("cli/main.py", set(), set(STAGES)),
    ):
        file = root / changed_file
        content = file.read_text()
        file.write_text(content + "\nCHANGED = True\n")
        different = {stage for stage in STAGES if digest(stage) != before[stage]}
        file.write_text(content)
        assert counts <= different, changed_file
        assert not does_not & different, changed_file


def test_what_another_version_made_is_not_served(finished, tmp_path, monkeypatch) -> None:
    recipe, source, _ = finished
    out = warmed(source, tmp_path / "out", "data", "capture")
    step = step_of(recipe, "data")
    assert {v.step: v.action for v in runner.dry_run(recipe, out)}["data"] == "reuse"
    monkeypatch.setattr(version, "__version__", "9.9.9")
    assert step.stage == "data"
    assert {v.action for v in runner.dry_run(recipe, out)} == {"run"}
