"""The room for texts: every family takes as many tokens as octobert says, and those with a table of positions not one more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from octobert.core import families
from octobert.core.errors import ModelError
from octobert.core.families import longest_input
from octobert.data.tokenization import Tokenizer
from octobert.graph.capture import capture
from octobert.models.checkpoint import load_torch
from octobert.models.source import resolve
from octobert.pipeline.stages.capture import parity_batches
from tests.support.checkpoints import make_checkpoint

FAMILIES = families.names()
ROWS = 24
# Float32 sums in another order.
CLOSE = 1e-5
# Families that compute positions, or have positions between tokens alone: a longer text is beyond what they were trained for.
WITHOUT_A_TABLE = {
    "deberta",
    "deberta-v2",
    "eurobert",
    "gte",
    "jina-embeddings-v3",
    "modernbert",
    "nomic-bert",
    "gemma3-text",
    "qwen3",
}
AFTER_PADDING = [name for name in FAMILIES if families.load(name).position_offset is None]


def made(folder: Path, family: str, **overrides: object) -> Path:
    return make_checkpoint(folder, family, "embedding", max_position_embeddings=ROWS, **overrides)


def fits(model: torch.nn.Module, length: int, pad_id: int) -> bool:
    ids = torch.full((1, length), pad_id + 1)
    try:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    except (IndexError, RuntimeError):
        return False
    return True


def assert_room(folder: Path, family: str) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    room, pad_id = longest_input(config), config.get("pad_token_id") or 0
    model = load_torch(folder, "embedding")
    assert fits(model, room, pad_id)
    assert fits(model, room + 1, pad_id) == (family in WITHOUT_A_TABLE)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_position_and_one_more(tmp_path, family) -> None:
    folder = made(tmp_path / "model", family)
    assert_room(folder, family)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    room = longest_input(config)
    tokenizer = Tokenizer(folder, room)
    (long,) = tokenizer.encode([("data " * 100,)])
    assert len(long) == room
    assert long.truncated
    with pytest.raises(ModelError, match=f"at most {room}"):
        Tokenizer(folder, room + 1)


@pytest.mark.parametrize("pad_id", [0, 1, 3, 7])
@pytest.mark.parametrize("family", AFTER_PADDING)
def test_positions_after_any_padding_id(tmp_path, family, pad_id) -> None:
    folder = made(tmp_path / "model", family, pad_token_id=pad_id)
    assert resolve(folder).longest_input == ROWS - pad_id - 1
    assert_room(folder, family)


def test_a_graph_is_checked_up_to_the_last_position(tmp_path) -> None:
    """A Japanese RoBERTa has the padding id 3; octobert took 2 positions for granted."""
    folder = made(tmp_path / "model", "roberta", pad_token_id=3)
    batches = parity_batches(Tokenizer(folder))
    assert max(batch["input_ids"].shape[1] for batch in batches) == ROWS - 4
    assert capture.capture(resolve(folder), "embedding", batches).parity.largest_difference < CLOSE


@pytest.mark.parametrize(
    "stated", [{"pad_token_id": ROWS - 2}, {"pad_token_id": None}, {"pad_token_id": 10**6}]
)
def test_no_positions_are_left(golden, tmp_path, stated) -> None:
    folder = made(tmp_path / "model", "roberta")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **stated}), encoding="utf-8")
    with golden.raises(ModelError):
        resolve(folder)
