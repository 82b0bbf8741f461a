"""Fine-tuning: a base encoder becomes a model of a task and goes through the whole pipeline; interruptions, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file

import octobert
from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.config.training import Training
from octobert.core.errors import DataError, ModelError, OctobertError, RecipeError
from octobert.core.evidence import Curve, Evidence
from octobert.core.progress import ProgressEvent
from octobert.engine.contract import Request
from octobert.engine.executors import inline, local
from octobert.models.heads import check_head, has_head
from octobert.models.source import resolve
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from tests.support import cli
from tests.support.checkpoints import WORDS
from tests.support.columns import columns
from tests.support.pooling import write_modules
from tests.support.stages import Call, call_of, request_of, step_of, stored

TRAINING = {
    "epochs": 6,
    "learning_rate": 1e-2,
    "batch": 16,
    "schedule": "constant_with_warmup",
    "warmup": 0.05,
}


def questions(count: int, seed: int) -> list[dict]:
    """The answer is the one number of the context: words alone tell it."""
    generator, rows = np.random.default_rng(seed), []
    for index in range(count):
        words = [WORDS[i] for i in generator.integers(0, len(WORDS), 5 + index % 7)]
        words[int(generator.integers(len(words)))] = str(generator.integers(10))
        context = " ".join(words) + f" {'abcdefghij'[seed]}{index}x"
        answer = next(word for word in words if word.isdigit())
        # The number that stands in the last word is no answer.
        start = (" " + context + " ").index(f" {answer} ")
        rows.append(
            {
                "id": f"{seed}-{index}",
                "question": "they had",
                "context": context,
                "answers": {"text": [answer], "answer_start": [start]},
            }
        )
    return rows


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


def recipe_for(base: Path, folder: Path, **changes: object) -> Recipe:
    plain = {
        "model": str(base),
        "task": "squad",
        "data": {"source": str(folder), "calibrate": {"from": "train", "samples": 32}},
        "finetune": TRAINING,
        "targets": ["ort-cpu"],
        "baselines": ["torch-f32"],
        "benchmark": {"batch": [1], "sequence": [16], "repeats": 3},
        "profile": False,
    }
    return parse({**plain, **changes})


@pytest.fixture(scope="module")
def answering(tmp_path_factory) -> Path:
    """A folder with train.jsonl and validation.jsonl."""
    folder = tmp_path_factory.mktemp("answering")
    write(folder / "train.jsonl", questions(160, 0))
    write(folder / "validation.jsonl", questions(40, 1))
    return folder


@pytest.fixture(scope="module")
def finished(checkpoint, answering, tmp_path_factory):
    """One whole run from a base encoder: (recipe, output directory, report, progress of the training)."""
    recipe, out, seen = (
        recipe_for(checkpoint("bert", "embedding"), answering),
        tmp_path_factory.mktemp("finetuned"),
        [],
    )

    def watch(event: ProgressEvent) -> None:
        if (event.step, event.state) == ("finetune", "running"):
            seen.append((event.done, event.total))

    return recipe, out, runner.run(recipe, out, watch, executor=inline.run), seen


def context_for(
    recipe: Recipe, folder: Path, data: Path, minutes: float = 5.0, **settings: object
) -> Call:
    """The fine-tuning stage in this process."""
    how = Training(checkpoint_minutes=minutes)
    return call_of(
        step_of(recipe, "finetune"),
        folder,
        {"data": data},
        lesson={"training": how, "settings": settings},
    )


def data_of(recipe: Recipe, folder: Path) -> dict:
    """What the data stage writes for a recipe, by file."""
    context = call_of(step_of(recipe, "data"), folder / "data", {})
    context.run()
    context.work.rename(folder / "rows")
    return {path.stem: json.loads(path.read_text()) for path in (folder / "rows").glob("*.json")}


def test_a_base_encoder_learns_and_its_8_bits_answer_as_it_does(finished) -> None:
    _, out, report, seen = finished
    steps = 6 * 160 // 16
    assert seen[0][1] == steps
    assert seen[-1] == (steps, steps)
    summary = report.stages["finetune"].summary
    assert (summary["steps"], summary["texts"]) == (steps, 160)
    assert summary["loss"] < 0.5, "ln(12) is what guessing costs"
    (curve,) = Evidence.model_validate_json((out / "evidence.json").read_text()).curves
    assert (curve.name, curve.steps) == ("finetune", tuple(range(1, steps + 1)))
    assert np.mean(curve.values["loss"][-steps // 10 :]) == pytest.approx(summary["loss"])
    rates = curve.values["learning rate"]
    assert rates[0] < rates[-1] == TRAINING["learning_rate"], "it warms up, then stays"
    scores = {name: {s.metric: s.value for s in of} for name, of in columns(report).scores.items()}
    # What was trained is what the float baselines and the package are made of.
    assert scores["torch-f32"] == scores["ort-f32"]
    assert scores["ort-f32"]["exact"] > 0.9
    comparison = next(c for c in columns(report).comparisons if c.candidate == "ort-cpu")
    assert comparison.fidelity >= 0.9
    assert scores["ort-cpu"]["f1"] >= scores["ort-f32"]["f1"] - 0.1
    assert report.data.training_rows == 160
    model = octobert.load(out / "ort-cpu")
    answer = model([("they had", "to the of 7 and in")])[0]
    assert (answer["answer"], answer["start"], answer["end"]) == ("7", 10, 11)


@pytest.mark.slow
def test_an_embedding_model_becomes_a_classifier_alone(checkpoint, tmp_path) -> None:
    """Its pooling does not follow the new head: the checkpoint is one that the task opens again."""
    base = tmp_path / "embedder"
    shutil.copytree(checkpoint("bert", "embedding"), base)
    write_modules(base, [("Pooling", {"word_embedding_dimension": 32}), ("Normalize", None)])
    texts = (f"{WORDS[i % 8]} {WORDS[i % 5]} {i}" for i in range(40))
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(texts)]
    others = [{**row, "text": f"{row['text']} they"} for row in rows[:8]]
    data = {"train": write(tmp_path / "train.jsonl", rows)}
    data["validation"] = write(tmp_path / "validation.jsonl", others)
    settings = {"epochs": 1, "batch": 16}
    recipe = {"model": str(base), "task": "text-classification", "data": data}
    octobert.finetune({**recipe, "finetune": settings}, tmp_path / "out")
    trained = tmp_path / "out" / "checkpoint"
    assert not (trained / "modules.json").exists()
    check_head(resolve(trained), "sequence-classification")


def test_running_again_does_not_train_again(finished) -> None:
    recipe, out, *_ = finished
    assert {v.action for v in runner.dry_run(recipe, out)} == {"reuse"}
    more = recipe.model_copy(
        update={"finetune": recipe.finetune.model_copy(update={"epochs": 7.0})}
    )
    verdicts = {v.step: v.action for v in runner.dry_run(more, out)}
    assert (verdicts["data"], verdicts["finetune"], verdicts["capture"]) == ("reuse", "run", "run")


class Killed(BaseException):
    pass


def test_training_that_is_killed_and_resumed_ends_with_the_same_weights(finished, tmp_path) -> None:
    recipe, out, report, _ = finished
    step, scratch = step_of(recipe, "finetune"), tmp_path / "scratch"

    def request(minutes: float) -> Request:
        how = Training(checkpoint_minutes=minutes)
        return request_of(step, scratch, {"data": stored(out, "data")}, lesson={"training": how})

    def kill(what: str, done: int, total: int) -> None:
        # The executor ends the child with SIGKILL when its caller is stopped.
        if done > 20 and list(scratch.glob("trainer/checkpoint-*/trainer_state.json")):
            raise Killed

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with pytest.raises(Killed):
        local.run(request(1e-9), tmp_path / "first", kill)
    assert not list((tmp_path / "first" / "checkpoint").glob("*.safetensors"))
    # The newest may be half written; what comes of half a checkpoint is tested below.
    saved = max(
        int(path.parent.name.split("-")[1])
        for path in scratch.glob("trainer/checkpoint-*/complete")
    )
    seen: list[int] = []
    result = inline.run(
        request(5), tmp_path / "second", lambda what, done, total: seen.append(done)
    )
    assert seen[0] == saved + 1 > 19
    for fact in ("steps", "loss"):
        assert result.summary[fact] == pytest.approx(
            report.stages["finetune"].summary[fact], abs=1e-5
        ), fact
    curve, whole = (
        Curve.model_validate_json((f / "curve.json").read_text())
        for f in (tmp_path / "second", stored(out, "finetune"))
    )
    assert curve.steps == whole.steps == tuple(range(1, len(whole.steps) + 1)), (
        "steps before the interruption are kept"
    )
    for name in ("loss", "learning rate"):
        assert curve.values[name] == pytest.approx(whole.values[name], abs=1e-5), name
    config = (tmp_path / "second" / "checkpoint" / "config.json").read_text()
    assert config == (stored(out, "finetune") / "checkpoint" / "config.json").read_text()
    expected = load_file(stored(out, "finetune") / "checkpoint" / "model.safetensors")
    resumed = load_file(tmp_path / "second" / "checkpoint" / "model.safetensors")
    assert set(resumed) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(resumed[name], array, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("damage", ["trainer_state.json", "optimizer.pt", "model.safetensors"])
def test_a_checkpoint_that_was_cut_short_does_not_end_the_training_for_good(
    finished, tmp_path, damage: str
) -> None:
    """What a kill in the middle of saving leaves behind: files that are missing or half there, and not the last one; or a disk that fails."""
    recipe, out, *_ = finished
    first = context_for(recipe, tmp_path / "first", stored(out, "data"), minutes=1e-9, epochs=0.2)
    assert first.run()["steps"] == 2
    second = context_for(recipe, tmp_path / "second", stored(out, "data"), minutes=1e-9, epochs=0.3)
    shutil.copytree(first.scratch, second.scratch)
    # Fewer epochs are another training; here they only make the first end early.
    (second.scratch / "identity.json").unlink()
    last = max(second.scratch.glob("trainer/checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    (last / damage).write_bytes((last / damage).read_bytes()[:100])
    if damage != "model.safetensors":
        (last / "complete").unlink()
    assert second.run()["steps"] == 3


def test_a_loss_that_is_no_number_names_the_step(golden, finished, tmp_path) -> None:
    recipe, out, *_ = finished
    context = context_for(recipe, tmp_path, stored(out, "data"), learning_rate=1e30, warmup=0.0)
    with golden.raises(ModelError):
        context.run()


@pytest.mark.parametrize(
    "precision",
    [
        "bfloat16",
        pytest.param(
            "float16",
            marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ),
    ],
)
def test_training_in_half_precision_keeps_float32_weights(finished, tmp_path, precision) -> None:
    recipe, out, *_ = finished
    losses, computed = {}, set()

    def watch(module, inputs, output) -> None:
        if isinstance(module, torch.nn.Linear):
            computed.add(output.dtype)

    for name in ("float32", precision):
        context = context_for(
            recipe, tmp_path / name, stored(out, "data"), precision=name, epochs=0.5
        )
        handle = torch.nn.modules.module.register_module_forward_hook(watch)
        context.run()
        handle.remove()
        curve = json.loads((context.work / "curve.json").read_text())
        losses[name] = curve["values"]["loss"][-1]
        weights = load_file(next(context.work.rglob("*.safetensors")))
        assert {tensor.dtype for tensor in weights.values()} == {np.dtype(np.float32)}
        assert all(np.isfinite(tensor).all() for tensor in weights.values())
    assert getattr(torch, precision) in computed
    assert losses[precision] == pytest.approx(losses["float32"], rel=0.1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU trains in float16")
def test_float16_is_refused_where_it_would_silently_be_float32(
    golden, checkpoint, answering
) -> None:
    recipe = recipe_for(
        checkpoint("bert", "embedding"), answering, finetune={"precision": "float16"}
    )
    with golden.raises(RecipeError):
        steps_of(recipe)


def test_a_new_head_is_the_same_for_the_same_seed(finished, tmp_path) -> None:
    recipe, out, *_ = finished
    losses = []
    for name in ("one", "two"):
        context = context_for(recipe, tmp_path / name, stored(out, "data"), epochs=0.1)
        context.run()
        losses.append(
            load_file(context.work / "checkpoint" / "model.safetensors")["qa_outputs.weight"]
        )
    np.testing.assert_array_equal(*losses)


SENTENCES = [
    {"text": f"{WORDS[i % 28]} {WORDS[i % 5]} x{i}", "label": ("sad", "glad", "mad")[i % 3]}
    for i in range(60)
]
TAGGED = [
    {"tokens": [WORDS[i % 28], f"y{i}"], "ner_tags": ["O", ("I-PER", "B-LOC")[i % 2]]}
    for i in range(60)
]


@pytest.mark.parametrize(
    ("task", "rows", "labels"),
    [
        ("text-classification", SENTENCES, ["glad", "mad", "sad"]),
        ("token-classification", TAGGED, ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]),
    ],
)
def test_classes_of_a_new_head_come_from_the_training_rows(
    checkpoint, tmp_path, task: str, rows: list, labels: list
) -> None:
    write(tmp_path / "train.jsonl", rows[:40])
    write(tmp_path / "dev.jsonl", rows[40:])
    recipe = recipe_for(checkpoint("bert", "embedding"), tmp_path, task=task)
    assert {
        step.options.spec.stated.labels
        for step in steps_of(recipe)
        if hasattr(step.options, "spec")
    } == {tuple(labels)}
    data_of(recipe, tmp_path)
    context = context_for(recipe, tmp_path / "run", tmp_path / "rows", epochs=0.5)
    context.run()
    config = json.loads((context.work / "checkpoint" / "config.json").read_text())
    assert config["id2label"] == {str(i): name for i, name in enumerate(labels)}
    assert len(
        load_file(context.work / "checkpoint" / "model.safetensors")["classifier.bias"]
    ) == len(labels)


def test_classes_that_differ_only_by_case_are_refused(golden, checkpoint, tmp_path) -> None:
    rows = [{"text": f"the of {i}", "label": ("good", "bad", "Good")[i % 3]} for i in range(60)]
    write(tmp_path / "train.jsonl", rows[:40])
    write(tmp_path / "dev.jsonl", rows[40:])
    recipe = recipe_for(checkpoint("bert", "embedding"), tmp_path, task="text-classification")
    with golden.raises(DataError):
        steps_of(recipe)
    named = {"text-classification": {"labels": ["bad", "good"]}}
    steps_of(recipe_for(checkpoint("bert", "embedding"), tmp_path, task=named))


def test_a_model_with_the_head_keeps_its_classes(checkpoint, tmp_path) -> None:
    for name, part in (("train", range(40)), ("dev", range(40, 60))):
        write(tmp_path / f"{name}.jsonl", [{"text": f"the of {i}", "label": i % 2} for i in part])
    recipe = recipe_for(checkpoint("bert"), tmp_path, task="text-classification")
    assert step_of(recipe, "finetune").options.lesson.spec.stated.labels == ("different", "same")


def test_rows_that_a_search_is_held_against_are_not_trained_on(
    checkpoint, answering, tmp_path
) -> None:
    data = {
        "source": str(answering),
        "calibrate": {"from": "train", "samples": 8},
        "tune": {"from": "train", "samples": 50},
    }
    recipe = recipe_for(
        checkpoint("bert", "embedding"), answering, data=data, accuracy={"max_drop": 0.1}
    )
    result = data_of(recipe, tmp_path)
    parts = {
        "training": result["training"],
        "tuning": result["tuning"][-1],
        "evaluation": result["evaluation"],
    }
    trained, tuned, evaluated = (
        {context for _, context in part["inputs"]} for part in parts.values()
    )
    assert (len(trained), len(tuned), len(evaluated)) == (110, 50, 40)
    assert not trained & (tuned | evaluated)
    assert not tuned & evaluated


def test_rows_that_are_evaluated_are_refused_or_left_out(
    golden, checkpoint, answering, tmp_path
) -> None:
    """Another question about an evaluated passage gives the passage away."""
    leaked = [
        {**row, "id": f"x{row['id']}", "question": "who was it"} for row in questions(40, 1)[:5]
    ]
    write(tmp_path / "train.jsonl", [*questions(60, 2), *leaked])
    shutil.copyfile(answering / "validation.jsonl", tmp_path / "validation.jsonl")
    settings = {"source": str(tmp_path), "calibrate": {"from": "train", "drop_evaluated": True}}
    model = checkpoint("bert", "embedding")
    for name in "abc":
        (tmp_path / name).mkdir()
    with golden.raises(DataError):
        data_of(recipe_for(model, tmp_path, data=settings), tmp_path / "a")
    settings["finetune"] = {"from": "train", "drop_evaluated": True}
    assert (
        len(
            data_of(recipe_for(model, tmp_path, data=settings), tmp_path / "b")["training"][
                "inputs"
            ]
        )
        == 60
    )
    settings["finetune"] = {"from": "train", "drop_evaluated": True, "samples": 10}
    assert (
        len(
            data_of(recipe_for(model, tmp_path, data=settings), tmp_path / "c")["training"][
                "inputs"
            ]
        )
        == 10
    )


def test_what_cannot_be_trained_is_refused_before_anything_runs(
    checkpoint, answering, tmp_path, monkeypatch
) -> None:
    base = checkpoint("bert", "embedding")
    path = shutil.copytree(base, tmp_path / "onnx") / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [], [])), path)
    single = write(tmp_path / "all.jsonl", questions(20, 3))
    cases = [
        ({"model": str(path)}, RecipeError, "only a checkpoint can be trained"),
        (
            {"task": {"embedding": {"text": "context"}}},
            RecipeError,
            "embeddings can be trained by a teacher only",
        ),
        (
            {"data": single},
            DataError,
            r"fine-tuning needs rows of its own \(got one file, .*all.jsonl\); give train=",
        ),
        (
            {"finetune": {"epochs": -1}},
            RecipeError,
            "finetune.epochs: input should be greater than or equal to 0",
        ),
        ({"finetune": {"lr": 1}}, RecipeError, "finetune.lr: unknown key"),
    ]
    for change, error, message in cases:
        with pytest.raises(error, match=message):
            runner.run(recipe_for(base, answering, **change), tmp_path / "out")
    monkeypatch.setattr("octobert.pipeline.preflight.train_installed", lambda: False)
    with pytest.raises(RecipeError, match=r"training needs accelerate; pip install .*\[train\]'"):
        runner.run(recipe_for(base, answering), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_answer_that_cannot_be_learned_is_refused(golden, checkpoint, tmp_path) -> None:
    rows = questions(20, 4)
    rows[3]["answers"] = "nowhere"
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "dev.jsonl", questions(10, 5))
    recipe = recipe_for(checkpoint("bert", "embedding"), tmp_path)
    data_of(recipe, tmp_path)
    with golden.raises(OctobertError):
        context_for(recipe, tmp_path / "run", tmp_path / "rows").run()


@pytest.mark.slow
def test_the_command_trains_judges_and_leaves_a_checkpoint(checkpoint, answering, tmp_path) -> None:
    common = (
        checkpoint("bert", "embedding"),
        "--task",
        "squad",
        "--data",
        answering,
        "--out",
        tmp_path / "out",
        "--epochs",
        "0.2",
    )
    done = cli.octobert("finetune", *common, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trained"]["steps"] == 2
    assert {score["metric"] for score in result["scores"]} >= {"exact", "f1"}
    assert has_head(resolve(tmp_path / "out" / "checkpoint"), "question-answering")
    # What was trained can be trained on, and is not trained again.
    again = cli.octobert("finetune", *common)
    assert again.returncode == 0
    assert re.search(r"finetune +reused", again.stderr)
    assert "trained on 160" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--qat", "--both"), 2, "--qat and --both exclude each other"),
        (("--qat",), 4, "the checkpoint has no question-answering head"),
        (
            ("--teacher", "self", "--epochs", "-1"),
            2,
            "finetune.epochs: input should be greater than or equal to 0",
        ),
        (("--set", "finetune.epoch=3"), 2, 'finetune.epoch: unknown key; did you mean "epochs"'),
        (("--teacher", "nowhere/at/all"), 4, "there is no such file or folder"),
        (("--processes", "3"), 2, "a batch of 16 rows cannot be shared evenly among all processes"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_the_command_refuses_with_a_sentence(
    checkpoint, answering, tmp_path, arguments: tuple, code: int, message: str
) -> None:
    base = checkpoint("bert", "embedding")
    done = cli.octobert(
        "finetune",
        base,
        "--task",
        "squad",
        "--data",
        answering,
        "--out",
        tmp_path / "out",
        *arguments,
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "checkpoint").exists()
