"""Limits of a `tokenizer.json` of unknown origin, checked before it is opened: no text takes memory or time without a bound.

What no limit bounds, such as regular expressions that go back and forth, `within` ends.
"""

from __future__ import annotations

import base64
import threading
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from octobert.core.errors import ModelError
from octobert.core.plain import preview

T = TypeVar("T")
# Stock tokenizers look up words of up to 200 characters, in quadratic time; have texts of up to 20 characters and regular
# expressions of up to 500 in their components, these have fewer than 200 entries, and their vocabularies tokens of up to 150.
_WORD, _TEXT, _PATTERN, _ENTRIES = 1_000, 200, 4_000, 1_000
# Characters that become of one. In stock tokenizers up to 72: rare ones become 18 (NFKC), and spaces are added twice. A text of
# a million characters, the longest, then takes about 3 GB.
_GROWTH = 100
# Special tokens around a pair. Stock tokenizers add up to 4.
_SPECIAL = 64
# What one character becomes: bytes as letters; spaces around it; a mark of a space before it.
_FACTORS = {"ByteLevel": 4, "BertNormalizer": 3, "Metaspace": 2}
# Keys of a component's parts.
_PARTS = ("normalizers", "pretokenizers", "decoders", "processors")
# Seconds, and characters a second: a hundredth of what stock tokenizers take on one core.
_SECONDS, _PACE = 30, 10_000
# Most texts are shorter. Without regular expressions, they take no time that anybody notices.
SHORT = 10_000


def check(path: Path, content: Mapping[str, Any]) -> bool:
    """Check the content of a `tokenizer.json` by its limits.

    Returns:
        whether it has regular expressions, whose time nothing bounds.

    Raises:
        ModelError: one is passed.
    """
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    vocabulary = model.get("vocab")
    others = {
        **{key: value for key, value in content.items() if key not in ("model", "added_tokens")},
        "model": {key: value for key, value in model.items() if key not in ("vocab", "merges")},
    }
    _check_most(path, "max_input_chars_per_word", model.get("max_input_chars_per_word"), _WORD)
    if model.get("type") == "Unigram" and isinstance(vocabulary, list):
        lengths = (
            len(e[0]) for e in vocabulary if isinstance(e, list) and e and isinstance(e[0], str)
        )
        _check_most(path, "characters of a token", max(lengths, default=0), _WORD)
    entries, has_patterns, stack = 0, False, [("", others)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, str) and key != "precompiled_charsmap":
            most = _PATTERN if key == "Regex" else _TEXT
            _check_most(path, f"characters of {key}", len(value), most)
            has_patterns |= key == "Regex"
        elif isinstance(value, dict | list):
            inner = value.items() if isinstance(value, dict) else ((key, each) for each in value)
            entries += len(value)
            _check_most(path, "entries of the components", entries, _ENTRIES)
            stack += inner
    growth, made = _growth(content.get("normalizer"), 1, set())
    growth, _ = _growth(content.get("pre_tokenizer"), growth, made)
    for times in (growth, _growth(content.get("decoder"), 1, set())[0]):
        _check_most(path, "times that texts grow", times, _GROWTH)
    for template in _components(content.get("post_processor")):
        for key in ("single", "pair"):
            pieces = template.get(key)
            named = [str(p.get("Sequence")) for p in pieces or () if isinstance(p, dict)]
            for text in ("'A'", "'B'"):
                _check_most(path, f"times that {key} has {text}", sum(text in n for n in named), 1)
    return has_patterns


def check_special(path: Path, tokenizer: Any) -> None:
    """Check how many special tokens an opened tokenizer adds.

    Raises:
        ModelError: more than any.
    """
    count = tokenizer.num_special_tokens_to_add(is_pair=True)
    _check_most(path, "special tokens around a pair", count, _SPECIAL)


def _check_most(path: Path, what: str, value: Any, most: int) -> None:
    if isinstance(value, int | float) and value > most:
        raise ModelError(
            "the tokenizer has more than any, and would take time or memory without a limit",
            where=str(path),
            got=f"{what}: {preview(value, 40)}",
            expected=f"at most {most:,}",
            fix="download or copy the tokenizer again, or do not trust it",
        )


def _components(part: Any) -> list[dict[str, Any]]:
    """A component, or the components in it, in their order."""
    if not isinstance(part, dict):
        return []
    inner = [each for key in _PARTS if isinstance(part.get(key), list) for each in part[key]]
    return [part, *(found for each in inner for found in _components(each))]


def _growth(part: Any, growth: float, made: set[str] | None) -> tuple[float, set[str] | None]:
    """How many characters one may become.

    Args:
        part: of the tokenizer.
        growth: by what comes before.
        made: characters that are written by what comes before, and can be replaced again; None for any.
    """
    for component in _components(part):
        kind, pattern = component.get("type"), component.get("pattern")
        content = str(component.get("content") or component.get("prepend") or "")
        text = pattern.get("String") if isinstance(pattern, dict) else pattern
        if kind == "Precompiled":
            growth, made = growth * _longest(component.get("precompiled_charsmap")), None
        elif kind == "Replace" and isinstance(text, str):
            times = len(content) / max(len(text), 1)
            is_again = made is None or bool(made & _forms(text))
            growth = growth * max(times, 1) if is_again else max(growth, times)
        elif kind in ("Replace", "Prepend"):
            # An expression may match between characters.
            growth *= 1 + len(content)
        elif kind == "NFKC" or kind == "NFKD":
            growth *= max((len(unicodedata.normalize(kind, c)) for c in made or ()), default=1)
        growth *= _FACTORS.get(str(kind), 1)
        made = None if made is None else made | _forms(content)
    return growth, made


def _forms(text: str) -> set[str]:
    """Characters of a text, and what other components may make of them."""
    return {*text, *unicodedata.normalize("NFKD", text).casefold()}


def _longest(charsmap: Any) -> int:
    """Characters of the longest replacement of sentencepiece's table: the size of a trie, the trie, texts that end with 0."""
    try:
        data = base64.b64decode(charsmap)
    except (ValueError, TypeError):
        return 1  # damage is found by the library
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(len(text.decode(errors="replace")) for text in texts)


def within(length: int, work: Callable[[], T]) -> T:
    """Return the result of work on texts, if it comes in time. The library hears no Ctrl-C, and nothing ends it: it is left.

    Args:
        length: characters of the texts.
        work: the call, which lets other threads run.

    Raises:
        TimeoutError: it takes a hundred times longer than stock tokenizers do.
    """
    results, errors = list[T](), list[BaseException]()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # panics of Rust are no `Exception`
            errors.append(error)

    thread, seconds = threading.Thread(target=run, daemon=True), _SECONDS + length / _PACE
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer for {length:,} characters in {seconds:.0f} s")
    return results[0]
