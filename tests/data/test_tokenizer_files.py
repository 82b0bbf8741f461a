"""Damaged tokenizers: a sentence when they are opened, or when they are used first."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octobert.core.errors import ModelError
from octobert.data import tokenizer_limits
from octobert.data.tokenization import Tokenizer, save_tokenizer, state_length
from tests.support.checkpoints import make_checkpoint, make_tokenizer


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
    with pytest.raises(ModelError, match=r"tokenizer.json is not JSON"):
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


BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "lowercase": True,
    "strip_accents": None,
    "handle_chinese_chars": True,
}
CASED = {**BERT, "lowercase": False}
PIECES = {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}]}
LOWERED = {**PIECES, "normalizers": [*PIECES["normalizers"], {"type": "Lowercase"}]}


@pytest.mark.parametrize(
    ("model_type", "normalizer", "config", "contradicted"),
    [
        ("bert", BERT, {}, None),
        ("bert", BERT, {"strip_accents": True}, None),
        ("bert", BERT, {"do_lower_case": False}, "do_lower_case"),
        ("electra", BERT, {"do_lower_case": False}, "do_lower_case"),
        ("bert", CASED, {"do_lower_case": False, "strip_accents": False}, None),
        ("bert", CASED, {}, "do_lower_case"),
        ("bert", CASED, {"tokenizer_class": "PreTrainedTokenizerFast"}, None),
        ("modernbert", CASED, {"tokenizer_class": "BertTokenizer"}, None),
        ("roberta", CASED, {"tokenizer_class": "MPNetTokenizerFast"}, "do_lower_case"),
        (None, CASED, {}, None),
        ("bert", BERT, {"strip_accents": False}, "strip_accents"),
        ("bert", BERT, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars"),
        ("bert", {"type": "NFC"}, {}, "do_lower_case"),
        ("bert", None, {"tokenizer_class": "BertTokenizerFast"}, "do_lower_case"),
        ("albert", LOWERED, {}, None),
        ("albert", PIECES, {}, "do_lower_case"),
        ("albert", LOWERED, {"keep_accents": True}, "keep_accents"),
        ("deberta-v2", PIECES, {}, None),
        ("deberta-v2", LOWERED, {}, "do_lower_case"),
    ],
)
def test_options_that_contradict_the_tokenizer_are_refused_by_name(
    tmp_path, model_type: str, normalizer: Any, config: dict[str, Any], contradicted: str
) -> None:
    """Where transformers would make another normalizer of them, and only there."""
    pieces = {"type": "Unigram", "unk_id": 0, "vocab": [["[UNK]", 0.0], ["a", -1.0]]}
    more = {"model": pieces, "post_processor": None, "added_tokens": []}
    is_pieces = model_type in ("albert", "deberta-v2")
    folder = changed(
        tmp_path, lambda t: t.update(normalizer=normalizer, **(more if is_pieces else {}))
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(
        json.dumps({"model_type": model_type} if model_type else {})
    )
    if contradicted is None:
        Tokenizer(folder, 16)
        return
    origin = "" if contradicted in config else ", the default of"
    with pytest.raises(
        ModelError,
        match=rf"tokenizer_config.json and tokenizer.json contradict .*got {contradicted}: \w+{origin}",
    ):
        Tokenizer(folder, 16)


def test_the_error_of_a_contradiction_says_what_would_mend_it(golden, tmp_path) -> None:
    folder = changed(tmp_path, lambda tokenizer: tokenizer.update(normalizer=CASED))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with golden.raises(ModelError):
        Tokenizer(folder, 16)


@pytest.mark.parametrize(
    "normalizer", [BERT, CASED, {"type": "NFC"}], ids=["uncased", "cased", "NFC"]
)
def test_a_saved_tokenizer_reads_lower_case_in_every_program(tmp_path, normalizer) -> None:
    """What sentence-transformers puts before the normalizer is in the file, and transformers does not replace it."""
    from transformers import AutoTokenizer

    source, saved = tmp_path / "source", tmp_path / "saved"
    for folder in (source, saved):
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "bert", "vocab_size": 120}')
    changed(source, lambda tokenizer: tokenizer.update(normalizer=normalizer))
    kind = "PreTrainedTokenizerFast" if normalizer["type"] == "NFC" else "BertTokenizer"
    stated = {
        "tokenizer_class": kind,
        "do_lower_case": normalizer is BERT,
        "truncation_side": "left",
    }
    (source / "tokenizer_config.json").write_text(json.dumps(stated))
    (source / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    (source / "modules.json").write_text("[]")
    text = "THEY Had this"
    expected = Tokenizer(source, 16).encode([(text.lower(),)])[0].ids.tolist()
    save_tokenizer(source, saved)
    state_length(saved, 5)
    assert Tokenizer(saved, 16).encode([(text,)])[0].ids.tolist() == expected
    theirs = AutoTokenizer.from_pretrained(saved)
    assert theirs(text)["input_ids"] == expected
    cut = Tokenizer(saved).encode([("the one of you",)])[0].ids.tolist()
    assert theirs("the one of you", truncation=True)["input_ids"] == cut
    assert cut[1:-1] == Tokenizer(source).encode([("the one of you",)])[0].ids.tolist()[-4:-1]


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
    # tokenizer.json states it where the config does not.
    (tmp_path / "tokenizer_config.json").write_text("{}")
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Left",
        "max_length": 9,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer(tmp_path, 6).encode([text])[0].ids.tolist() == left.ids.tolist()
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "up"}')
    with golden.raises(ModelError):
        Tokenizer(tmp_path, 6)


def test_options_of_the_tokenizer_in_a_config_of_sentence_transformers(golden, tmp_path) -> None:
    make_tokenizer(tmp_path, pad_id=0)
    config = tmp_path / "sentence_bert_config.json"
    (tmp_path / "tokenizer_config.json").write_text('{"max_len": 64}')
    (tmp_path / "modules.json").write_text("[]")
    assert Tokenizer(tmp_path).max_length == 64
    config.write_text('{"tokenizer_args": {"model_max_length": 9}}')
    assert Tokenizer(tmp_path).max_length == 9
    # As that library does: options of the tokenizer before max_seq_length, and the older name before the newer.
    config.write_text('{"max_seq_length": 14, "processor_kwargs": {"model_max_length": 9}}')
    assert Tokenizer(tmp_path).max_length == 9
    older = {
        "tokenizer_args": {"model_max_length": 9},
        "processor_kwargs": {"model_max_length": 12},
    }
    config.write_text(json.dumps(older))
    assert Tokenizer(tmp_path).max_length == 9
    for unknown in (
        {"config_args": {"hidden_act": "relu"}},
        {"processor_kwargs": {"do_lower_case": True}},
        {"tokenizer_args": {"do_lower_case": True}},
        {"processing_kwargs": {"text": {"max_length": 9}}},
        {"tokenizer_name_or_path": "another/model"},
        {"modality_config": {"text": {}, "message": {"format": "structured"}}},
    ):
        config.write_text(json.dumps(unknown))
        with golden.raises(ModelError):
            Tokenizer(tmp_path)


SEGMENTS = ["input_ids", "token_type_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("stated", "segments"),
    [
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": SEGMENTS[::2]}, False),
        ({"tokenizer_class": "TokenizersBackend"}, False),
        ({"tokenizer_class": "TokenizersBackend", "model_input_names": SEGMENTS}, True),
    ],
)
def test_segment_ids_are_those_that_transformers_gives(tmp_path, stated, segments: bool) -> None:
    """Also in packages, whose config names a class that transformers 4 has."""
    from transformers import AutoTokenizer

    make_tokenizer(tmp_path, pad_id=0)
    (tmp_path / "config.json").write_text('{"model_type": "bert", "type_vocab_size": 2}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    for _ in range(2):
        row = Tokenizer(tmp_path, 16).encode([("the of", "he")])[0]
        theirs = AutoTokenizer.from_pretrained(tmp_path)("the of", "he")
        assert theirs["input_ids"] == row.ids.tolist()
        assert theirs.get("token_type_ids", [0] * len(row)) == row.types.tolist()
        assert (
            Tokenizer(tmp_path, 16).frame(2).types
            == (0, int(segments))
            == tuple(row.types[[1, -2]])
        )
        state_length(tmp_path, 16)


def test_a_class_that_is_taken_from_a_config_leaves_its_inputs_there(tmp_path) -> None:
    """A tokenizer that lowers first is of no class of transformers, and a class decides on segment ids."""
    from transformers import AutoTokenizer

    source, saved = tmp_path / "source", tmp_path / "saved"
    for folder in (source, saved):
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "bert", "type_vocab_size": 2}')
    make_tokenizer(source, pad_id=0)
    (source / "modules.json").write_text("[]")
    (source / "sentence_bert_config.json").write_text(
        '{"do_lower_case": true, "max_seq_length": 9}'
    )
    save_tokenizer(source, saved)
    assert Tokenizer(saved).max_length == 9
    theirs = AutoTokenizer.from_pretrained(saved)("the of", "he")["token_type_ids"]
    assert (
        theirs == Tokenizer(saved).encode([("the of", "he")])[0].types.tolist() == [0] * 4 + [1] * 2
    )


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", {"additional_special_tokens": ["[X]"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"130": {"content": "[X]"}}}),
        ("special_tokens_map.json", {"additional_special_tokens": [{"content": "[X]"}]}),
        ("added_tokens.json", {"[X]": 130}),
    ],
)
def test_tokens_that_only_the_files_beside_a_tokenizer_have(
    golden, tmp_path, file, content
) -> None:
    """transformers adds them, and reads each as one token."""
    make_tokenizer(tmp_path, pad_id=0)
    (tmp_path / file).write_text(json.dumps(content))
    with golden.raises(ModelError):
        Tokenizer(tmp_path, 16)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    number = len(tokenizer["model"]["vocab"])
    added = {**tokenizer["added_tokens"][-1], "id": number, "content": "[X]"}
    tokenizer["added_tokens"].append(added)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert number in Tokenizer(tmp_path, 16).encode([("the [X]",)])[0].ids


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "BertTokenizer"])
@pytest.mark.parametrize("token", ["<new>", "the"])
@pytest.mark.parametrize("key", ["pad", "mask", "bos", "cls", "sep", "unk"])
def test_special_tokens_that_only_a_config_names(tmp_path, kind: str, token: str, key: str) -> None:
    """Texts may have them. transformers makes BERT's frame of them, so that another one than the file's is refused."""
    from transformers import AutoTokenizer

    folder = make_checkpoint(tmp_path, "bert", "sequence-classification")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": kind, f"{key}_token": token})
    )
    if kind == "BertTokenizer" and key in ("cls", "sep", "unk"):
        with pytest.raises(ModelError, match=f"contradict each other .got {key}_token: "):
            Tokenizer(folder)
        return
    text = "the of<new>and the"
    theirs = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    (ours,) = Tokenizer(folder).encode([(text,)])
    assert [*ours.ids] == theirs


def test_packages_state_the_inputs_that_transformers_5_would_leave_out(tmp_path) -> None:
    from transformers import AutoTokenizer

    make_tokenizer(tmp_path, pad_id=0)
    (tmp_path / "config.json").write_text('{"model_type": "bert", "type_vocab_size": 2}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    types = Tokenizer(tmp_path, 16).encode([("the of", "he")])[0].types.tolist()
    assert 1 in types
    state_length(tmp_path, 16)
    assert AutoTokenizer.from_pretrained(tmp_path)("the of", "he")["token_type_ids"] == types
    # A model may take no such input.
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    state_length(tmp_path, 16, segments=False)
    stated = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert stated["model_input_names"] == SEGMENTS[::2]


def replaced(*pairs: tuple[str, str]) -> dict[str, Any]:
    """A normalizer that replaces texts."""
    parts = [{"type": "Replace", "pattern": {"String": a}, "content": b} for a, b in pairs]
    return {"type": "Sequence", "normalizers": parts}


def charsmap(text: bytes) -> dict[str, Any]:
    """A table of sentencepiece without entries, and a replacement."""
    table = base64.b64encode((0).to_bytes(4, "little") + text + b"\0").decode()
    return {"type": "Precompiled", "precompiled_charsmap": table}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
TWICE = [{"Sequence": {"id": "A", "type_id": 0}}] * 2
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda t: t["model"].update(max_input_chars_per_word=10**9), "max_input_chars_per_word"),
        (lambda t: t["model"].update(continuing_subword_prefix="#" * 10**6), "characters of cont"),
        (lambda t: t.update(normalizer=replaced(*[("a", "a" * 30)] * 4)), "texts grow: 810000"),
        (lambda t: t.update(normalizer=replaced(("a", "ﷺ"), ("ﷺ", "ﷺ" * 150))), "grow: 150"),
        (
            lambda t: t.update(
                normalizer={"type": "Sequence", "normalizers": [BERT, charsmap(b"a" * 40)]}
            ),
            "grow: 120",
        ),
        (
            lambda t: t.update(
                normalizer={"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b" * 100}
            ),
            "grow: 101",
        ),
        (lambda t: t.update(normalizer={"type": "Prepend", "prepend": "b" * 100}), "grow: 101"),
        (lambda t: t.update(normalizer={"type": "Prepend", "prepend": "b" * 10**6}), "of prepend"),
        (
            lambda t: t.update(normalizer={"type": "Sequence", "normalizers": [BERT] * 2000}),
            "entries",
        ),
        (
            lambda t: t.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTES] * 4}),
            "grow: 768",
        ),
        (
            lambda t: t.update(
                decoder={
                    "type": "Sequence",
                    "decoders": replaced(*[("a", "aa")] * 7)["normalizers"],
                }
            ),
            "grow: 128",
        ),
        (lambda t: t["post_processor"].update(single=TWICE), "times that single has 'A'"),
        (lambda t: t["post_processor"].update(pair=[*TWICE, CLS]), "times that pair has 'A'"),
        (lambda t: t["post_processor"]["pair"].extend([CLS] * 62), "special tokens"),
        (
            lambda t: t["post_processor"]["special_tokens"]["[CLS]"]["ids"].extend([1] * 999),
            "entries",
        ),
        (lambda t: t.update(unread=[10**5000]), "is not JSON"),
        (
            lambda t: t["model"].update(
                type="Unigram", unk_id=0, vocab=[["[UNK]", 0.0], ["a" * 10**6, -1.0]]
            ),
            "characters of a token",
        ),
    ],
)
def test_a_tokenizer_that_takes_memory_or_time_without_a_limit(
    tmp_path: Path, change: Any, found: str
) -> None:
    sys.set_int_max_str_digits(0)
    folder = changed(tmp_path, change)
    sys.set_int_max_str_digits(4300)
    with pytest.raises(ModelError, match=found):
        Tokenizer(folder, 16)


def test_components_of_stock_tokenizers_are_no_growth(tmp_path: Path) -> None:
    """Umlauts are replaced after each other; ALBERT's and XLM-R's tables, with a mark of spaces after them."""
    umlauts = [*zip("äöüÄÖÜß", ("ae", "oe", "ue", "Ae", "Oe", "Ue", "ss"), strict=True)]
    for normalizer in (
        replaced(*umlauts),
        {"type": "Sequence", "normalizers": [*LOWERED["normalizers"], charsmap(b"a" * 18)]},
    ):
        folder = changed(tmp_path, lambda t, parts=normalizer: t.update(normalizer=parts))
        (folder / "config.json").write_text("{}")
        assert (
            tokenizer_limits.check(folder, json.loads((folder / "tokenizer.json").read_text()))
            is False
        )


SLOW = """
import sys
from pathlib import Path
from octobert.core.errors import ModelError
from octobert.data import tokenizer_limits
from octobert.data.tokenization import Tokenizer

tokenizer_limits._SECONDS, tokenizer_limits._PACE = 0.5, 10**9
tokenizer = Tokenizer(Path(sys.argv[1]), 16)
for encoded in (tokenizer.offsets, tokenizer.encode):
    try:
        encoded(["a" * 200_000] if encoded == tokenizer.offsets else [("a",)])
    except ModelError as error:
        print(error)
"""


def test_a_regular_expression_that_takes_for_ever_is_left(tmp_path: Path) -> None:
    """In a process of its own: nothing ends the call of the library but the end of its process."""
    split = {
        "type": "Split",
        "pattern": {"Regex": "a*[^a]"},
        "behavior": "Isolated",
        "invert": False,
    }
    folder = changed(tmp_path, lambda t: t.update(pre_tokenizer=split))
    command = [sys.executable, "-c", SLOW, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    first, second = result.stdout.splitlines()
    assert "no answer for 200,000 characters in 1 s" in first
    assert second == first
