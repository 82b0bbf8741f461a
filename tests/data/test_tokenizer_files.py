"""Damaged tokenizers: a sentence when they are opened, or when they are used first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octobert.core.errors import ModelError
from octobert.data.tokenization import Tokenizer
from tests.support.checkpoints import make_tokenizer


def changed(folder: Path, change: Any) -> Path:
    """A tokenizer whose file is changed."""
    make_tokenizer(folder, pad_id=0)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return folder


def test_a_file_that_is_no_tokenizer(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {')
    with pytest.raises(ModelError, match=r"tokenizer.json cannot be read \(got EOF while parsing"):
        Tokenizer(tmp_path, 16)


def test_special_tokens_that_are_not_there_are_no_panic(tmp_path, capfd) -> None:
    folder = changed(tmp_path, lambda t: t["post_processor"]["single"][0]["SpecialToken"].update(id="[NONE]"))
    with pytest.raises(ModelError, match=r"tokenizer.json (does not fit together|cannot be read) \(got .*; download or copy"):
        Tokenizer(folder, 16).encode([("the one",)])


def test_a_template_that_loses_a_text(tmp_path) -> None:
    folder = changed(tmp_path, lambda t: t["post_processor"]["pair"].pop(3))
    with pytest.raises(ModelError, match=r"tokenizer.json"):
        Tokenizer(folder, 16).frame(2)


@pytest.mark.parametrize("stated", ["x", [1], -3, 0.5, {}])
def test_a_length_that_is_no_number_of_tokens(tmp_path, stated: Any) -> None:
    make_tokenizer(tmp_path, pad_id=0)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    if stated == {}:
        assert Tokenizer(tmp_path).max_length == 512
        return
    with pytest.raises(ModelError, match=r"tokenizer_config.json, model_max_length: no number of tokens"):
        Tokenizer(tmp_path)
