"""What comes from a hub: here one on this machine, which answers as huggingface.co does.

The hub's client reads its address when it is imported, so all of this runs in one process of its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from tests.support.hub import commit_of, open_hub, publish
from tests.support.pooling import write_modules
from tests.support.web import serving

WEIGHTS = random.Random(0).randbytes(1 << 20)
TOKENS = {"config.json": b'{"model_type": "bert"}', "tokenizer.json": b"{}"}
CARD = b"---\nconfigs:\n- config_name: mrpc\n  data_files:\n  - {split: train, path: train.csv}\n  - {split: validation, path: dev.csv}\n---\n"
# Steps by name → what came, or the error.
STEPS = """
import json, sys
import huggingface_hub.constants
import datasets.config
from octobert.config.rows import Data
from octobert.core.errors import OctobertError
from octobert.data import readers, sources
from octobert.models.source import resolve

datasets.disable_progress_bars()
# Smaller than the model, so that a part of it is kept.
huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 1 << 18

def model(name, **settings):
    folder = resolve(name, **settings).path
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())

def data(source, **settings):
    given = Data.model_validate({"source": source, **settings})
    places = sources.places(given)
    digest = places.content().digest
    _, rows = readers.read(places.calibrate, hub=places.hub, revision=given.revision, columns=())
    _, evaluated = readers.read(places.evaluate, hub=places.hub, revision=given.revision, columns=())
    return {"how": places.how, "commit": places.hub.commit, "digest": digest, "rows": [[r["text"] for r in own] for own in (rows, evaluated)]}

def offline(step):
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        return step()
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = False

steps = {
    "pickle refused": lambda: model("me/embedder"),
    "pickle allowed": lambda: model("me/embedder", allow_pickle=True),
    "broken": lambda: model("me/plain"),
    "again": lambda: model("me/plain"),
    "tag": lambda: model("me/plain", revision="v1"),
    "no such tag": lambda: model("me/plain", revision="v2"),
    "gated": lambda: model("me/gated"),
    "nobody": lambda: model("me/nobody"),
    "cached": lambda: offline(lambda: model("me/plain")),
    "not cached": lambda: offline(lambda: model("me/other")),
    "subset": lambda: data("glue/mrpc", calibrate="train[:10%]", evaluate="validation[1:3]"),
    "old name": lambda: data("glue", config="mrpc"),
    "full name": lambda: data("nyu-mll/glue/mrpc"),
    "data tag": lambda: data("nyu-mll/glue", config="mrpc", revision="v1"),
    "cached data": lambda: offline(lambda: data("glue/mrpc")),
    "gated data": lambda: data("me/gated-data"),
    "no such subset": lambda: data("nyu-mll/glue", config="mrcp"),
    "no such data": lambda: data("me/nothing"),
}
found = {}
for name, step in steps.items():
    try:
        found[name] = step()
    except OctobertError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def asked() -> list[tuple[str, str, str | None]]:
    """What the hub was asked for."""
    return []


@pytest.fixture(scope="module")
def found(asked: list[Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each step gave."""
    folder = tmp_path_factory.mktemp("embedder")
    dense = (
        "Dense",
        {
            "in_features": 8,
            "out_features": 2,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
    )
    write_modules(folder, [("Pooling", {"pooling_mode": "mean"}), dense, dense])
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    embedder = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    rows = {
        name: b"text,label\n"
        + b"".join(b"%s %d,%d\n" % (name[0].encode(), i, i % 2) for i in range(20))
        for name in ("train.csv", "dev.csv")
    }
    with serving() as web:
        open_hub(web)
        publish(
            web,
            "me/embedder",
            {**TOKENS, **embedder, "model.safetensors": b"x", "README.md": b"not needed"},
        )
        publish(web, "me/plain", {**TOKENS, "model.safetensors": WEIGHTS})
        publish(
            web, "me/plain", {**TOKENS, "model.safetensors": b"x", "vocab.txt": b""}, revision="v1"
        )
        publish(web, "me/gated", TOKENS, gated=True)
        publish(web, "me/gated-data", {"README.md": CARD, **rows}, data=True, gated=True)
        for revision in ("main", "v1"):
            publish(web, "nyu-mll/glue", {"README.md": CARD, **rows}, data=True, revision=revision)
        web.files["/api/datasets/glue"] = web.files["/api/datasets/nyu-mll/glue"]
        web.breaks[f"/me/plain/resolve/{commit_of('me/plain')}/model.safetensors"] = [1 << 19]
        home = str(tmp_path_factory.mktemp("home"))
        environment = os.environ | {
            "HF_ENDPOINT": web.address,
            "HF_HOME": home,
            "HF_HUB_OFFLINE": "0",
            "OCTOBERT_CACHE": home,
        }
        done = subprocess.run(
            [sys.executable, "-c", STEPS],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        asked += web.asked
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_module_is_downloaded_and_its_pickles_only_if_that_is_allowed(found) -> None:
    assert (
        "me/embedder/2_Dense/pytorch_model.bin: the checkpoint has only pickle weights"
        in found["pickle refused"]
    )
    expected = {
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/pytorch_model.bin",
        "3_Dense/model.safetensors",
    }
    assert expected | {"config.json", "model.safetensors", "modules.json", "tokenizer.json"} <= set(
        found["pickle allowed"]
    )
    assert "README.md" not in found["pickle allowed"]


def test_a_download_that_breaks_off_continues(found, asked) -> None:
    assert (
        found["broken"]
        == found["again"]
        == found["cached"]
        == ["config.json", "model.safetensors", "tokenizer.json"]
    )
    place = f"/me/plain/resolve/{commit_of('me/plain')}/model.safetensors"
    assert [span for method, path, span in asked if (method, path) == ("GET", place)] == [
        None,
        f"bytes={1 << 19}-",
    ]


def test_a_revision_is_what_is_asked_for(found) -> None:
    assert found["tag"] == ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"]
    assert found["data tag"]["commit"] == commit_of("nyu-mll/glue", "v1")
    assert found["data tag"]["digest"] != found["old name"]["digest"]


def test_a_data_set_is_named_with_its_subset_and_slices(found) -> None:
    assert found["subset"]["rows"] == [["t 0", "t 1"], ["d 1", "d 2"]]
    assert (
        found["subset"]["how"]
        == "nyu-mll/glue on the hub: calibrated from train[:10%], evaluated on validation[1:3]"
    )
    assert [len(rows) for rows in found["old name"]["rows"]] == [20, 20]
    assert found["old name"] == found["full name"] == found["cached data"]
    assert found["subset"]["digest"] != found["old name"]["digest"]
    assert found["old name"]["commit"] == commit_of("nyu-mll/glue")


@pytest.mark.parametrize(
    "step",
    [
        "gated",
        "gated data",
        "no such tag",
        "nobody",
        "no such data",
        "not cached",
        "no such subset",
    ],
)
def test_what_the_hub_does_not_give(golden, found, step: str) -> None:
    golden(found[step])
