"""`octobert.attach`: a training loop of one's own, from a plan to a package, and what cannot be attached or taken."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import octobert
from octobert.config.loading import parse
from octobert.core.errors import ModelError, PlanError, RecipeError, StorageError
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.training import attached as module

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"
# Float32 rounding puts a value at the border of two codes on either side; probabilities then differ by a code or two.
BORDERS = 0.02


def recipe_for(finished, **changes: object):
    """The recipe of the finished run, without what would change the weights, and without measuring."""
    recipe, _, _ = finished
    plain = {
        "model": recipe.model,
        "task": "text-classification",
        "data": recipe.data.model_dump(mode="json", by_alias=True),
        "transforms": [],
        "corrections": [],
        "measure": False,
    }
    return parse({**plain, **changes})


def example() -> str:
    """The loop on the page."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return next(block for block in blocks if "octobert.attach" in block)


@pytest.mark.slow
def test_the_loop_of_the_page_becomes_a_package(
    golden, finished, out, tmp_path, monkeypatch
) -> None:
    """What the package computes is what was trained."""
    recipe = recipe_for(finished)
    runner.run(recipe, out, executor=inline.run)
    (tmp_path / "my-model").symlink_to(recipe.model)
    monkeypatch.chdir(tmp_path)
    loop, finish = example().replace("2e-5", "1e-3").split("attached.finish")
    names: dict[str, Any] = {}
    exec(loop, names)
    model, trained, before = (
        names["model"].eval(),
        names["attached"],
        names["package"].ranges.intervals,
    )
    assert any(abs(now.high - before[value].high) > 1e-6 for value, now in trained.ranges.items())
    pair = ("the man was in it", "he is not")
    with torch.no_grad():
        simulated = model(**names["tokenizer"](*pair, return_tensors="pt")).logits.softmax(-1)[0]
    exec("attached.finish" + finish, names)
    assert not hasattr(model, "octobert")
    report = runner.run(recipe_for(finished, qat={"trained": "trained"}), out, executor=inline.run)
    assert report.ranges.calibrator == "qat"
    answer = octobert.load(out / "ort-cpu")([pair])[0]
    assert answer["label"] == model.config.id2label[int(simulated.argmax())]
    assert answer["score"] == pytest.approx(float(simulated.max()), abs=BORDERS)
    other = recipe_for(finished, qat={"trained": "trained"}, calibrate={"percentile": {"keep": 90}})
    with golden.raises(PlanError):
        runner.run(other, out, executor=inline.run)


@pytest.fixture(scope="module")
def planned(finished):
    """(A model of the finished run, its plan). The transforms of that run do not matter here."""
    recipe, out, _ = finished
    return AutoModelForSequenceClassification.from_pretrained(recipe.model), octobert.manifest(
        out / "ort-cpu"
    )


def test_ranges_start_where_they_are_given(planned) -> None:
    model, package = planned
    doubled = {
        v: i.model_copy(update={"low": 2 * i.low, "high": 2 * i.high})
        for v, i in package.ranges.intervals.items()
    }
    for ranges, factor in (
        (None, 1),
        (package.ranges.model_copy(update={"intervals": doubled}), 2),
    ):
        attached = octobert.attach(model, package.plan, ranges)
        value, own = next(iter(attached.ranges.items()))
        assert own.high == pytest.approx(factor * package.ranges.intervals[value].high, rel=1e-6)
        with pytest.raises(PlanError, match="a plan is attached to the model already"):
            octobert.attach(model, package.plan)
        attached.detach()
    count = len(list(model.parameters()))
    attached = octobert.attach(model, package.plan, learned=True)
    assert len(list(model.parameters())) > count
    attached.detach()
    assert len(list(model.parameters())) == count


def test_rounding_can_be_switched_off(planned) -> None:
    model, package = planned
    batch = AutoTokenizer.from_pretrained(model.config._name_or_path)(
        "the of", "and", return_tensors="pt"
    )
    with torch.no_grad():
        before = model.eval()(**batch).logits.numpy()
        attached = octobert.attach(model, package.plan)
        assert np.abs(model(**batch).logits.numpy() - before).max() > 1e-4
        attached.quantize(False)
        np.testing.assert_allclose(model(**batch).logits.numpy(), before, atol=1e-5)
        attached.detach()


def copies(model: Any, tmp_path: Path) -> dict[str, Any]:
    """Copies of a model, by how they were made."""
    path = tmp_path / "model.pt"
    torch.save(model, path)
    return {
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
        "torch.save": torch.load(path, weights_only=False),
    }


@pytest.mark.parametrize("learned", [False, True])
def test_a_copy_of_an_attached_model_is_attached(planned, tmp_path, learned: bool) -> None:
    """Loops of other tools copy the model, also in the middle of a step, and train the copy."""
    model, package = planned
    batch = AutoTokenizer.from_pretrained(model.config._name_or_path)(
        "the of", "and", return_tensors="pt"
    )
    attached = octobert.attach(model, package.plan, learned=learned)
    try:
        model.train()
        loss = model(**batch).logits.square().sum()
        made = copies(model, tmp_path)
        loss.backward()
        made |= {f"{name} after": copied for name, copied in copies(model, tmp_path).items()}
        model.eval()
        attached.observe(False)
        with torch.no_grad():
            expected = model(**batch).logits
            attached.quantize(False)
            floating = model(**batch).logits
            attached.quantize(True)
        for name, copied in made.items():
            copied.eval()
            copied.load_state_dict(model.state_dict())
            with torch.no_grad():
                torch.testing.assert_close(copied(**batch).logits, expected, msg=name)
            assert not torch.allclose(expected, floating, atol=1e-5)
            # The copy has weights and ranges of its own.
            copied.train()
            copied(**batch).logits.square().sum().backward()
            weight = next(p for n, p in copied.named_parameters() if n.endswith("query.weight"))
            assert weight.grad is not None
            with torch.no_grad():
                weight.add_(1.0)
                assert not torch.allclose(copied.eval()(**batch).logits, expected, atol=1e-4), name
                torch.testing.assert_close(model(**batch).logits, expected)
    finally:
        attached.detach()


def test_what_cannot_be_attached(golden, planned) -> None:
    model, package = planned
    with golden.raises(RecipeError):
        octobert.attach(torch.nn.Linear(2, 2), package.plan)
    with golden.raises(RecipeError):
        octobert.attach(model, package)
    with pytest.raises(RecipeError, match=r"ranges: not the ranges of a model \(got dict"):
        octobert.attach(model, package.plan, package.ranges.intervals)
    with pytest.raises(RecipeError, match="keep, average: the value is out of range"):
        octobert.attach(model, package.plan, keep=10)
    fewer = package.ranges.model_copy(
        update={"intervals": dict(list(package.ranges.intervals.items())[:1])}
    )
    with pytest.raises(PlanError, match="there is no range of a value that the plan quantizes"):
        octobert.attach(model, package.plan, fewer)


def test_what_cannot_be_finished_or_taken(golden, planned, tmp_path) -> None:
    model, package = planned
    attached = octobert.attach(model, package.plan)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the folder is not empty"):
        attached.finish(tmp_path)
    with torch.no_grad():
        weight = next(iter(model.parameters()))
        kept = weight[0, 0].clone()
        weight[0, 0] = float("nan")
        with pytest.raises(ModelError, match="after the training, weights are not numbers"):
            attached.finish(tmp_path / "new")
        weight[0, 0] = kept
    assert not (tmp_path / "new").exists()
    attached.detach()
    with golden.raises(ModelError):
        module.read(tmp_path)
    (tmp_path / module.QUANTIZATION).write_text("{}")
    with golden.raises(ModelError):
        module.read(tmp_path)
    with pytest.raises(RecipeError, match="nothing for code or distill to train"):
        parse({"model": "m", "task": "mrpc", "data": "d", "qat": {"trained": "t", "distill": {}}})
