"""What people's folders are is said in one sentence, whose advice works: no sentence leads to one that leads back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from octobert.core.errors import ModelError
from octobert.core.heads import HEADS, head_of
from octobert.models import heads
from octobert.models.pooling import pooler_of
from octobert.models.source import resolve
from tests.support.checkpoints import make_checkpoint
from tests.support.pooling import write_modules

CROSS = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
MEAN: tuple[str, dict[str, Any]] = ("Pooling", {"pooling_mode": "mean"})
SIZES = {"in_features": 32, "out_features": 1, "module_output_name": "scores"}
# Names of tasks as sentences have them → heads.
TASKS = {"text-classification": "sequence-classification"}
TAKEN = [name for name, head in HEADS.items() if head.architecture or head.pooled]


def modular(folder: Path) -> None:
    """As `CrossEncoder(modules=[Transformer, Pooling, Dense, LayerNorm, Dense])` of sentence-transformers 6.2 saves it."""
    between = {"in_features": 32, "out_features": 32}
    steps = [MEAN, ("Dense", between), ("LayerNorm", {"dimension": 32}), ("Dense", SIZES)]
    write_modules(folder, steps, model_type="CrossEncoder")


def setfit(folder: Path) -> None:
    write_modules(folder, [MEAN], model_type="SentenceTransformer")
    (folder / "model_head.pkl").write_bytes(b"pickle")


def three_outputs(folder: Path) -> None:
    """As bge-m3."""
    write_modules(folder, [("Pooling", {"pooling_mode": "cls"}), ("Normalize", {})])
    for name in ("sparse_linear.pt", "colbert_linear.pt"):
        (folder / name).write_bytes(b"weights")


def adapted(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"task_type": "SEQ_CLS"}))


def weights(name: str) -> Any:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(b"weights")

    return change


LAYOUTS = {
    "encoder": lambda folder: None,
    "sentences": lambda folder: write_modules(folder, [MEAN], model_type="SentenceTransformer"),
    "modular": modular,
    "unnamed": lambda folder: write_modules(folder, [("Dense", SIZES)]),
    "logit-score": lambda folder: write_modules(folder, [(CROSS, {})], model_type="CrossEncoder"),
    "setfit": setfit,
    "three-outputs": three_outputs,
    "router": lambda folder: write_modules(folder, [("Router", {})]),
    "adapter": adapted,
    "gguf": weights("model.gguf"),
    "tensorflow": weights("tf_model.h5"),
    "flax": weights("flax_model.msgpack"),
    "splade": lambda folder: write_modules(
        folder, [("SpladePooling", {"pooling_strategy": "max"})], model_type="SparseEncoder"
    ),
}


def refusal(folder: Path, name: str) -> str:
    """What is said of a folder for a head before anything runs; nothing where it is taken."""
    try:
        source, head = resolve(folder), head_of(name)
        if head.pooled:
            pooler_of(source.tokenizer_folder, head)
        heads.check_class(source, name)
        heads.check_head(source, name)
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_following_the_advice_ends(tmp_path: Path, layout: str) -> None:
    folder = make_checkpoint(tmp_path / "model", "bert", "embedding")
    LAYOUTS[layout](folder)
    for start in TAKEN:
        asked, name = list[str](), start
        while (said := refusal(folder, name)) and (named := re.search(r"the task ([\w-]+)", said)):
            if "model_head.pkl" in said:
                (folder / "model_head.pkl").unlink()
                asked.clear()
            name = TASKS.get(named[1], named[1])
            assert name not in asked, said
            asked.append(name)
    if layout == "setfit":
        assert not (folder / "model_head.pkl").exists()


@pytest.mark.parametrize("layout", ["modular", "logit-score", "setfit", "unnamed"])
@pytest.mark.parametrize("head", ["sequence-classification", "embedding"])
def test_what_a_folder_is(golden, tmp_path: Path, layout: str, head: str) -> None:
    folder = make_checkpoint(tmp_path / "model", "bert", "embedding")
    LAYOUTS[layout](folder)
    golden(refusal(folder, head))


def cached(checkpoint: Path, folder: Path) -> Path:
    """A folder of the hub's cache."""
    place = folder / "models--org--name"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("b" * 40)
    (place / "blobs").mkdir()
    for commit in ("a" * 40, "b" * 40):
        (place / "snapshots" / commit).mkdir(parents=True)
    for file in checkpoint.iterdir():
        shutil.copy(file, place / "blobs" / file.name)
        (place / "snapshots" / ("b" * 40) / file.name).symlink_to(
            Path("..", "..", "blobs", file.name)
        )
    return place


def test_a_folder_of_the_hubs_cache_is_its_snapshot(golden, checkpoint, tmp_path: Path) -> None:
    source = checkpoint("bert", "sequence-classification")
    place = cached(source, tmp_path)
    assert resolve(place).digest == resolve(source).digest
    (place / "refs" / "main").unlink()
    with golden.raises(ModelError):
        resolve(place)


FILES = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.mark.parametrize("name", FILES)
def test_links_to_nothing(golden, checkpoint, tmp_path: Path, name: str) -> None:
    place = cached(checkpoint("bert", "sequence-classification"), tmp_path)
    (place / "blobs" / name).unlink()
    with golden.raises(ModelError):
        resolve(place)


@pytest.mark.parametrize("name", FILES)
def test_pointers_of_git_lfs(golden, checkpoint, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(checkpoint("bert", "sequence-classification"), tmp_path / "model")
    (folder / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
    )
    with golden.raises(ModelError):
        resolve(folder)
