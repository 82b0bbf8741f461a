"""Models that a function of the user makes: a path, a model of transformers, a module of one's own; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octobert.config.loading import parse
from octobert.core import user_code
from octobert.core.errors import ModelError, ParityError, RecipeError
from octobert.graph.capture import capture
from octobert.models import source
from octobert.pipeline import resolve, user_model
from tests.support.checkpoints import parity_feeds

HEAD = "sequence-classification"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def made(folder: Path, body: str, before: str = "") -> Path:
    """What `user_model.made` makes, in this process."""
    (folder / "mine.py").write_text(f"{before}\ndef model():\n    {body}\n")
    return user_model._made(
        user_code.at(f"{folder / 'mine.py'}:model", "model", where="model"), HEAD, 0
    )


def load_text(model: Path) -> str:
    return f"AutoModelForSequenceClassification.from_pretrained({str(model)!r})"


IMPORT = "from transformers import AutoModelForSequenceClassification"
OWN = '''
import torch
from transformers import AutoConfig, BertModel


class Own(torch.nn.Module):
    """Two numbers from the mean of the states."""

    def __init__(self, folder):
        super().__init__()
        self.config = AutoConfig.from_pretrained(folder)
        self.bert = BertModel.from_pretrained(folder, add_pooling_layer=False)
        self.classifier = torch.nn.Linear(self.config.hidden_size, 2)

    def forward(self, input_ids, attention_mask, token_type_ids):
        states = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        return self.classifier(torch.tanh(states[:, 0] * 2))
'''


def test_a_path_is_used_as_it_is(golden, tmp_path, checkpoint) -> None:
    assert made(tmp_path, f"return {str(checkpoint('bert'))!r}") == checkpoint("bert")
    with golden.raises(ModelError):
        made(tmp_path, "return '/nowhere'")


def test_a_model_of_transformers_becomes_a_checkpoint(tmp_path, checkpoint, cache) -> None:
    folder = made(
        tmp_path, f"return {load_text(checkpoint('bert'))}, {str(checkpoint('bert'))!r}", IMPORT
    )
    found = source.resolve(folder)
    assert (found.kind, found.labels, found.longest_input) == (
        "checkpoint",
        ("different", "same"),
        64,
    )
    assert (
        made(
            tmp_path, f"return {load_text(checkpoint('bert'))}, {str(checkpoint('bert'))!r}", IMPORT
        )
        == folder
    )
    assert list(cache.iterdir()) == [folder]


def test_a_model_that_its_weights_do_not_describe_is_refused(
    golden, tmp_path, checkpoint, cache
) -> None:
    body = f"m = {load_text(checkpoint('bert'))}\n    m.classifier.register_forward_hook(lambda *a: a[-1] * 2)"
    with golden.raises(ParityError):
        made(tmp_path, f"{body}\n    return m, {str(checkpoint('bert'))!r}", IMPORT)
    assert list(cache.iterdir()) == []


def test_a_module_of_ones_own_is_captured_with_parity(tmp_path, checkpoint, cache) -> None:
    place = str(checkpoint("bert"))
    file = made(tmp_path, f"return Own({place!r}), {place!r}", OWN)
    assert (file.name, file.parent.parent) == ("model.onnx", cache)
    assert json.loads((file.parent / "config.json").read_text())["model_type"] == "bert"
    captured = capture.capture(source.resolve(file), HEAD, parity_feeds())
    assert captured.parity.largest_difference < captured.parity.tolerance
    assert (captured.family.model_types[0], captured.sizes.layers) == ("bert", 2)


WRONG = {
    "nothing": "pass",
    "no tokenizer": "return torch.nn.Linear(2, 2)",
    "other order": "return 'folder', torch.nn.Linear(2, 2)",
    "no config": "return torch.nn.Linear(2, 2), 'folder'",
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_is_not_a_model(golden, tmp_path, body: str) -> None:
    with golden.raises(ModelError):
        made(tmp_path, body, "import torch")


def test_the_function_runs_only_if_it_is_allowed(golden, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("def model(size):\n    return 'x'\n")
    raw = {"model": f"{tmp_path / 'mine.py'}:model", "task": "mrpc", "data": "d"}
    with golden.raises(RecipeError):
        parse(raw)
    with golden.raises(RecipeError):
        resolve.resolve(parse({**raw, "allow_code": True}))
