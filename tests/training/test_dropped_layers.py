"""Encoder layers are left out before fine-tuning: which ones, their weights, the teacher, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import octobert
from octobert.config.loading import parse
from octobert.config.training import Distill
from octobert.core import families
from octobert.core.errors import ModelError, OctobertError
from octobert.engine.executors import inline
from octobert.models import checkpoint as checkpoints
from octobert.models.source import resolve
from octobert.pipeline import runner
from octobert.report import summary
from octobert.training.distillation import checkpoint_teacher
from tests.support import cli
from tests.support.checkpoints import WORDS, batch, make_checkpoint, pad_of

WITH_OWN_LAYERS = [name for name in families.names() if not families.load(name).shared_layer]
HEAD = "sequence-classification"
# Two orders of the same float32 sums.
SAME_LOSS = 1e-5
NEITHER = r"finetune.layers: a number from 1, or the indices of the layers that are kept, each once and ascending"


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """`deep("bert", 5)` → a random classifier with so many layers, made once."""
    made: dict[tuple[str, int], Path] = {}

    def get(family: str, layers: int) -> Path:
        if (family, layers) not in made:
            folder = tmp_path_factory.mktemp(family)
            made[family, layers] = make_checkpoint(folder, family, HEAD, num_hidden_layers=layers)
        return made[family, layers]

    return get


@pytest.mark.parametrize(
    ("count", "layers", "kept"),
    [
        (12, 6, (0, 2, 4, 7, 9, 11)),
        (12, 4, (0, 4, 7, 11)),
        (6, 4, (0, 2, 3, 5)),
        (6, 3, (0, 2, 5)),
        (6, 6, (0, 1, 2, 3, 4, 5)),
        (6, 2, (0, 5)),
        (6, 1, (0,)),
        (6, (1, 2, 4), (1, 2, 4)),
    ],
)
def test_layers_are_evenly_chosen_from_the_first_to_the_last(
    deep, count: int, layers, kept: tuple
) -> None:
    assert checkpoints.kept_layers(resolve(deep("bert", count)), layers) == kept


@pytest.mark.parametrize("family", WITH_OWN_LAYERS)
def test_the_kept_layers_keep_their_weights_and_the_saved_model_computes_with_them(
    deep, tmp_path, family: str
) -> None:
    folder = deep(family, 5)
    source, model = resolve(folder), checkpoints.load_torch(folder, HEAD)
    checkpoints.without_layers(model, source.family, (0, 2, 4)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.get("num_hidden_layers", config.get("n_layers")) == 3
    # Of the models: files have the names of older checkpoints in some families.
    before, after = (
        {name: array.numpy() for name, array in each.state_dict().items()}
        for each in (checkpoints.load_torch(folder, HEAD), checkpoints.load_torch(tmp_path, HEAD))
    )
    stem = f"{source.family.prefix}.{source.family.layer}."
    expected = {
        name: array
        for name, array in before.items()
        if not name.startswith(stem.partition("{}")[0])
    }
    for new, old in enumerate((0, 2, 4)):
        of_layer = [name for name in before if name.startswith(stem.format(old))]
        expected |= {
            stem.format(new) + name.removeprefix(stem.format(old)): before[name]
            for name in of_layer
        }
    assert after.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    # The same layers of the whole model, one after the other.
    whole = copy.deepcopy(model)
    path, _, leaf = source.family.layer.removesuffix(".{}").rpartition(".")
    parent = getattr(whole, source.family.prefix).get_submodule(path)
    setattr(parent, leaf, torch.nn.ModuleList([getattr(parent, leaf)[i] for i in (0, 2, 4)]))
    whole.config.num_hidden_layers = 3
    if kinds := getattr(whole.config, "layer_types", None):
        # Some models read them at each call.
        whole.config.layer_types = [kinds[index] for index in (0, 2, 4)]
    feeds = {
        name: torch.from_numpy(array)
        for name, array in batch([9, 20, 3], pad_id=pad_of(folder)).items()
    }
    feeds = {name: feeds[name] for name in checkpoints.inputs_of(model)}
    with torch.inference_mode():
        torch.testing.assert_close(
            checkpoints.load_torch(tmp_path, HEAD)(**feeds).logits, whole(**feeds).logits
        )


def test_each_kept_layer_follows_the_layer_that_it_was_and_the_last_one_the_last(deep) -> None:
    folder, kept = deep("bert", 5), (0, 2, 3)
    settings = Distill(share=1, hidden=0.5, temperature=1.0)
    teacher = checkpoint_teacher(folder, HEAD, settings, kept=kept)
    whole = checkpoints.load_torch(folder, HEAD)
    smaller = checkpoints.without_layers(whole, resolve(folder).family, kept).eval()
    feeds = {name: torch.from_numpy(array) for name, array in batch([9, 20, 3]).items()}
    with torch.inference_mode():
        ours, theirs = (model(**feeds, output_hidden_states=True) for model in (smaller, whole))
        loss = float(teacher.loss(ours, feeds))
    mask = feeds["attention_mask"].bool().numpy()
    shares = []
    for own, other in ((0, 0), (1, 1), (2, 3), (3, 5)):
        a, b = (
            states[index].numpy()[mask]
            for states, index in ((ours.hidden_states, own), (theirs.hidden_states, other))
        )
        shares.append(((a - b) ** 2).mean() / (b**2).mean())
    assert shares[1] == 0 < shares[2], "the first layer is the teacher's"
    p, q = (np.exp(each.logits.numpy().astype(float)) for each in (theirs, ours))
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    divergence = (p * np.log(p / q)).sum(axis=1).mean()
    assert loss == pytest.approx(divergence + 0.5 * np.mean(shares), rel=SAME_LOSS)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    for name, part in (("train", range(48)), ("dev", range(48, 64))):
        rows = [
            {"text": f"{WORDS[i % 28]} {WORDS[i % 5]} x{i}", "label": ("different", "same")[i % 2]}
            for i in part
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


@pytest.mark.slow
def test_a_model_that_is_its_own_teacher_becomes_a_package_of_fewer_layers(
    deep, sentences, tmp_path
) -> None:
    recipe = parse(
        {
            "model": str(deep("bert", 3)),
            "task": "text-classification",
            "data": {"source": str(sentences), "calibrate": {"from": "train", "samples": 16}},
            "finetune": {"layers": 2, "epochs": 1, "distill": {"hidden": 1}},
            "measure": False,
        }
    )
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert "kept encoder layers: 2;" in " ".join(summary.trainings(report))
    package = tmp_path / "out" / "ort-cpu"
    assert json.loads((package / "config.json").read_text())["num_hidden_layers"] == 2
    layers = {decision.site.layer for decision in octobert.manifest(package).plan.decisions} - {
        None
    }
    assert layers == {0, 1}
    assert octobert.load(package)(["the of"])[0]["label"] in ("different", "same")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"layers": 4},
            r"finetune.layers: the model has fewer layers \(got 4, expected 1 to 3\); keep as many or fewer",
        ),
        (
            {"layers": [0, 3]},
            r"finetune.layers: the model has no such layer \(got 3, expected indices from 0 to 2\)",
        ),
        *(
            ({"layers": wrong}, NEITHER)
            for wrong in (
                0,
                -1,
                [0, 2, 2],
                [2, 0],
                [],
                [-1, 0],
                "three",
                True,
                [True],
                2.5,
                {"a": 1},
            )
        ),
        (
            {"distill": {}},
            r"finetune.distill needs a teacher; only with finetune.layers is it the model itself",
        ),
    ],
    ids=str,
)
def test_layers_that_cannot_be_kept_are_refused(
    deep, sentences, tmp_path, settings: dict, message: str
) -> None:
    plain = {
        "model": str(deep("bert", 3)),
        "task": "text-classification",
        "data": str(sentences),
        "finetune": settings,
    }
    with pytest.raises(OctobertError, match=message):
        octobert.run(plain, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_families_and_models_that_cannot_leave_layers_out_are_named(
    golden, deep, checkpoint, sentences, tmp_path
) -> None:
    with golden.raises(ModelError):
        checkpoints.kept_layers(resolve(checkpoint("albert")), 1)
    folder = deep("modernbert", 5)
    with golden.raises(ModelError):
        checkpoints.without_layers(
            checkpoints.load_torch(folder, HEAD), resolve(folder).family, (1, 2)
        )
    # A base model has no head that could teach.
    plain = {
        "task": "text-classification",
        "data": str(sentences),
        "finetune": {"layers": 1, "distill": {}},
    }
    with pytest.raises(ModelError, match="sequence-classification"):
        octobert.run({"model": str(checkpoint("bert", "embedding")), **plain}, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--layers", "1", "--teacher", "self", "--dry-run"), 0, "layers: 1"),
        (("--layers", "[0, 1]", "--dry-run"), 0, "- 1"),
        (
            ("--layers", ""),
            2,
            "--layers: the value is empty; give a value, or leave the option out",
        ),
        (("--layers", "9"), 2, "the model has fewer layers (got 9, expected 1 to 3)"),
        (("--layers", "[0, 0]"), 2, "each once and ascending"),
        (("--layers", "1", "--qat"), 2, "--layers belongs to the training in float"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_the_command_takes_layers(
    deep, sentences, tmp_path, arguments: tuple, code: int, words: str
) -> None:
    common = (
        deep("bert", 3),
        "--task",
        "text-classification",
        "--data",
        sentences,
        "--out",
        tmp_path / "out",
    )
    done = cli.octobert("finetune", *common, *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
