"""The files of a tokenizer, opened with the `tokenizers` library, and what the files beside it state about texts.

`tokenizer.json` is opened as it is. BERT's `vocab.txt` is made into the tokenizer that transformers makes of it, without
transformers. Other vocabularies (`vocab.json` with merges, sentencepiece) are converted by transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octobert.core import environment
from octobert.core.errors import ModelError, reason
from octobert.core.files import content_of, opened
from octobert.core.model_config import (
    MODULES,
    SENTENCE_CONFIG,
    SENTENCE_CONFIGS,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    chat_template,
    read_config,
    read_object,
)
from octobert.core.origin import listed
from octobert.core.plain import preview
from octobert.data import tokenizer_limits

TOKENIZER, VOCABULARY = "tokenizer.json", "vocab.txt"
# What transformers needs to make a tokenizer. From nothing it would make an empty one, and every word would be unknown.
_CONVERTED = (VOCABULARY, "vocab.json", "*.model")
_MERGES = "merges.txt"
SPECIAL_TOKENS = "special_tokens_map.json"
# Classes of transformers that read a vocab.txt as BERT's, and the class of each type of model for which no file states one.
_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")
_TYPES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "mobilebert"), "BertTokenizer"),
    "mpnet": "MPNetTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
}
# Keys of special tokens, with their names in BERT. The first three must be in the vocabulary.
_TOKENS = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}
# The keys of all special tokens, in the order in which transformers adds those that `tokenizer.json` does not have.
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
# Options of a class, and their defaults. transformers makes the normalizer by them, and not by
# tokenizer.json.
_BERT = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys((*_CLASSES, "MPNetTokenizer"), _BERT),
    "AlbertTokenizer": {"do_lower_case": True, "keep_accents": False},
    "DebertaV2Tokenizer": {"do_lower_case": False},
}
_NEEDED = ("unk_token", "cls_token", "sep_token")
# Vocabularies of cased models have a third of their entries in upper case; those of uncased models have none.
_CASED = 0.02
# transformers writes this for "no limit".
NO_LIMIT = 10**9
# The class that reads `tokenizer.json` alone, and its name in transformers 5, where it gives no segment ids by default.
FAST, BACKEND = "PreTrainedTokenizerFast", "TokenizersBackend"
# Keys of the file below that change what the model reads.
_UNSUPPORTED = ("processing_kwargs", "config_args", "config_kwargs", "tokenizer_name_or_path")


def tokenizer_file(folder: Path) -> Path | None:
    """The file that a folder's tokenizer is made of; None where there is none."""
    return next(iter(listed(folder, TOKENIZER, *_CONVERTED).values()), None)


def open_tokenizer(folder: Path) -> tuple[Any, bool]:
    """The tokenizer of a folder, of the `tokenizers` library, and whether it has regular expressions.

    Raises:
        ModelError: there is none, it cannot be converted, or it passes a limit. A damaged `tokenizer.json` raises what the
            library raises.
    """
    import tokenizers

    file, there = tokenizer_file(folder), listed(folder, *TOKENIZER_FILES)
    stated = {
        **read_object(folder / SPECIAL_TOKENS, missing_ok=True),
        **read_object(folder / TOKENIZER_CONFIG, missing_ok=True),
    }
    if file is None:
        raise ModelError(
            "there is no tokenizer beside the model",
            where=str(folder),
            got=", ".join(there) or None,
            expected=f"{TOKENIZER} or {VOCABULARY}",
            fix="save the model's tokenizer into that folder",
        )
    if file.name == TOKENIZER:
        content = content_of(file).decode()
        read = read_object(file)
        has_patterns = tokenizer_limits.check(file, read)
        _check_normalizer(folder, stated, read)
        tokenizer = tokenizers.Tokenizer.from_str(content)
        _check_framing(folder, stated, read)
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        if missing := sorted(_added_tokens(folder, stated) - known):
            raise ModelError(
                f"files beside {TOKENIZER} add tokens that it does not have",
                where=str(folder),
                got=preview(", ".join(missing)),
                fix="write it again: transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
            )
        # As transformers does: texts may have them, and padding is one.
        named = [stated_token(stated.get(f"{key}_token")) for key in _NAMED]
        tokenizer.add_special_tokens([token for token in named if token and token not in known])
        return tokenizer, has_patterns
    if file.name == VOCABULARY and _is_bert(folder, stated):
        return _wordpiece(file, stated), False
    if file.name == "vocab.json" and _MERGES not in there:
        raise ModelError(
            "a file of the tokenizer is missing",
            where=str(folder),
            got="vocab.json",
            expected=_MERGES,
            fix="copy it there",
        )
    tokenizer = _converted(file, _class_of(folder, stated))
    return tokenizer, tokenizer_limits.check(file, json.loads(tokenizer.to_str()))


def _check_normalizer(folder: Path, config: Mapping[str, Any], tokenizer: Any) -> None:
    """Refuse a `tokenizer.json` that reads texts otherwise than the options of its class say, which transformers follows."""
    kind = _class_of(folder, config)
    if kind not in _OPTIONS:
        return
    try:
        normalizer, pieces = tokenizer["normalizer"] or {}, tokenizer["model"]["type"] == "Unigram"
        bert = normalizer if normalizer.get("type") == "BertNormalizer" else {}
    except (TypeError, KeyError, AttributeError):
        return  # damage is found by the library
    if pieces != ("tokenize_chinese_chars" not in _OPTIONS[kind]):
        return  # that class does not read such a vocabulary
    options = {key: config.get(key, default) for key, default in _OPTIONS[kind].items()}
    written = json.dumps(normalizer)
    found = {
        "do_lower_case": '"Lowercase"' in written if pieces else bert.get("lowercase"),
        "strip_accents": bert.get("strip_accents"),
        "tokenize_chinese_chars": bert.get("handle_chinese_chars"),
        "keep_accents": '"StripAccents"' not in written,
    }
    for values in (options, found):
        # BERT's strips accents from texts in lower case unless something is stated.
        if values.get("strip_accents") is None:
            values["strip_accents"] = values["do_lower_case"]
    for key in _OPTIONS[kind]:
        if options[key] != found[key]:
            origin = "" if key in config else f", the default of {kind}"
            what = f"{TOKENIZER_CONFIG} and {TOKENIZER} contradict each other"
            if not (folder / TOKENIZER_CONFIG).is_file():
                what = f"there is no {TOKENIZER_CONFIG}, and transformers would read texts otherwise than {TOKENIZER} says"
            raise ModelError(
                what,
                where=str(folder / TOKENIZER_CONFIG),
                got=f"{key}: {json.dumps(options[key])[:60]}{origin}, and the normalizer {written[:200]}",
                fix=f"copy the model's own, or state {key} there as it is meant, or tokenizer_class: PreTrainedTokenizerFast, "
                f"which reads {TOKENIZER} alone",
            )


def _check_framing(folder: Path, config: Mapping[str, Any], tokenizer: Any) -> None:
    """Refuse a `tokenizer.json` that puts other tokens around texts than those by which transformers makes BERT's tokenizer."""
    if _class_of(folder, config) not in _CLASSES:
        return
    written = json.dumps([tokenizer.get("post_processor"), tokenizer["model"].get("unk_token")])
    for key in _NEEDED:
        token = stated_token(config.get(key))
        if token and json.dumps(token) not in written:
            raise ModelError(
                f"{TOKENIZER_CONFIG} and {TOKENIZER} contradict each other",
                where=str(folder / TOKENIZER_CONFIG),
                got=f"{key}: {preview(token)}, which {TOKENIZER} does not use",
                fix="copy the model's own, or remove the key, or state tokenizer_class: PreTrainedTokenizerFast",
            )


def _class_of(folder: Path, stated: Mapping[str, Any]) -> str | None:
    """The class with which transformers reads a folder's tokenizer; None where nothing says so."""
    config = read_config(folder)
    if config.get("model_type") == "modernbert":
        return None  # transformers takes its tokenizer.json as it is, whatever is stated
    kind = stated.get("tokenizer_class") or config.get("tokenizer_class")
    return str(kind).removesuffix("Fast") if kind else _TYPES.get(str(config.get("model_type")))


def _is_bert(folder: Path, stated: Mapping[str, Any]) -> bool:
    """Return whether transformers would read a folder's vocab.txt as BERT's, and nothing is added to it."""
    is_unknown = "model_type" not in read_config(folder)
    kind = _class_of(folder, stated) or (_CLASSES[0] if is_unknown else None)
    return kind in _CLASSES and not _added_tokens(folder, stated)


def _added_tokens(folder: Path, stated: Mapping[str, Any]) -> set[str]:
    """Tokens that the files beside a vocabulary add to it."""
    named: list[Iterable[Any]] = [read_object(folder / "added_tokens.json", missing_ok=True)]
    named += [
        each.values() if isinstance(each, dict) else each
        for key in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder")
        if isinstance(each := stated.get(key), dict | list)
    ]
    return {stated_token(token) for tokens in named for token in tokens} - {""}


def _wordpiece(path: Path, stated: Mapping[str, Any]) -> Any:
    """BERT's tokenizer for a vocabulary with a token on each line, with the options that its config states."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = _vocabulary(path)
    tokens = {key: stated_token(stated.get(key)) or default for key, default in _TOKENS.items()}
    for key in _NEEDED:
        if tokens[key] not in vocabulary:
            raise ModelError(
                "the vocabulary has no such special token",
                where=str(path),
                got=f"no {tokens[key]} among {len(vocabulary):,} tokens",
                fix=f"name it in {TOKENIZER_CONFIG} ({key}), or copy the file again",
            )
    lower = stated.get("do_lower_case")
    if lower is None:
        _check_uncased(path, vocabulary)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=tokens["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(stated.get("tokenize_chinese_chars", True)),
        strip_accents=stated.get("strip_accents"),
        lowercase=lower is None or bool(lower),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([token for token in tokens.values() if token in vocabulary])
    first, end = tokens["cls_token"], tokens["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {end}:0",
        pair=f"{first}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(first, vocabulary[first]), (end, vocabulary[end])],
    )
    return tokenizer


def _vocabulary(path: Path) -> dict[str, int]:
    """Token → its line."""
    fix = "download or copy it again"
    try:
        # Only line feeds end a line (a vocabulary holds other separators), and those of Windows.
        lines = content_of(path).decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except OSError as error:
        raise ModelError(
            "the vocabulary cannot be read", where=str(path), got=error.strerror, fix=fix
        ) from error
    except UnicodeDecodeError as error:
        raise ModelError(
            "the vocabulary is not UTF-8", where=str(path), got=str(error)[:200], fix=fix
        ) from error
    return {token: index for index, token in enumerate(lines[:-1] if not lines[-1] else lines)}


def stated_token(stated: Any) -> str:
    """A special token as files state it, as text or as an object; empty where they state none."""
    stated = stated.get("content") if isinstance(stated, dict) else stated
    return stated if isinstance(stated, str) else ""


def _check_uncased(path: Path, vocabulary: Mapping[str, int]) -> None:
    """Refuse a cased vocabulary without a word on casing: in lower case, most of its words would be unknown."""
    words = [token for token in vocabulary if not (token.startswith("[") and token.endswith("]"))]
    cased = sum(token != token.lower() for token in words)
    if cased > _CASED * len(words):
        raise ModelError(
            "nothing says whether texts are read in lower case, and the vocabulary has words in upper case",
            where=str(path),
            got=f"{cased:,} of {len(words):,} tokens in upper case",
            expected=f"do_lower_case in {TOKENIZER_CONFIG}",
            fix=f'write {{"do_lower_case": false}} into {path.with_name(TOKENIZER_CONFIG)}',
        )


def _converted(file: Path, kind: str | None) -> Any:
    """A tokenizer that transformers makes.

    Args:
        file: that it is made of.
        kind: the class that the files beside it state.
    """
    folder, fix = file.parent, f"save the fast tokenizer ({TOKENIZER}) into that folder"
    package: str | None = None
    try:
        package = "transformers"
        import transformers

        known = getattr(transformers, kind or "AutoTokenizer", None)
        if kind and not (isinstance(known, type) and hasattr(known, "backend_tokenizer")):
            raise ModelError(
                "the tokenizer has no form without Python code of its own, which prediction does not run",
                where=str(folder),
                got=f"tokenizer_class {preview(kind)}",
                expected=TOKENIZER,
                fix="choose a model with a tokenizer that transformers has as a fast one",
            )
        if file.suffix == ".model":
            package = "sentencepiece"
            import sentencepiece  # noqa: F401  # transformers would ask for tiktoken

        package = None
        opened(file).close()
        return transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False
        ).backend_tokenizer
    except ModelError:
        raise
    except (
        Exception
    ) as error:  # transformers raises many types here: missing files, missing packages, bad config
        package = package or (isinstance(error, ImportError) and error.name) or None
        if package in ("transformers", "sentencepiece"):
            fix = f"{environment.install('torch')}, or {fix}"
        elif isinstance(error, ImportError):
            fix = f"install the package that is named, or {fix}"
        raise ModelError(
            f"the tokenizer beside the model must be converted, which needs {package}"
            if package
            else "the tokenizer beside the model cannot be converted",
            where=str(file),
            got=None if package else f"{type(error).__name__}: {reason(error, 0, longest=200)}",
            expected=TOKENIZER,
            fix=fix,
        ) from error


def has_segments(folder: Path) -> bool:
    """Return whether the second text of a pair has segment ids of its own, as transformers reads the files."""
    stated = read_object(folder / TOKENIZER_CONFIG, missing_ok=True)
    names = stated.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    # Files with the other name were written by transformers 4, where the default is to give them.
    return stated.get("tokenizer_class") != BACKEND


def of_no_class(folder: Path, stated: Mapping[str, Any], segments: bool) -> dict[str, Any]:
    """What a config states with the class that reads `tokenizer.json` alone, and has no names of inputs of its own.

    Args:
        folder: the tokenizer's, before the change.
        segments: whether the model has an input for them.
    """
    names = ["input_ids", *["token_type_ids"] * (segments and has_segments(folder))]
    return {**stated, "tokenizer_class": FAST, "model_input_names": [*names, "attention_mask"]}


def trained_length(folder: Path) -> int:
    """The length in tokens that the files beside a model state for its texts."""
    path = sentence_config(folder) or folder / SENTENCE_CONFIG
    config = _stated_by_sentences(folder)
    # The older name counts where both are stated.
    key = "tokenizer_args" if "tokenizer_args" in config else "processor_kwargs"
    arguments = config.get(key) or {}
    is_supported = isinstance(arguments, dict) and arguments.keys() <= {"model_max_length"}
    if "message" in (config.get("modality_config") or ()):
        raise chat_template(path)
    for other in _UNSUPPORTED if is_supported else (key,):
        if config.get(other):
            raise ModelError(
                "an option of sentence-transformers is not supported",
                where=str(path),
                got=f"{other}: {preview(config[other], 60)}",
                fix="remove it, and write what it changes into max_seq_length, config.json and the tokenizer's own files",
            )
    side = folder / TOKENIZER_CONFIG
    beside = read_object(side, missing_ok=True)
    for file, name, stated in (
        (path, f"{key}.model_max_length", arguments.get("model_max_length")),
        (path, "max_seq_length", config.get("max_seq_length")),
        (side, "model_max_length", beside.get("model_max_length")),
        (side, "max_len", beside.get("max_len")),
    ):
        if stated:
            if not isinstance(stated, int | float) or not stated >= 1:
                raise ModelError(
                    "no number of tokens",
                    where=f"{file}, {name}",
                    got=preview(stated, 60),
                    expected="1 or more",
                    fix="correct the file, or set the task's max_length",
                )
            return int(min(stated, NO_LIMIT))
    return NO_LIMIT


def truncation_side(folder: Path, truncation: Mapping[str, Any] | None) -> str:
    """The end at which long texts are cut: what the config states, else what `tokenizer.json` states."""
    path = folder / TOKENIZER_CONFIG
    stated = read_object(path, missing_ok=True).get("truncation_side")
    stated = stated or (truncation or {}).get("direction", "right")
    if stated not in ("left", "right"):
        raise ModelError(
            "no side of a text",
            where=f"{path}, truncation_side",
            got=preview(stated, 60),
            expected="left or right",
            fix="correct the file",
        )
    return str(stated)


def sentence_config(folder: Path) -> Path | None:
    """The file in which sentence-transformers states how a folder's texts are read; without modules it reads none."""
    paths = [folder / name for name in SENTENCE_CONFIGS] * (folder / MODULES).is_file()
    return next((path for path in paths if path.is_file()), None)


def _stated_by_sentences(folder: Path) -> dict[str, Any]:
    path = sentence_config(folder)
    return read_object(path) if path is not None else {}


def lowers(folder: Path) -> bool:
    """Return whether sentence-transformers states that texts are read in lower case."""
    return bool(_stated_by_sentences(folder).get("do_lower_case"))


def lower_(tokenizer: Any, folder: Path) -> None:
    """Let a tokenizer of the `tokenizers` library begin with lower case, where sentence-transformers states that."""
    from tokenizers import normalizers

    if not lowers(folder):
        return
    normalizer = tokenizer.normalizer
    written = json.dumps(json.loads(tokenizer.to_str())["normalizer"])
    if '"Lowercase"' not in written and '"lowercase": true' not in written:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Lowercase(), *([normalizer] if normalizer is not None else [])]
        )
