"""Quantization-aware training from recipe to package: agreement of what was trained with what runs, teachers, interruptions,
several processes, code of the user's own, and what is refused."""

from __future__ import annotations

import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from octobert.config.loading import load, parse
from octobert.config.recipe import Recipe
from octobert.config.training import Training
from octobert.core.errors import DataError, ModelError, OctobertError, RecipeError
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.results import TRAINED
from octobert.engine.contract import Response
from octobert.engine.executors import inline, local
from octobert.engine.work import key_of
from octobert.models import source
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from tests.support.columns import columns
from tests.support.hostile import hostile_folder, imported_from
from tests.support.runs import write_pairs
from tests.support.stages import Call, call_of, request_of, step_of, stored

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
QAT = {"epochs": 1, "learning_rate": 1e-3, "distill": {"share": 0.9}}
# Logits are of the size of 1; one code of one value moves them by a few thousandths.
BORDERS = 0.02
# Sums of gradients in another order, over ten steps at a rate of 1e-3.
SAME_WEIGHTS = 2e-4


def recipe_for(model: Path, data: Path, **changes: object) -> Recipe:
    plain = {
        "model": str(model),
        "task": "text-classification",
        "data": {"source": str(data), "calibrate": {"from": "train", "samples": 24}},
        "qat": QAT,
        "quantize": {"static": {"placement": "qdqbert"}},
        "targets": ["ort-cpu"],
        "baselines": ["ort-f32"],
        "benchmark": {"batch": [1], "sequence": [16], "repeats": 3},
        "profile": False,
    }
    return parse({**plain, **changes})


@pytest.fixture(scope="module")
def finished(checkpoint, tmp_path_factory):
    """One whole run on both targets: (recipe, output directory, report)."""
    folder = tmp_path_factory.mktemp("qat")
    recipe = recipe_for(
        checkpoint("bert"), write_pairs(folder / "data"), targets=["ort-cpu", "openvino-cpu"]
    )
    return recipe, folder / "out", runner.run(recipe, folder / "out", executor=inline.run)


def made_of(recipe: Recipe, out: Path) -> dict[str, Path]:
    """What the training reads, from a finished run in which every stage but one ran once: step → folder."""
    key = key_of(step_of(recipe, "capture"), {})
    captured = out / ".octobert" / "store" / f"capture-{key[:16]}"
    return {"data": stored(out, "data"), "capture": captured, "calibrate": stored(out, "calibrate")}


def context_for(
    recipe: Recipe,
    folder: Path,
    made: dict[str, Path],
    training: Training | None = None,
    **settings: object,
) -> Call:
    """The training stage in this process."""
    return call_of(
        step_of(recipe, "qat"),
        folder,
        made,
        lesson={"training": training or recipe.training, "settings": settings},
    )


def test_what_was_trained_is_what_runs(finished) -> None:
    _, out, report = finished
    assert report.simulations["ort-cpu"].agreement == 1.0
    trained, exported = (
        {score.metric: score.value for score in scores}
        for scores in (report.simulations["ort-cpu"].scores, columns(report).scores["ort-cpu"])
    )
    assert trained["accuracy"] == exported["accuracy"]
    # Float32 rounding puts a value at the border of two codes on either side.
    assert report.simulations["ort-cpu"].error < BORDERS
    assert report.simulations["openvino-cpu"].agreement >= 0.95
    summary = report.stages["qat"].summary
    assert (summary["steps"], summary["texts"], summary["values"]) == (5, 80, 20)
    trained = json.loads((out / "checkpoint" / TRAINED).read_text())
    assert trained["settings"]["distill"]["share"] == 0.9
    assert {path.name for path in (out / "checkpoint").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }


def test_ranges_that_moved_are_in_every_plan(finished) -> None:
    recipe, out, report = finished
    ranges = Ranges.model_validate_json((stored(out, "qat") / "ranges.json").read_text())
    before = Ranges.model_validate_json((stored(out, "calibrate") / "ranges.json").read_text())
    moved = [
        v for v, now in ranges.intervals.items() if abs(now.high - before.intervals[v].high) > 1e-6
    ]
    assert len(moved) > 10
    for target in recipe.targets:
        for site, quantizer in report.plans[target].quantized:
            if not site.is_weight:
                own = ranges.intervals[site.value]
                wanted = (-own.bound, own.bound) if quantizer.symmetric else (own.low, own.high)
                assert (quantizer.low, quantizer.high) == wanted


def test_weights_are_trained_and_the_float_model_is_not_touched(finished, checkpoint) -> None:
    _, out, _ = finished
    before = load_file(checkpoint("bert") / "model.safetensors")
    after = load_file(out / "checkpoint" / "model.safetensors")
    assert set(after) == set(before)
    assert (
        np.abs(
            after["bert.encoder.layer.0.output.dense.weight"]
            - before["bert.encoder.layer.0.output.dense.weight"]
        ).max()
        > 0
    )
    config, original = (
        json.loads((f / "config.json").read_text())
        for f in (out / "checkpoint", checkpoint("bert"))
    )
    assert config["hidden_dropout_prob"] == original["hidden_dropout_prob"] > 0


def test_running_again_trains_nothing_however_it_is_carried_out(finished) -> None:
    recipe, out, _ = finished
    otherwise = recipe.model_copy(
        update={"training": Training(checkpoint_minutes=1, tensorboard="elsewhere")}
    )
    # Only the report says how it was carried out.
    assert {v.step for v in runner.dry_run(otherwise, out) if v.action == "run"} == {
        "report",
        "package/ort-cpu",
        "package/openvino-cpu",
    }
    faster = recipe.model_copy(
        update={"qat": recipe.qat.model_copy(update={"learning_rate": 2e-3})}
    )
    verdicts = {v.step: v.action for v in runner.dry_run(faster, out)}
    assert (verdicts["calibrate"], verdicts["qat"], verdicts["capture/trained"]) == (
        "reuse",
        "run",
        "run",
    )


def test_the_page_says_how_training_went(finished) -> None:
    _, out, _ = finished
    page = (out / "report.html").read_text()
    assert "Quantization-aware training on 80 texts: 5 steps" in page
    assert (
        "the exported model compared with the fake-quantized PyTorch model that was trained" in page
    )


class Killed(BaseException):
    pass


def test_a_training_killed_twice_ends_as_one_that_was_not(finished, tmp_path) -> None:
    recipe, out, _ = finished
    step = step_of(recipe, "qat")
    settings = {"epochs": 4, "dropout": True}

    def carry_out(
        name: str, scratch: str, minutes: float, on_progress, executor=inline
    ) -> Response:
        (tmp_path / name).mkdir()
        how = Training(checkpoint_minutes=minutes)
        request = request_of(
            step,
            tmp_path / scratch,
            made_of(recipe, out),
            lesson={"training": how, "settings": settings},
        )
        return executor.run(request, tmp_path / name, on_progress)

    def kill_after(wanted: int):
        def kill(what: str, done: int, total: int) -> None:
            if done >= wanted and list((tmp_path / "killed").glob("trainer/checkpoint-*/complete")):
                raise Killed

        return kill

    for name, at in (("first", 6), ("second", 12)):
        with pytest.raises(Killed):
            carry_out(name, "killed", 1e-9, kill_after(at), local)
    seen: list[int] = []
    resumed = carry_out("third", "killed", 5, lambda what, done, total: seen.append(done))
    whole = carry_out("whole", "never", 5, lambda *_: None)
    assert seen[0] > 6
    assert resumed.summary["steps"] == whole.summary["steps"] == 20
    ranges = [
        Ranges.model_validate_json((tmp_path / n / "ranges.json").read_text()).intervals
        for n in ("third", "whole")
    ]
    for value, own in ranges[0].items():
        assert (own.low, own.high) == pytest.approx(
            (ranges[1][value].low, ranges[1][value].high), abs=SAME_WEIGHTS
        )
    weights = [
        load_file(tmp_path / n / "checkpoint" / "model.safetensors") for n in ("third", "whole")
    ]
    for name, array in weights[0].items():
        np.testing.assert_allclose(array, weights[1][name], atol=SAME_WEIGHTS, err_msg=name)


@pytest.mark.slow
def test_two_processes_have_the_same_ranges_and_train_as_one(
    finished, tmp_path, monkeypatch
) -> None:
    """Every process writes what it has; the batches of a step are the same rows, in a sum of another order."""
    recipe, out, _ = finished
    step = step_of(recipe, "qat")
    code = tmp_path / "loop.py"
    code.write_text(
        "import json, os, pathlib, torch\n"
        "def train(job):\n"
        "    model = job.model\n"
        "    if int(os.environ.get('WORLD_SIZE', 1)) > 1:\n"
        "        torch.distributed.init_process_group('gloo')\n"
        "        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)\n"
        "    optimizer = torch.optim.SGD(job.model.parameters(), lr=1e-2)\n"
        "    job.simulation.observing = True\n"
        "    for batch in job.batches():\n"
        "        model(**batch).loss.backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "    ends = [end.tolist() for end in job.simulation.ranges.bounds()]\n"
        f'    path = pathlib.Path({str(tmp_path)!r}, f\'rank-{{os.environ.get("RANK", "alone")}}.json\')\n'
        "    path.write_text(json.dumps(ends))\n"
    )
    settings = {"distill": None, "code": f"{code}:train"}
    # Neither torch's launcher nor what it starts imports from the working directory.
    hostile = hostile_folder(tmp_path / "hostile")
    monkeypatch.chdir(hostile)
    for name, count in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        how = Training(processes=count)
        request = request_of(
            step,
            tmp_path / f"scratch-{name}",
            made_of(recipe, out),
            lesson={"training": how, "settings": settings},
        )
        (local.run if count > 1 else inline.run)(request, tmp_path / name, lambda *_: None, how)
    assert imported_from(hostile) == ""
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    weights = [
        load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("one", "two")
    ]
    for name, array in weights[0].items():
        np.testing.assert_allclose(array, weights[1][name], atol=SAME_WEIGHTS, err_msg=name)
    alone = json.loads((tmp_path / "rank-alone.json").read_text())
    np.testing.assert_allclose(alone, ranks[0], atol=SAME_WEIGHTS)


@pytest.mark.slow
def test_the_trainer_runs_on_two_machines_and_each_keeps_what_was_trained(
    finished, tmp_path
) -> None:
    """Two machines are two launchers that meet under an address and share no folder."""
    recipe, out, _ = finished
    step = step_of(recipe, "qat")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    how = Training(processes=1, machines=2, rendezvous=address, checkpoint_minutes=1e-9)

    def machine(name: str) -> tuple[Path, Response, list[int]]:
        work, seen = tmp_path / name / "work-qat-1", []
        work.mkdir(parents=True)
        request = request_of(
            step, tmp_path / name / "scratch", made_of(recipe, out), lesson={"training": how}
        )
        return (
            work,
            local.run(request, work, lambda what, done, total: seen.append(done), how),
            seen,
        )

    with ThreadPoolExecutor() as pool:
        result = list(pool.map(machine, ("first", "second")))
    for _, response, seen in result:
        assert response.summary["steps"] == 5
        assert seen == [1, 2, 3, 4, 5]
    # What comes next has the same key on both, so that they meet again.
    assert len({(work / "checkpoint" / TRAINED).read_text() for work, _, _ in result}) == 1
    weights = [load_file(work / "checkpoint" / "model.safetensors") for work, _, _ in result]
    assert all(np.array_equal(weights[0][name], weights[-1][name]) for name in weights[0])
    kept = set()
    for work, _, _ in result:
        # Each machine goes on from its own checkpoints.
        saved = (work.parent / "scratch" / "trainer").glob("checkpoint-*")
        last = max(saved, key=lambda p: int(p.name.split("-")[1]))
        assert (last / "model.safetensors").is_file()
        kept |= {path.name for path in last.glob("rng_state_*")}
    assert kept == {"rng_state_0.pth", "rng_state_1.pth"}


@pytest.mark.parametrize("ranges", ["fixed", "learned", "moving-average"])
def test_ranges_move_as_they_are_told(finished, tmp_path, ranges: str) -> None:
    recipe, out, _ = finished
    context = context_for(
        recipe,
        tmp_path,
        made_of(recipe, out),
        ranges=ranges,
        range_rate=0.05,
        freeze=1.0,
        epochs=0.6,
    )
    result = context.run()
    before = Ranges.model_validate_json(
        (stored(out, "calibrate") / "ranges.json").read_text()
    ).intervals
    after = Ranges.model_validate_json((context.work / "ranges.json").read_text()).intervals
    moved = [v for v, now in after.items() if abs(now.high - max(before[v].high, 0)) > 1e-6]
    assert (len(moved) > 10) == (ranges != "fixed")
    with np.load(context.work / "scales.npz") as scales:
        assert (len(scales.files) == 12) == (ranges == "learned")
    # Ends become float32 in training, as they are in the file.
    assert (result["moved"] > 1e-6) == (ranges != "fixed")


def test_ranges_stand_still_after_the_freeze_and_rounding_waits_for_observers(
    finished, tmp_path, monkeypatch
) -> None:
    from octobert.training.simulation import Simulation

    recipe, out, _ = finished
    seen: list[tuple[bool, bool]] = []
    end = Simulation._end

    def watch(self, *given) -> None:
        seen.append((self.observing, self.quantizing))
        end(self, *given)

    monkeypatch.setattr(Simulation, "_end", watch)
    context = context_for(recipe, tmp_path, made_of(recipe, out), observe=0.2, freeze=0.6, epochs=2)
    context.run()
    assert seen == [(True, False)] * 2 + [(True, True)] * 4 + [(False, True)] * 4


def test_dropout_that_is_off_is_off_everywhere(checkpoint) -> None:
    import torch

    from octobert.models.checkpoint import load_base

    feeds = {
        "input_ids": torch.arange(5, 25)[None],
        "attention_mask": torch.ones(1, 20, dtype=torch.int64),
    }
    for family in ("bert", "modernbert", "albert", "distilbert", "deberta-v2"):
        states = {}
        for dropout in (True, False):
            model = load_base(
                checkpoint(family),
                "sequence-classification",
                ("different", "same"),
                dropout=dropout,
            ).train()
            states[dropout] = [model(**feeds).logits.detach() for _ in range(2)]
        assert torch.equal(*states[False]), family
        # ModernBERT has none by default.
        assert torch.equal(*states[True]) == (family == "modernbert")


def teacher_of(folder: Path, source: Path, **config: object) -> Path:
    shutil.copytree(source, folder)
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, **config}))
    return folder


def test_a_teacher_that_cannot_teach_is_refused(golden, finished, checkpoint, tmp_path) -> None:
    recipe, out, _ = finished
    made = made_of(recipe, out)

    def refused(teacher: Path, **distill: object) -> Call:
        folder, settings = tmp_path / f"run-{teacher.name}", {"distill": {"share": 0.5, **distill}}
        return call_of(
            step_of(recipe, "qat"),
            folder,
            made,
            lesson={"teacher": source.resolve(teacher), "settings": settings},
        )

    swapped = teacher_of(
        tmp_path / "swapped", checkpoint("bert"), id2label={"0": "same", "1": "different"}
    )
    with golden.raises(ModelError):
        refused(swapped).run()
    with pytest.raises(ModelError, match="the teacher has another tokenizer"):
        refused(checkpoint("roberta")).run()
    wide = teacher_of(tmp_path / "wide", checkpoint("bert"), num_hidden_layers=5)
    with golden.raises(ModelError):
        refused(wide, hidden=1.0).run()


def test_losses_of_a_teacher_are_what_they_are_said_to_be(checkpoint) -> None:
    import torch

    from octobert.config.training import Distill
    from octobert.training.distillation import checkpoint_teacher

    teacher = checkpoint_teacher(
        checkpoint("bert"), "sequence-classification", Distill(temperature=2.0, hidden=0.5)
    )
    feeds = {
        "input_ids": torch.tensor([[5, 6, 7, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
    }
    with torch.no_grad():
        own = teacher.model(**feeds, output_hidden_states=True)
        assert float(teacher.loss(own, feeds)) == pytest.approx(0.0, abs=1e-6)
        states = tuple(s.clone() for s in own.hidden_states)
        states[1][:, 3] += 100.0  # padding
        other = type(own)(logits=own.logits + torch.tensor([[1.0, -1.0]]), hidden_states=states)
        loss = float(teacher.loss(other, feeds))
    p, q = (
        np.exp(v / 2) / np.exp(v / 2).sum()
        for v in (own.logits[0].numpy(), other.logits[0].numpy())
    )
    assert loss == pytest.approx(4 * float(np.sum(p * np.log(p / q))), rel=1e-5)


@pytest.mark.slow
def test_embeddings_are_trained_after_their_float_model(checkpoint, tmp_path) -> None:
    rows = [f"{w} they had {i} of the" for i, w in enumerate(["to", "and", "in", "of"] * 12)]
    for name, part in (("train", rows[:40]), ("validation", rows[40:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in part))
    model = checkpoint("bert", "embedding")
    with pytest.raises(RecipeError, match=r"embeddings can be trained by a teacher only.*share: 1"):
        steps_of(recipe_for(model, tmp_path, task={"embedding": {"text": "text"}}))
    task = {"embedding": {"text": "text"}}
    recipe = recipe_for(
        model,
        tmp_path,
        task=task,
        qat={"epochs": 1, "learning_rate": 1e-3, "distill": {"share": 1}},
    )
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert report.simulations["ort-cpu"].agreement > 0.9999
    assert report.stages["qat"].summary["loss"] < 0.1


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(
    golden, finished, tmp_path
) -> None:
    recipe, out, _ = finished
    settings = {"learning_rate": 1e30, "warmup": 0.4, "schedule": "linear", "epochs": 2}
    context = context_for(
        recipe, tmp_path, made_of(recipe, out), Training(checkpoint_minutes=1e-9), **settings
    )
    with golden.raises(ModelError):
        context.run()
    for kept in (context.scratch / "trainer").glob("checkpoint-*/complete"):
        weights = load_file(kept.parent / "model.safetensors")
        assert all(np.isfinite(array).all() for array in weights.values())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"settings": {"epochs": 0.4}}, "plan, model or data and settings"),
        ({"base": {"digest": "x"}}, "plan, model or data"),
        ({"seed": 5}, "seed"),
    ],
    ids=["settings", "model", "seed"],
)
def test_an_interrupted_training_of_something_else_is_not_gone_on_with(
    golden, finished, tmp_path, changed: dict, named: str
) -> None:
    recipe, out, _ = finished
    first = context_for(recipe, tmp_path / "first", made_of(recipe, out), epochs=0.2)
    first.run()
    lesson = {**changed, "settings": {"epochs": 0.2, **changed.get("settings", {})}}
    second = call_of(
        step_of(recipe, "qat"), tmp_path / "second", made_of(recipe, out), lesson=lesson
    )
    shutil.copytree(first.scratch, second.scratch)
    with golden.raises(ModelError):
        second.run()


def test_fewer_rows_than_processes_are_refused(finished, tmp_path, monkeypatch) -> None:
    recipe, out, _ = finished
    monkeypatch.setenv("WORLD_SIZE", "100")
    with pytest.raises(DataError, match=r"fewer training rows than processes .*got 80 rows"):
        context_for(recipe, tmp_path, made_of(recipe, out)).run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transforms": ["smoothquant"]}, "transforms and qat exclude each other"),
        ({"corrections": ["bias-correction"]}, "corrections and qat exclude each other"),
        ({"quantize": "dynamic"}, "qat needs the method static, not dynamic"),
        ({"qat": {"code": "x.py:train"}}, "runs that code; allow it with --allow-code"),
        (
            {"qat": {"batch": 15}, "training": {"processes": 2}},
            "a batch of 15 rows cannot be shared evenly",
        ),
        ({"qat": {"freeze": 0.1, "observe": 0.5}}, "freeze must not be smaller than observe"),
        ({"finetune": {"distill": {}}}, "finetune.distill needs a teacher"),
        ({"training": {"machines": 2}}, "several machines need a rendezvous"),
        ({"qat": {"ranges": "lerned"}}, "qat.ranges"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_recipes_that_contradict_themselves(changes: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_for(Path("model"), Path("data"), **changes)


def test_transforms_and_corrections_are_off_with_qat_and_on_without() -> None:
    recipe = recipe_for(Path("model"), Path("data"))
    assert (recipe.transforms, recipe.corrections) == ((), ())
    assert [
        transform.name for transform in recipe_for(Path("model"), Path("data"), qat=None).transforms
    ] == ["outlier-neurons", "smoothquant", "token-scales"]


def test_code_of_the_user_trains_the_wrapped_model(finished, tmp_path) -> None:
    """The shipped example, and what its file must have."""
    recipe, out, _ = finished
    assert (
        load(RECIPES / "custom-training.yaml", ["allow_code=true"]).qat.code
        == f"{RECIPES / 'custom_training.py'}:train"
    )
    context = context_for(
        recipe,
        tmp_path,
        made_of(recipe, out),
        code=f"{RECIPES / 'custom_training.py'}:train",
        distill=None,
    )
    assert context.run()["moved"] > 0
    with pytest.raises(RecipeError, match=r'the file has no function "teach"'):
        context_for(
            recipe,
            tmp_path / "b",
            made_of(recipe, out),
            code=f"{RECIPES / 'custom_training.py'}:teach",
        ).run()
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def train(job):\n    next(iter(job.model.parameters())).data.fill_(float('nan'))\n"
    )
    with pytest.raises(ModelError, match="after training by code, weights are not numbers"):
        context_for(recipe, tmp_path / "c", made_of(recipe, out), code=f"{bad}:train").run()
    with pytest.raises(RecipeError, match="the Python file does not exist"):
        steps_of(
            recipe_for(
                Path(recipe.model),
                Path(recipe.data.source),
                allow_code=True,
                qat={"code": "nowhere.py:train"},
            )
        )


OLIVE_LOOP = """
import copy
import torch
from olive.data.registry import Registry


def loop(net):
    start = copy.deepcopy(net)
    trained = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    for step in range(3):
        ids = torch.randint(5, 20, (4, 8))
        trained(input_ids=ids, labels=torch.tensor([0, 1, 0, 1])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        best = copy.deepcopy(trained)
    assert hasattr(best, "octobert"), "the copy rounds as the plan says"
    return best
"""


def test_a_loop_of_olive_trains_the_model(finished, tmp_path) -> None:
    """It copies the model, trains the copy with an optimizer of its own, and returns it; its parameter has any name."""
    recipe, out, _ = finished
    script = tmp_path / "user_script.py"
    script.write_text(OLIVE_LOOP)
    made = made_of(recipe, out)
    context = context_for(recipe, tmp_path / "run", made, code=f"{script}:loop", distill=None)
    assert context.run()["moved"] > 0
    script.write_text("import neural_compressor.data\n" + OLIVE_LOOP)
    with pytest.raises(RecipeError, match="remove the import: octobert calibrates"):
        context_for(recipe, tmp_path / "old", made, code=f"{script}:loop", distill=None).run()
    old = OLIVE_LOOP.replace(
        "    return best",
        "    import transformers\n    transformers.TrainingArguments('o', evaluation_strategy='no')",
    )
    script.write_text(old)
    with pytest.raises(RecipeError, match="write eval_strategy"):
        context_for(recipe, tmp_path / "named", made, code=f"{script}:loop", distill=None).run()


def test_labels_out_of_range_are_refused_before_training(checkpoint, tmp_path) -> None:
    for name in ("train", "validation"):
        rows = [{"text": f"the of {name} {i}", "label": i % 2} for i in range(30)]
        if name == "train":
            rows[7]["label"] = 5
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = recipe_for(checkpoint("bert"), tmp_path)
    with pytest.raises(OctobertError, match=r'row 8, column "label"'):
        runner.run(recipe, tmp_path / "out", executor=inline.run)


def test_tensorboard_has_every_step(finished, tmp_path) -> None:
    event = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    recipe, out, _ = finished
    how = Training(tensorboard=str(tmp_path / "logs"))
    context_for(recipe, tmp_path, made_of(recipe, out), how).run()
    log = event.EventAccumulator(str(tmp_path / "logs"))
    log.Reload()
    assert len(log.Scalars("train/loss")) == 5


def test_a_new_head_may_stay_untrained(checkpoint, tmp_path) -> None:
    """QDQBERT's own order: calibrate the base, then train once, with its values rounded."""
    recipe = recipe_for(
        checkpoint("bert", "embedding"), write_pairs(tmp_path / "data"), finetune={"epochs": 0}
    )
    context = call_of(step_of(recipe, "finetune"), tmp_path / "run", {"data": tmp_path})
    (tmp_path / "training.json").write_text(
        json.dumps({"inputs": [["the of", "and"]], "gold": [0]})
    )
    assert context.run()["steps"] == 0
    weights = load_file(context.work / "checkpoint" / "model.safetensors")
    base = load_file(checkpoint("bert", "embedding") / "model.safetensors")
    np.testing.assert_array_equal(
        weights["bert.encoder.layer.0.output.dense.weight"],
        base["encoder.layer.0.output.dense.weight"],
    )


def test_the_plan_that_is_trained_is_all_that_any_target_rounds(finished) -> None:
    _, out, report = finished
    trained = QuantPlan.model_validate_json((stored(out, "qat") / "plan.json").read_text())
    wanted = {site for plan in report.plans.values() for site, _ in plan.quantized}
    assert {site for site, _ in trained.quantized} == wanted


def test_trained_weights_are_symmetric(checkpoint, finished) -> None:
    recipe, _, _ = finished
    options = {"static": {"weights": "uint8", "weights_symmetric": False}}
    wrong = parse({**recipe.model_dump(mode="json", by_alias=True), "quantize": options})
    with pytest.raises(RecipeError, match="training rounds weights symmetrically only"):
        steps_of(wrong)
    # Also for a target that prefers weights with a zero point of their own.
    step = next(
        step for step in steps_of(with_target(recipe, "qnn")) if step.name == "quantize/qnn"
    )
    assert step.options.method.weights_symmetric is True


def with_target(recipe: Recipe, name: str) -> Recipe:
    return recipe.model_copy(update={"targets": (name,)})
