"""A packaged directory that predicts: texts in, answers out, in order. Needs the target's runtime and `tokenizers` only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        cache: folder where the runtime keeps what it compiled, so that it opens faster the next time.
        runtime_log: the runtime says on stderr what it does.
        allow_fallback: what the target's device does not take may run on the CPU, instead of being an error.

    Raises:
        ModelError: the folder is no packaged directory.
        TargetError: its runtime is not installed here.

    Example:
        >>> model = octobert.load("out/ort-cpu")          # doctest: +SKIP
        >>> model([("He left.", "He went away.")])        # doctest: +SKIP
        [{'label': 'equivalent', 'score': 0.97}]
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int = 0,
        cache: str | Path | None = None,
        runtime_log: bool = False,
        allow_fallback: bool = False,
    ) -> None:
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
        self._session = target.open_session(
            target.model_file(self.folder),
            SessionOptions(
                threads=threads, cache=str(cache) if cache else None, log=runtime_log, allow_fallback=allow_fallback
            ),
        )

    def __call__(self, inputs: Any) -> list[dict[str, Any]]:
        """Answers to what is asked, in order.

        Args:
            inputs: one text or a list. For classification and embeddings of texts, or of pairs of texts; for question answering
                of (question, context) pairs or {"question", "context"}; for tagging of texts or lists of words.

        Returns:
            For classification {"label", "score"}; for embeddings {"embedding"}; for question answering {"answer", "score",
            "start", "end"}, characters of the context, with other answers under "others"; for tagging {"words", "tags",
            "entities"}. Each has "truncated": true where something was longer than the model takes.

        Raises:
            DataError: an input that is none of these.
        """
        if isinstance(inputs, (str, Mapping)):
            inputs = [inputs]
        if not isinstance(inputs, Iterable):
            raise DataError("the input is neither a text nor a list of texts", got=repr(inputs)[:100])
        given = list(inputs)
        texts = [self.task.parse(one, where=f"input {index + 1}") for index, one in enumerate(given)]
        asked = self.task.encode(self._encoder, texts)
        outputs = self.outputs(asked.flat)
        answers = [self.task.answer(outputs, asked, index, one) for index, one in enumerate(given)]
        cut = [any(row.truncated for row in rows) for rows in asked.rows]
        return [{**answer, "truncated": True} if short else answer for answer, short in zip(answers, cut, strict=True)]

    def outputs(self, rows: Sequence[texts.Encoded]) -> dict[str, np.ndarray]:
        """Raw outputs of tokenized rows, in order; rows run in batches of similar length, without fixed padding."""
        return run_rows(self._session, rows, self._encoder.pad_id, per_token=self.task.per_token)


def load(
    folder: str | Path,
    *,
    threads: int = 0,
    cache: str | Path | None = None,
    runtime_log: bool = False,
    allow_fallback: bool = False,
) -> Predictor:
    """Open a packaged directory; the arguments are those of `Predictor`."""
    return Predictor(folder, threads=threads, cache=cache, runtime_log=runtime_log, allow_fallback=allow_fallback)


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
