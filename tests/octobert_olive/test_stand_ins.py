"""Scripts that were written for Olive can be imported and called where Olive is not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from octobert.core import user_code
from octobert.core.errors import RecipeError

SCRIPT = """
from olive.constants import Framework
from olive.data.component.dataset import BaseDataset
from olive.data.registry import Registry
from olive.model import OliveModelHandler

@Registry.register_dataset()
def rows():
    return [{"text": "one"}]

@Registry.register_dataset("named")
def of_split(split, seed=0):
    return [{"text": split}]

@Registry.register_dataset()
def of_three(a, b, c):
    return []

@Registry.register_post_process()
def best(outputs):
    return outputs.argmax(dim=-1)

def loop(model):
    import copy
    trained = copy.deepcopy(model)
    trained.weight.data.fill_(3.0)
    return trained

items = BaseDataset([{"x": 1, "label": 0}], "label")

def metric(predictions, references):
    return Framework.__name__ == "Framework" and items[0] == ({"x": 1}, 0) and len(items) == 1
"""


def load(folder: Path, function: str, kind: user_code.Kind) -> object:
    (folder / "script.py").write_text(SCRIPT)
    return user_code.load(user_code.at(f"{folder / 'script.py'}:{function}", kind, where="here"))


def test_functions_of_a_registry_are_called_as_octobert_calls_functions(tmp_path: Path) -> None:
    assert load(tmp_path, "rows", "rows")("train") == [{"text": "one"}]  # type: ignore[operator]
    assert load(tmp_path, "of_split", "rows")("train") == [{"text": "train"}]  # type: ignore[operator]
    best = load(tmp_path, "best", "postprocess")({"logits": np.array([[0.0, 2.0], [3.0, 1.0]])})  # type: ignore[operator]
    assert best.tolist() == [1, 0]
    assert load(tmp_path, "metric", "metric")([], [])  # type: ignore[operator]
    with pytest.raises(RecipeError, match="of_three failed"):
        load(tmp_path, "of_three", "rows")("train")  # type: ignore[operator]
    assert "olive" not in sys.modules


def test_a_loop_that_takes_a_model_trains_that_of_the_job(tmp_path: Path) -> None:
    job = SimpleNamespace(model=torch.nn.Linear(2, 1))
    load(tmp_path, "loop", "train")(job)  # type: ignore[operator]
    assert job.model.weight.flatten().tolist() == [3.0, 3.0]


def test_names_that_are_no_stand_ins_are_missing(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import olive.workflows\ndef metric(a, b): ...\n")
    with pytest.raises(RecipeError, match="install olive"):
        user_code.load(user_code.at(f"{tmp_path / 's.py'}:metric", "metric", where="metric"))
