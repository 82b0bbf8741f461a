"""The model that is pruned, with the rows that its weights are fitted to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.core.pruning import LeftWhole, Sublayer
from octobert.core.session import Session
from octobert.data.tokenization import Encoded, EncodedTexts, Tokenizer
from octobert.evaluation import candidates
from octobert.graph import cutting
from octobert.inference.batching import run_rows
from octobert.pipeline.contract import ScoredTask, StepResult, TaskSpec
from octobert.pipeline.stages import _artifacts, _rows
from octobert.quantization.pruning.sublayer_losses import Overridden
from octobert.tasks import Outputs, Task

# Texts that are tokenized at a time, until there are enough tokens.
_ENCODED = 256
# Rows that losses are measured on, and their tokens: the same rows for all, so that few settle which is larger.
LOSS_ROWS, LOSS_TOKENS = 256, 16_384


@dataclass(frozen=True)
class Whole:
    """The model that is pruned, and its rows.

    Args:
        path: its float graph.
        rows: that weights are fitted to.
        compared: some of them, that losses are measured on.
        seconds: by step.
    """

    path: Path
    family: EncoderFamily
    tokenizer: Tokenizer
    task: Task
    sublayers: tuple[Sublayer, ...]
    rows: tuple[Encoded, ...]
    compared: EncodedTexts
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time of a block to a step."""
        began = time.monotonic()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.monotonic() - began

    def outputs(self, path: Path) -> Outputs:
        """Outputs of a float graph on the rows that losses are measured on."""
        return self.outputs_of(opened(path, self.task.head))

    def outputs_of(self, session: Session | Overridden) -> Outputs:
        """Outputs of a session on these rows."""
        return run_rows(session, self.compared.flat, self.tokenizer.pad_id, per_token=self.task.per_token)


def opened(path: Path, head: str) -> Session:
    """A float graph in ONNX Runtime."""
    return candidates.open_candidate(candidates.Candidate(name=candidates.REFERENCE.name, path=str(path), head=head), 0)


def whole_of(capture: StepResult, data: StepResult, scored: ScoredTask, wanted: int) -> tuple[Whole, tuple[LeftWhole, ...]]:
    """The model with its rows; the parts that cannot be pruned.

    Args:
        scored: the task of the recipe.
        wanted: tokens of the rows.

    Raises:
        ModelError: nothing can be pruned.
    """
    # Divergences are of the task's own outputs, whatever metrics the recipe has.
    task = TaskSpec(name=scored.name, options=scored.options, stated=scored.stated).build()
    tokenizer, family = _rows.tokenizer_of(capture, task), _artifacts.family_of(capture)
    path = capture.path(_artifacts.FLOAT)
    sublayers, left = cutting.find(ir.load(path).graph, family)
    if not sublayers:
        reasons = "; ".join(f"{each.module}: {each.reason}" for each in left[:3])
        fix = "remove prune from the recipe"
        raise ModelError("no heads or neurons of this model can be removed", where="prune", got=reasons, fix=fix)
    texts = texts_of(data)
    rows: list[Encoded] = []
    tokens = 0
    for start in range(0, len(texts), _ENCODED):
        if tokens >= wanted:
            break
        for row in _rows.encoded(texts[start : start + _ENCODED], task, tokenizer).flat:
            if tokens < wanted:
                rows.append(row)
                tokens += len(row)
    compared = _compared(_rows.encoded(texts[:LOSS_ROWS], task, tokenizer))
    return Whole(path, family, tokenizer, task, tuple(sublayers), tuple(rows), compared), tuple(left)


def texts_of(data: StepResult) -> list[Any]:
    """The texts that weights are fitted to: the calibration rows, and the training rows behind them."""
    return [text for name in ("calibration.json", "fitting.json") for text in data.read_json(name)["inputs"]]


def _compared(encoded: EncodedTexts) -> EncodedTexts:
    """The first texts, up to the tokens that losses are measured on."""
    ends = np.cumsum([sum(map(len, rows)) for rows in encoded.rows])
    count = max(1, int(np.searchsorted(ends, LOSS_TOKENS, side="right")))
    return EncodedTexts(encoded.texts[:count], encoded.rows[:count], encoded.tokenizer)
