"""What a program computes of an exported folder, by its row of `clients.yaml`, compared with what the package computes.

The file of the package and the exported one run here, in one runtime, on the same rows in one batch. So what is rounded to 8
bits is rounded alike, and nothing but float sums in another order may differ.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from octobert import targets
from octobert.core.errors import ModelError, OctobertError
from octobert.core.heads import head_of
from octobert.core.model_config import TOKENIZER_CONFIG, read_object
from octobert.core.session import VECTOR, Feeds, SessionOptions
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Text, Tokenizer
from octobert.data.tokenizer_files import NO_LIMIT, TOKENIZER
from octobert.inference.opened import TARGETS, FinishedModel, open_model

if TYPE_CHECKING:
    from octobert.api.clients import Client, Model

# Of the largest number of an output. float32 has seven digits, of which sums of hundreds of tokens and features keep five.
TOLERANCE = 1e-4
# Tokens of the longest row that is run, and of one with an output over a vocabulary. Longer rows have to have the same tokens.
_LONGEST, _LONGEST_WIDE = 512, 64
_TEXTS = (
    "Yes.",
    "She said she'd call BACK; nobody believed her — not even her brother (who usually does).",
    "Он ушёл 3 décembre, at 10:45 a.m.",
)
_LONG = "The bank raised its rates by 0.25 points on Tuesday, the third rise of this year. "


def check(source: Path, file: Path, folder: Path, name: str, client: Client, model: Model) -> str:
    """Refuse an exported folder of which a client would make other answers than the package gives.

    Args:
        source: the package.
        file: the exported model.
        folder: of the exported tokenizer and its configuration.
        name: of the client.
        client: its row.
        model: the facts on the model.

    Returns:
        Why nothing was compared; empty where it was.

    Raises:
        ModelError: texts have other tokens, or numbers differ by more than `TOLERANCE`.
    """
    target = TARGETS[file.suffix]
    packaged = targets.load(target).model_file(source)
    package = replace(open_model(source), target=target, file=packaged)
    options = SessionOptions(entries=package.entries_on())
    try:
        package.check_runs()
        session = package.session(options)
    except OctobertError as error:
        return f"The answers were not compared with those of the package: {error.what}."
    head = head_of(package.head)
    tokenizer = Tokenizer(source, None if head.windowed else package.rebuilt().max_length)
    texts = (*_TEXTS, _LONG * (tokenizer.max_length // 8))
    count = 2 if head.input == "question" else package.facts().texts or 1
    asked = [pair[:count] for pair in zip(texts, texts[::-1], strict=True)]
    rows, read = tokenizer.encode(asked), _read(folder, client, asked, tokenizer.side)
    found = {"tokens": [row.ids.tolist() != ids for row, ids in zip(rows, read, strict=True)]}
    if not any(found["tokens"]):
        longest = _LONGEST_WIDE if head.wide else _LONGEST
        feeds = feeds_of([row for row in rows if len(row) <= longest], tokenizer.pad_id)
        exported = replace(package, file=file)
        # The modules of documents behind a router are those of the package.
        if not package.facts().query_table:
            exported = replace(exported, folder=folder, manifest=None)
        theirs = _computed(exported, client, model, options, feeds)
        found = {what: _errors(ours, theirs[what]) for what, ours in session.run(feeds).items()}
    for what, errors in found.items():
        if wrong := sum(not error <= TOLERANCE for error in errors):
            raise ModelError(
                f"{name} would make other answers than the package",
                where=str(source),
                got=f"other {what} of {wrong} of {len(errors)} texts, by up to {max(errors):.1g} of the largest number",
                fix="choose another client",
            )
    return ""


def _errors(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """Return the largest difference of each text, relative to the largest number of all; 1 where the shapes differ."""
    if theirs.shape != ours.shape:
        return [1.0] * len(ours)
    errors = np.abs(theirs - ours) / max(np.abs(ours).max(), 1e-30)
    return [float(each.max()) for each in errors]


def _read(folder: Path, client: Client, texts: list[Text], side: str) -> list[list[int]]:
    """Return the tokens that a client makes of texts with an exported tokenizer."""
    from tokenizers import Tokenizer as Opened

    name, key = client.limit
    limit = read_object(folder / name, missing_ok=True).get(key)
    limit = limit or read_object(folder / TOKENIZER_CONFIG).get("model_max_length") or NO_LIMIT
    opened = Opened.from_file(str(folder / TOKENIZER))
    opened.no_padding()
    opened.enable_truncation(limit, direction=side)
    encoded = opened.encode_batch([text if len(text) > 1 else text[0] for text in texts])
    return [each.ids for each in encoded]


def _computed(
    exported: FinishedModel, client: Client, model: Model, options: SessionOptions, feeds: Feeds
) -> dict[str, np.ndarray]:
    """Return what a client computes from the outputs of an exported file, by the names of those that octobert reads."""
    head, outputs = head_of(exported.head), {}
    splade = head.encoder == "SparseEncoder" and client.readings == "own"
    pools = client.outputs == "modules" or model.given == "states"
    if head.pooled and pools and exported.manifest is None:
        # Such a session pools as the folder says.
        outputs = {head.pools: head.pools}
    elif splade or model.given == "token":
        outputs = {VECTOR: head.pools}
    found = replace(exported, outputs=outputs).session(options).run(feeds)
    if splade:
        weights = np.log1p(np.maximum(found[VECTOR], 0)) * feeds["attention_mask"][..., None]
        found = {VECTOR: weights.max(axis=1, keepdims=True)}
    if VECTOR in found:
        found[VECTOR] = found[VECTOR].reshape(len(found[VECTOR]), -1)
        if client.normalizes:
            found[VECTOR] /= np.linalg.norm(found[VECTOR], axis=1, keepdims=True)
    return found
