"""Tokenizers without `tokenizer.json`: BERT's vocab.txt becomes what transformers makes of it, without transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from octobert.core.errors import ModelError
from octobert.data.tokenization import Tokenizer, save_tokenizer
from tests.support.checkpoints import make_byte_level_tokenizer

TOKENS = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "The",
    "na",
    "##ive",
    "##ïve",
    "漢",
    "漢字",
    "a",
    "b",
    "e",
]
TOKENS += ["##a", "##b", "##c", "é", "e\u0301", "\u2028", "!", "of", "##f"]
TEXTS = [
    "The naïve NAIVE",
    "漢字 the漢",
    "é e\u0301 É",
    "a\u0000b\u200bc [SEP] [MASK] of",
    "\u2028 the\u00a0of!a",
    "x" * 120,
    "İ ß ﬀ",
]


def written(
    folder: Path,
    settings: dict[str, Any] | None,
    config: dict[str, Any] | None = None,
    *,
    end: str = "\n",
) -> Path:
    """A folder with a vocabulary, and a config of the tokenizer and of the model where they are given."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_bytes(end.join([*TOKENS, ""]).encode())
    for name, content in (("tokenizer_config.json", settings), ("config.json", config)):
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        ({"do_lower_case": True}, None),
        ({"do_lower_case": False}, {"model_type": "bert"}),
        ({"do_lower_case": False, "strip_accents": True}, {}),
        (
            {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False},
            {"model_type": "distilbert"},
        ),
        (
            {
                "do_lower_case": True,
                "tokenizer_class": "ElectraTokenizerFast",
                "cls_token": {"__type": "AddedToken", "content": "[unused0]", "special": True},
            },
            None,
        ),
        ({"do_lower_case": True, "mask_token": "the"}, {"model_type": "mobilebert"}),
    ],
)
def test_a_vocabulary_is_read_as_transformers_reads_it(
    tmp_path, settings, config, monkeypatch
) -> None:
    from transformers import BertTokenizer

    folder = written(tmp_path, settings, config)
    theirs = BertTokenizer.from_pretrained(folder)
    monkeypatch.setitem(sys.modules, "transformers", None)
    ours = Tokenizer(folder)
    pairs = [(text,) for text in TEXTS] + list(zip(TEXTS, reversed(TEXTS), strict=True))
    for text, row in zip(pairs, ours.encode(pairs), strict=True):
        expected = theirs(*text)
        assert (row.ids.tolist(), row.types.tolist()) == (
            expected["input_ids"],
            expected["token_type_ids"],
        )
    # What is saved for packages is the same tokenizer.
    (out := tmp_path / "out").mkdir()
    save_tokenizer(folder, out)
    assert [row.ids.tolist() for row in Tokenizer(out).encode(pairs)] == [
        row.ids.tolist() for row in ours.encode(pairs)
    ]


def test_lines_of_windows_are_the_same_vocabulary(tmp_path) -> None:
    rows = [
        Tokenizer(written(tmp_path / name, {"do_lower_case": True}, end=end))
        .encode([("the of",)])[0]
        .ids.tolist()
        for name, end in (("unix", "\n"), ("windows", "\r\n"))
    ]
    assert rows[0] == rows[1] == [3, 6, 23, 4]


def test_other_vocabularies_are_converted_by_transformers(tmp_path) -> None:
    source = tmp_path / "byte-level"
    source.mkdir()
    make_byte_level_tokenizer(source)
    expected = Tokenizer(source).encode([("the one, 42",)])[0].ids.tolist()
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    (source / "tokenizer.json").unlink()
    (source / "vocab.json").write_text(json.dumps(model["vocab"]))
    (source / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"
    )
    assert Tokenizer(source).encode([("the one, 42",)])[0].ids.tolist() == expected


@pytest.mark.parametrize("change", [lambda f: (f / "vocab.txt").unlink(), lambda f: (f / "tokenizer_config.json").unlink(), lambda f: (f / "vocab.txt").write_text("the\nof\n"), lambda f: (f / "vocab.txt").write_bytes(b"\xff\xfe"), lambda f: (f / "tokenizer_config.json").write_text('{"do_lower_case": 1, "strip_accents": "x"}'), lambda f: (f / "added_tokens.json").write_text('{"<x>": 25}')])  # fmt: skip
def test_a_vocabulary_that_cannot_be_used(golden, tmp_path, change, monkeypatch) -> None:
    folder = written(tmp_path, {"do_lower_case": True})
    change(folder)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with golden.raises(ModelError):
        Tokenizer(folder)


SENTENCES = [
    f"the {a} {b} of {c}." for a in ("old", "new") for b in ("cat", "hat") for c in "abcdef"
]
# Type of model → the name of its sentencepiece vocabulary.
SENTENCEPIECE = {
    "xlm-roberta": "sentencepiece.bpe.model",
    "camembert": "sentencepiece.bpe.model",
    "albert": "spiece.model",
    "deberta-v2": "spm.model",
    "rembert": "sentencepiece.model",
}


def of_sentencepiece(folder: Path, kind: str) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    with (folder / SENTENCEPIECE[kind]).open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES),
            model_writer=file,
            vocab_size=40,
            hard_vocab_limit=False,
            control_symbols=["[CLS]", "[SEP]", "[MASK]", "<pad>"] if kind == "albert" else [],
            minloglevel=2,
        )
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "pad_token_id": 1}))
    return folder


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_sentencepiece_vocabularies_are_those_of_transformers(tmp_path, kind) -> None:
    from transformers import AutoTokenizer

    folder = of_sentencepiece(tmp_path, kind)
    expected = AutoTokenizer.from_pretrained(folder)(SENTENCES[:3])["input_ids"]
    rows = Tokenizer(folder).encode([(text,) for text in SENTENCES[:3]])
    assert [row.ids.tolist() for row in rows] == expected


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, kind) -> None:
    folder = of_sentencepiece(tmp_path, kind)
    for name in ("sentencepiece", "tiktoken"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelError, match=r"needs sentencepiece .*\[torch\]"):
        Tokenizer(folder)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
ALONE: dict[str, tuple[str, dict[str, str]]] = {
    "Japanese": ("bert", {"tokenizer_config.json": '{"tokenizer_class": "BertJapaneseTokenizer"}'}),
    "Vietnamese": ("roberta", {"tokenizer_config.json": '{"tokenizer_class": "PhobertTokenizer"}'}),
    "own class": ("bert", {"tokenizer_config.json": '{"tokenizer_class": "MyTokenizer"}'}),
    "no merges": ("roberta", {"vocab.json": '{"a": 0}'}),
    "no vocabulary": ("roberta", {"merges.txt": "a b", "special_tokens_map.json": "{}"}),
    "pointer": ("xlm-roberta", {"sentencepiece.bpe.model": LFS}),
}


@pytest.mark.parametrize("name", ALONE)
def test_files_that_make_no_tokenizer(golden, tmp_path, name) -> None:
    kind, files = ALONE[name]
    if "tokenizer_config.json" in files:
        written(tmp_path, None)
    for file, text in {"config.json": json.dumps({"model_type": kind}), **files}.items():
        (tmp_path / file).write_text(text)
    with golden.raises(ModelError):
        Tokenizer(tmp_path)
