"""A packaged directory that predicts: texts in, answers out, in order. Needs the target's runtime and `tokenizers` only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert import plugins, texts
from octobert.batching import run_rows
from octobert.errors import DataError, ModelError, TargetError
from octobert.results import CARD, Card
from octobert.session import SessionOptions
from octobert.task import build


class Predictor:
    """A finished model.

    Args:
        folder: a packaged directory, `OUT/<target>`.
        threads: of one inference; 0 lets the runtime choose.

    Raises:
        ModelError: the folder is no packaged directory.
        TargetError: its runtime is not installed here.

    Example:
        >>> model = octobert.load("out/ort-cpu")          # doctest: +SKIP
        >>> model([("He left.", "He went away.")])        # doctest: +SKIP
        [{'label': 'equivalent', 'score': 0.97}]
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        self.folder = Path(folder)
        self.card = read_card(self.folder)
        facts = self.card.task
        self.task = build(facts.name, facts.options, facts.labels)
        self.target = self.card.target
        target = plugins.load("targets", self.target)
        probe = target.probe()
        if not probe.available:
            raise TargetError(
                f"the target {self.target} cannot run here", where=str(folder), got=probe.missing, fix=probe.install
            )
        self._encoder = texts.TextEncoder(self.folder, self.task.max_length)
        self._session = target.open_session(target.model_file(self.folder), SessionOptions(threads=threads))

    def __call__(self, inputs: str | Iterable[str | Sequence[str]]) -> list[dict[str, Any]]:
        """Answers to texts, or to pairs of texts, in order.

        Returns:
            For classification {"label", "score"}, for embeddings {"embedding"}; each with "truncated": true when the
            text was longer than the model takes.

        Raises:
            DataError: an input that is neither a text nor a pair of texts.
        """
        if not isinstance(inputs, Iterable):
            raise DataError("the input is neither a text nor a list of texts", got=repr(inputs)[:100])
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        rows = self._encoder.encode([_text(one, index) for index, one in enumerate(given)])
        outputs = self.outputs(rows)
        answers = [self.task.answer(outputs, index) for index in range(len(rows))]
        return [{**a, "truncated": True} if row.truncated else a for a, row in zip(answers, rows, strict=True)]

    def outputs(self, rows: Sequence[texts.Encoded]) -> dict[str, np.ndarray]:
        """Raw outputs of tokenized rows, in order; rows run in batches of similar length, without fixed padding."""
        return run_rows(self._session, rows, self._encoder.pad_id)


def load(folder: str | Path, *, threads: int = 0) -> Predictor:
    """Open a packaged directory."""
    return Predictor(folder, threads=threads)


def read_card(folder: Path) -> Card:
    """`octobert.json` of a packaged directory.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    path = folder / CARD
    if not path.is_file():
        inner = sorted(p.parent.name for p in folder.glob(f"*/{CARD}")) if folder.is_dir() else []
        fix = f"choose one of its targets: {', '.join(str(folder / name) for name in inner)}" if inner else "check the path"
        raise ModelError("the directory holds no finished model", where=str(folder), expected=CARD, fix=fix)
    try:
        return Card.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        got = str(error).strip().splitlines()[0]
        raise ModelError("octobert.json cannot be read", where=str(path), got=got, fix="package the model again") from error


def _text(one: str | Sequence[str], index: int) -> texts.Text:
    found = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, (tuple, list)) else ()
    where = f"input {index + 1}"
    if not 1 <= len(found) <= 2 or not all(isinstance(text, str) for text in found):
        raise DataError("the input is neither a text nor a pair of texts", where=where, got=repr(one)[:100])
    if not all(text.strip() for text in found):
        raise DataError("the text is empty", where=where, got=repr(one)[:100])
    if any("\ud800" <= c <= "\udfff" for text in found for c in text):
        raise DataError(
            "the text is not Unicode", where=where, got=ascii(one)[:100], fix="decode it from its own encoding first"
        )
    return found
