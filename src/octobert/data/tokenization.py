"""Texts to token ids, with the `tokenizers` library alone; calibration, evaluation and prediction share it."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from octobert.core.arrays import shapes_in, tensors_in
from octobert.core.errors import ModelError, OctobertError, TokenError, reason
from octobert.core.families import longest_input
from octobert.core.frozen import lazy
from octobert.core.model_config import (
    QUERY_TABLE,
    SENTENCE_CONFIG,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Config,
    read_config,
    read_object,
    write_json,
)
from octobert.core.onnx_files import TABLES
from octobert.core.origin import copy_file, copy_files, listed
from octobert.data import tokenizer_limits
from octobert.data.encoded import Encoded, Frame, TokenOffsets
from octobert.data.tokenizer_files import (
    BACKEND,
    FAST,
    NO_LIMIT,
    SPECIAL_TOKENS,
    TOKENIZER,
    has_segments,
    lower_,
    lowers,
    of_no_class,
    open_tokenizer,
    sentence_config,
    stated_token,
    tokenizer_file,
    trained_length,
    truncation_side,
)

# One text, two that form a pair, or the words of one.
Text = tuple[str, ...]
# The process that imported this module: another one was forked from it.
_PROCESS = os.getpid()
# Rows of a table of which nothing is known.
_ANY = 1 << 62


class TuningPart(NamedTuple):
    """A part of the tuning rows.

    Args:
        texts: of the rows.
        gold: what is expected of each judged item.
    """

    texts: list[Text]
    gold: list[Any]


@dataclass(frozen=True)
class EncodedTexts:
    """Texts, and for each of them the token rows that the model reads: one, or several windows.

    Args:
        tokenizer: what made the rows, where answers name tokens.
        joined: what a text has of the outputs of its rows, for tasks that judge it as a whole: one beside the other, their
            mean, or their maximum.
        refused: texts that are not here, by their places among all: why.
    """

    texts: Sequence[Text]
    rows: Sequence[Sequence[Encoded]]
    tokenizer: Tokenizer | None = None
    joined: Literal["beside", "mean", "max"] = "beside"
    refused: Mapping[int, TokenError] = field(default_factory=dict)

    @lazy
    def flat(self) -> list[Encoded]:
        """All rows, in the order of their texts."""
        return [row for rows in self.rows for row in rows]

    @lazy
    def _tokens(self) -> list[int]:
        """Entries of per-token outputs of all texts before each, and of all."""
        return [0, *itertools.accumulate(sum(row.entries for row in rows) for rows in self.rows)]

    @property
    def windowed(self) -> bool:
        """Return whether a text has several rows that are parts of it."""
        return self.joined != "beside" and len(self.flat) > len(self.texts)

    def join(self, outputs: np.ndarray) -> np.ndarray:
        """What each text has of an output of all rows: [rows, …] → [texts, …]."""
        if not self.windowed:
            return outputs.reshape(len(self.texts), -1) if len(self.texts) else outputs
        counts = [len(rows) for rows in self.rows]
        starts = np.cumsum([0, *counts[:-1]])
        if self.joined == "max":
            return np.asarray(np.maximum.reduceat(outputs, starts))
        return np.asarray(np.add.reduceat(outputs, starts) / np.array(counts)[:, None])

    def of_row(self, index: int) -> int:
        """The text that has a row."""
        ends = itertools.accumulate(map(len, self.rows))
        return next(text for text, end in enumerate(ends) if index < end)

    def of_rows(self, values: Sequence[Any]) -> list[Any]:
        """For each row, the value of its text."""
        if not self.windowed:
            return list(values)
        pairs = zip(values, self.rows, strict=True)
        return [value for value, rows in pairs for _ in rows]

    def single(
        self, index: int, outputs: Mapping[str, np.ndarray]
    ) -> tuple[EncodedTexts, dict[str, np.ndarray]]:
        """The text at `index` alone, with its part of outputs [tokens of all rows, …]."""
        part = slice(*self._tokens[index : index + 2])
        texts = EncodedTexts([self.texts[index]], [self.rows[index]], self.tokenizer, self.joined)
        return texts, {name: array[part] for name, array in outputs.items()}


class Tokenizer:
    """The tokenizer of a model.

    Args:
        folder: holds `tokenizer.json` or what it can be made of, and `config.json` for the padding id.
        max_length: the largest number of tokens of a row, with special tokens; by default the model's limit. Longer texts are
            cut.
        config: of the model; None for that of the folder.

    Raises:
        ModelError: there is no tokenizer, or `max_length` is more than the model has positions for.
    """

    def __init__(
        self, folder: Path, max_length: int | None = None, config: Config | None = None
    ) -> None:
        config = read_config(folder) if config is None else config
        limit = longest_input(config)
        check_length(max_length, limit)
        self.max_length = max_length or min(limit, trained_length(folder))
        # Rows of the tables that ids are looked up in.
        self._tokens, self._segments = (config.get(key) or _ANY for key in TABLES.values())
        # Masks hide padding, whatever its id is, if there is such a row.
        pad_id = config.get("pad_token_id") or 0
        self.pad_id = pad_id if pad_id < self._tokens else 0
        # Models of one segment read all texts as that.
        self._has_segments = has_segments(folder) and self._segments > 1
        self._path = tokenizer_file(folder) or folder
        with self._errors("cannot be read"):
            self._tokenizer, self._has_patterns = open_tokenizer(folder)
            tokenizer_limits.check_special(self._path, self._tokenizer)
            lower_(self._tokenizer, folder)
            self.side = truncation_side(folder, self._tokenizer.truncation)
            # It often states padding and truncation; octobert pads each batch by itself.
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(self.max_length, direction=self.side)
        # [vocabulary] the weight of each token in a query's sparse vector that is made without the model; None for all others.
        self.query_weights = _query_weights(folder, self._tokenizer)
        # What texts are refused with after one took too long.
        self._late: TimeoutError | None = None
        # Truncation is a state of the tokenizer, which several threads use.
        self._lock = threading.Lock()

    def save(self, path: Path) -> None:
        """Write it as `tokenizer.json`, without padding and truncation."""
        with self._untruncated():
            self._tokenizer.save(str(path))

    @contextmanager
    def _untruncated(self) -> Iterator[None]:
        """Texts are whole until the block ends, and no other thread tokenizes."""
        with self._lock:
            self._tokenizer.no_truncation()
            try:
                yield
            finally:
                # Where a text took too long, the library still works on it, and nothing can be changed.
                if self._late is None:
                    self._tokenizer.enable_truncation(self.max_length, direction=self.side)

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Tokenize texts, or pairs of texts, one row each."""
        with self._lock, self._errors():
            encodings = self._known(self._encodings([text[:2] for text in texts]))
        return [
            Encoded(
                np.array(e.ids, dtype=np.int64),
                np.array(e.type_ids, dtype=np.int64) * self._has_segments,
                bool(e.overflowing),
            )
            for e in encodings
        ]

    def offsets(self, texts: Sequence[str]) -> list[TokenOffsets]:
        """All tokens of texts, with their places in the texts."""
        with self._errors(), self._untruncated():
            texts_alone = [(text,) for text in texts]
            encodings = self._known(self._encodings(texts_alone, add_special_tokens=False))
        return [
            TokenOffsets(
                np.array(e.ids, dtype=np.int64), np.array(e.offsets, dtype=np.int64).reshape(-1, 2)
            )
            for e in encodings
        ]

    def _known(self, encodings: list[Any]) -> list[Any]:
        """Refuse ids beyond the rows of a table: ONNX Runtime fails there, and OpenVINO reads zeros.

        Raises:
            TokenError: with the token, or the segment.
        """
        segments = self._segments if self._has_segments else _ANY
        for e in encodings:
            for what, ids, rows in (("id", e.ids, self._tokens), ("segment", e.type_ids, segments)):
                if (most := max(ids, default=0)) >= rows:
                    raise TokenError(
                        "the text has a token that the model has no embedding for",
                        got=f"{e.tokens[ids.index(most)]}, {what} {most}",
                        expected=f"{what}s below {rows}",
                        fix="leave the text out, or train the model with its tokenizer",
                    )
        return encodings

    @lazy
    def unread(self) -> tuple[str, ...]:
        """Tokens that the model has no embedding for, in the order of their ids."""
        ids = self._tokenizer.get_vocab()
        return tuple(sorted((name for name in ids if ids[name] >= self._tokens), key=ids.get))

    def _encodings(self, texts: Sequence[Text], *, add_special_tokens: bool = True) -> list[Any]:
        """Encode texts or pairs, in time.

        Several are encoded on the threads of the library, which take longer to wake than a text takes.
        """
        if self._late is not None:
            raise self._late
        length = sum(len(part) for text in texts for part in text)
        if not self._has_patterns and length <= tokenizer_limits.SHORT:
            return self._encoded(texts, add_special_tokens, is_alone=len(texts) == 1)
        try:
            return tokenizer_limits.within(
                length, lambda: self._encoded(texts, add_special_tokens, is_alone=False)
            )
        except TimeoutError as error:
            self._late = error
            raise

    def _encoded(
        self, texts: Sequence[Text], add_special_tokens: bool, *, is_alone: bool
    ) -> list[Any]:
        # A forked process has no such threads, and a batch might wait for them for ever. The library does without them there,
        # but not where the user set the variable for them.
        if is_alone or (os.getpid() != _PROCESS and "TOKENIZERS_PARALLELISM" in os.environ):
            return [
                self._tokenizer.encode(*text, add_special_tokens=add_special_tokens)
                for text in texts
            ]
        inputs = [text[0] if len(text) == 1 else text for text in texts]
        return list(self._tokenizer.encode_batch(inputs, add_special_tokens=add_special_tokens))

    def frame(self, texts: int) -> Frame:
        """The special tokens that this tokenizer puts around a text (1) or a pair (2), taken from an example."""
        with self._errors():
            example = self._tokenizer.encode("a", "a" if texts == 2 else None)
        ids, types = np.array(example.ids), np.array(example.type_ids) * self._has_segments
        owners = np.array([-1 if text is None else text for text in example.sequence_ids])
        edges = [0]
        for text in range(texts):
            inside = np.flatnonzero(owners == text)
            if not len(inside):
                raise ModelError(
                    "the tokenizer loses a text",
                    where=str(self._path),
                    got=f"no token for text {text + 1} of {texts}",
                    fix="copy the tokenizer again",
                )
            edges += [int(inside[0]), int(inside[-1]) + 1]
        edges.append(len(ids))
        gaps = [slice(edges[i], edges[i + 1]) for i in range(0, len(edges), 2)]
        segments = tuple(int(types[edges[2 * text + 1]]) for text in range(texts))
        return Frame(tuple(ids[gap] for gap in gaps), tuple(types[gap] for gap in gaps), segments)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def special(self) -> list[int]:
        """Ids of tokens that stand for no text: around texts, of padding, unknown ones, and those without an embedding."""
        added = self._tokenizer.get_added_tokens_decoder()
        around = (int(index) for part in self.frame(1).special for index in part)
        marked = (index for index, token in added.items() if token.special)
        unread = range(self._tokens, self.vocabulary)
        return sorted({*self.unknown, self.pad_id, *around, *marked, *unread})

    @property
    def unknown(self) -> list[int]:
        """Ids that stand for what the vocabulary does not cover; none where it covers everything."""
        names = {getattr(self._tokenizer.model, "unk_token", None), "[UNK]", "<unk>"} - {None}
        ids = [self._tokenizer.token_to_id(name) for name in names]
        return [index for index in ids if index is not None]

    def id_of(self, token: str) -> int | None:
        """The id of a token of the vocabulary; None where it has none."""
        index = self._tokenizer.token_to_id(token)
        return None if index is None else int(index)

    def words(self, ids: Sequence[int]) -> list[str]:
        """Tokens as the vocabulary writes them, such as `##ing` or `Ġdog`."""
        return [str(self._tokenizer.id_to_token(int(index))) for index in ids]

    def decoded(self, ids: Sequence[int]) -> str:
        """Tokens as text."""
        with self._errors():
            return str(
                self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=False)
            ).strip()

    @lazy
    def mask(self) -> tuple[str, int]:
        """The mask token and its id: what the tokenizer's files state, else `[MASK]` or `<mask>`.

        From then on it is one token wherever it stands in a text.

        Raises:
            ModelError: the vocabulary has no mask token.
        """
        for name in (*_stated_masks(self._path.parent), "[MASK]", "<mask>"):
            index = self._tokenizer.token_to_id(name)
            if index is not None:
                # One that is known already may take the space before it, as RoBERTa's does.
                if name not in {
                    token.content for token in self._tokenizer.get_added_tokens_decoder().values()
                }:
                    with self._lock:
                        self._tokenizer.add_special_tokens([name])
                return name, int(index)
        raise ModelError(
            "the tokenizer has no mask token",
            where=str(self._path),
            expected="[MASK] or <mask>",
            fix="take the tokenizer of a masked language model",
        )

    @contextmanager
    def _errors(self, what: str = "does not fit together") -> Iterator[None]:
        """Turn the library's errors into a sentence: plain `Exception`s, and panics of Rust, which are not even those."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit, OctobertError):
            raise
        except BaseException as error:
            raise ModelError(
                f"{self._path.name} {what}",
                where=str(self._path),
                got=reason(error, longest=200),
                fix="download or copy the tokenizer again",
            ) from error


class NoTokenizer(Tokenizer):
    """In place of a tokenizer, for graphs that read no texts."""

    def __init__(self) -> None:
        self.max_length, self.pad_id = 1 << 30, 0


def _stated_masks(folder: Path) -> Iterator[str]:
    """The mask tokens that the files beside a tokenizer name."""
    for file in (TOKENIZER_CONFIG, SPECIAL_TOKENS):
        if name := stated_token(read_object(folder / file, missing_ok=True).get("mask_token")):
            yield name


def check_length(max_length: int | None, limit: int) -> None:
    """Check that the model has positions for a length.

    Args:
        max_length: None for the limit.
        limit: tokens of the longest row that it takes.

    Raises:
        ModelError: with the limit.
    """
    if max_length is not None and max_length > limit:
        raise ModelError(
            "the sequence is longer than the model allows",
            where="max_length",
            got=str(max_length),
            expected=f"at most {limit}",
            fix=f"set it to {limit} or less",
        )


def _query_weights(folder: Path, tokenizer: Any) -> np.ndarray | None:
    """The weights of a table of queries.

    Raises:
        ModelError: they cannot be read, or there is not one for each token.
    """
    file = folder / QUERY_TABLE / WEIGHTS[0]
    if not listed(folder, f"{QUERY_TABLE}/{WEIGHTS[0]}"):
        return None
    shape, vocabulary = shapes_in(file).get("weight", ()), 1 + max(tokenizer.get_vocab().values())
    # What has another shape is not read.
    weights = tensors_in(file)["weight"] if shape == (vocabulary,) else np.array(np.nan)
    if not ((weights >= 0) & np.isfinite(weights)).all():
        raise ModelError(
            "not one weight for each token of queries",
            where=str(file),
            got=f"shape {list(shape)}",
            expected=f"[{vocabulary}], finite, none below 0",
            fix="download the model again",
        )
    return np.asarray(weights, np.float32)


def save_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer files of a model into a folder; a tokenizer without `tokenizer.json` is converted.

    What sentence-transformers states beside them is written into them: without its modules nobody reads its file.

    Raises:
        ModelError: there is no tokenizer.
    """
    tokenizer = Tokenizer(source)
    copy_files(source, (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS), folder)
    if not (folder / TOKENIZER).is_file():
        tokenizer.save(folder / TOKENIZER)
    config = sentence_config(source)
    if config is None:
        return
    (path,) = listed(source, config.name).values()
    copy_file(path, folder / SENTENCE_CONFIG)
    stated = read_object(folder / TOKENIZER_CONFIG, missing_ok=True)
    if (length := trained_length(source)) < NO_LIMIT:
        stated["model_max_length"] = length
    if lowers(source):
        # Other programs read tokenizer.json alone, and transformers does with this class.
        tokenizer.save(folder / TOKENIZER)
        segments = read_config(source).get("type_vocab_size") not in (0, 1)
        stated = of_no_class(source, stated, segments) | {"truncation_side": tokenizer.side}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(stated, indent=2), encoding="utf-8")


def state_length(folder: Path, length: int, *, segments: bool = True) -> None:
    """Write into the tokenizer files of a folder where texts are cut; other programs read no other statement of it.

    What transformers 5 writes and transformers 4 does not read gets its older name, which both read.

    Args:
        folder: holds `tokenizer.json`; `tokenizer_config.json` is made where there is none.
        length: tokens of the longest row, with special tokens.
        segments: whether the model has an input for segment ids, which classes without inputs of their own have to be told.
    """
    tokenizer = read_object(folder / TOKENIZER)
    config = read_object(folder / TOKENIZER_CONFIG, missing_ok=True)
    tokenizer["truncation"] = {
        "direction": Tokenizer(folder).side.capitalize(),
        "max_length": length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    if isinstance(tokenizer.get("padding"), dict):
        tokenizer["padding"] |= {"strategy": "BatchLongest", "direction": "Right"}
    if "pad_token" not in config:
        pad = read_config(folder).get("pad_token_id") or 0
        config["pad_token"] = Tokenizer(folder).words([pad])[0]
    config["model_max_length"] = length
    # Padding on the left, which octobert never does, would move the positions.
    for other in ("max_length", "max_len", "padding_side"):
        config.pop(other, None)
    if config.get("tokenizer_class") in (FAST, BACKEND):
        config = of_no_class(folder, config, segments)
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    for name, content in ((TOKENIZER, tokenizer), (TOKENIZER_CONFIG, config)):
        write_json(folder / name, content)
