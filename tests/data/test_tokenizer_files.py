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


def test_special_tokens_that_are_not_there_are_no_panic(golden, tmp_path, capfd) -> None:
    folder = changed(
        tmp_path, lambda t: t["post_processor"]["single"][0]["SpecialToken"].update(id="[NONE]")
    )
    with golden.raises(ModelError):
        Tokenizer(folder, 16).encode([("the one",)])


def test_a_template_that_loses_a_text(tmp_path) -> None:
    folder = changed(tmp_path, lambda t: t["post_processor"]["pair"].pop(3))
    with pytest.raises(ModelError, match=r"tokenizer.json"):
        Tokenizer(folder, 16).frame(2)


@pytest.mark.parametrize("stated", ["x", [1], -3, 0.5, {}])
def test_a_length_that_is_no_number_of_tokens(golden, tmp_path, stated: Any) -> None:
    make_tokenizer(tmp_path, pad_id=0)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    if stated == {}:
        assert Tokenizer(tmp_path).max_length == 512
        return
    with golden.raises(ModelError):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(("key", "name"), [("do_lower_case", "lowercase"), ("strip_accents", "strip_accents"), ("tokenize_chinese_chars", "handle_chinese_chars")])  # fmt: skip
def test_a_config_that_contradicts_the_tokenizer_is_refused_by_name(
    golden, tmp_path, key: str, name: str
) -> None:
    state = {
        "type": "BertNormalizer",
        "clean_text": True,
        "lowercase": True,
        "strip_accents": True,
        "handle_chinese_chars": True,
    }
    folder = changed(tmp_path, lambda tokenizer: tokenizer.update(normalizer=state))
    for stated in (True, False):
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "BertTokenizerFast", key: stated})
        )
        if stated:
            Tokenizer(folder, 16)
            continue
        with golden.raises(ModelError):
            Tokenizer(folder, 16)


def test_the_side_on_which_texts_are_cut_is_the_stated_one(golden, tmp_path) -> None:
    make_tokenizer(tmp_path, pad_id=0)
    text = ("the one of the two that is for you",)
    right = Tokenizer(tmp_path, 6).encode([text])[0]
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    left, whole = (
        Tokenizer(tmp_path, 6).encode([text])[0],
        Tokenizer(tmp_path, 64).encode([text])[0],
    )
    assert left.truncated
    assert left.ids[1:-1].tolist() == whole.ids[-5:-1].tolist() != right.ids[1:-1].tolist()
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "up"}')
    with golden.raises(ModelError):
        Tokenizer(tmp_path, 6)


def test_options_of_the_tokenizer_in_a_config_of_sentence_transformers(golden, tmp_path) -> None:
    make_tokenizer(tmp_path, pad_id=0)
    config = tmp_path / "sentence_bert_config.json"
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    config.write_text('{"tokenizer_args": {"model_max_length": 9}}')
    assert Tokenizer(tmp_path).max_length == 9
    for unknown in (
        {"tokenizer_args": {"do_lower_case": True}},
        {"processing_kwargs": {"text": {"max_length": 9}}},
    ):
        config.write_text(json.dumps(unknown))
        with golden.raises(ModelError):
            Tokenizer(tmp_path)
